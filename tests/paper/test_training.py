"""Networks trained side by side against a textbook loop, one network at a time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ssse.errors import InvalidData, InvalidSetting
from ssse.paper.resnet import ResNet20
from ssse.paper.training import Recipe, train_networks

RECIPE = Recipe(epochs=2, batch=16, widths=(4, 8, 8), blocks=1, rate=0.1, autocast=False)


def images(n=75, size=8, seed=0, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, size, size, generator=generator, dtype=torch.float64)
    return x.to(device, dtype), torch.randint(4, (n,), generator=generator).to(device)


def network():
    return RECIPE.network(classes=4)


def trained(x, y, keeps, seeds, recipe=RECIPE, make_model=network):
    return train_networks(x, y, keeps, seeds, recipe, make_model, progress=False)


def textbook(x, y, keep, seed, recipe=RECIPE):
    """What benchmarks/cifar.py does."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network().to(x).train()
        batch = min(recipe.batch, len(keep))
        steps = len(keep) // batch
        optimiser = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.epochs * steps)
        for _ in range(recipe.epochs):
            for index in torch.randperm(len(keep))[: steps * batch].split(batch):
                chosen = keep[index.to(keep.device)].to(x.device)
                optimiser.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimiser.step()
                schedule.step()
    return model.eval()


def assert_same(ours, theirs, rtol=1e-7, atol=1e-8):
    theirs = theirs.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("epochs", [1, 2])
def test_equals_a_textbook_loop(epochs):
    x, y = images()
    keeps = [torch.arange(75), torch.arange(20, 75), torch.arange(0, 75, 2)]  # 4, 3 and 2 steps an epoch
    recipe = replace(RECIPE, epochs=epochs)
    for model, keep, seed in zip(trained(x, y, keeps, [0, 1, 2], recipe), keeps, [0, 1, 2], strict=True):
        assert_same(model, textbook(x, y, keep, seed, recipe))


def test_the_cycle_is_that_of_torch():
    for steps in (1, 2, 3, 4, 7, 10, 100):
        optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.4, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.4, total_steps=steps)
        for rate, momentum in Recipe().cycle(steps).tolist():
            assert rate == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-12)
            assert momentum == pytest.approx(optimiser.param_groups[0]["momentum"], rel=1e-12)
            optimiser.step()
            schedule.step()


def test_equal_seeds_begin_alike_and_end_alike():
    x, y = images(dtype=torch.float32)
    begun = []

    def make_model():
        begun.append(network())
        return begun[-1]

    still = replace(RECIPE, epochs=1, rate=0.0)
    keeps = [torch.arange(75), torch.arange(30), torch.arange(75)]
    first, second, other = trained(x, y, keeps, [5, 5, 6], still, make_model)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or a.dim() == 1  # BatchNorm begins with ones and zeros
    once, again = trained(x, y, [keeps[0]], [3])[0], trained(x, y, [keeps[1], keeps[0]], [4, 3])[1]
    for a, b in zip(once.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_network_learns_and_behaves_as_any_other():
    x, y = images(n=160, dtype=torch.float32)
    y = (x.mean((1, 2, 3)) > 0).long()
    (model,) = trained(x, y, [torch.arange(160)], [0], replace(RECIPE, epochs=12))
    assert not model.training
    assert all(p.dtype == torch.float32 and p.is_contiguous() and p.requires_grad for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert (model(x).argmax(1) == y).float().mean() > 0.9


def test_the_random_state_is_the_callers():
    x, y = images()
    before = torch.get_rng_state()
    trained(x, y, [torch.arange(75)], [0], replace(RECIPE, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_fewer_samples_than_a_batch():
    x, y = images()
    keep = torch.arange(5, 15)
    (model,) = trained(x, y, [keep], [0])
    assert_same(model, textbook(x, y, keep, 0))
    assert int(model.state_dict()["bn.num_batches_tracked"]) == RECIPE.epochs


def test_what_cannot_be_trained_is_said():
    x, y = images()
    keep = torch.arange(75)
    with pytest.raises(InvalidSetting, match="one seed for every network, not 1 for 2"):
        trained(x, y, [keep, keep], [0])
    with pytest.raises(InvalidData, match="Network 1 has no samples"):
        trained(x, y, [keep, keep[:0]], [0, 1])
    with pytest.raises(InvalidSetting, match="seed 7 diverged: its last loss is nan"):
        trained(x, y, [keep], [7], replace(RECIPE, rate=1e200))
    x[3, 0, 0, 0] = torch.nan
    with pytest.raises(InvalidData, match="NaN"):
        trained(x, y, [keep], [0])
    assert trained(x[4:], y[4:], [], []) == []


def test_a_callers_no_grad_does_not_matter():
    x, y = images()
    with torch.no_grad():
        (model,) = trained(x, y, [torch.arange(75)], [0])
    assert_same(model, textbook(x, y, torch.arange(75), 0))


def test_resnet20_has_the_parameters_of_the_paper():
    assert sum(p.numel() for p in ResNet20().parameters()) == 269_722
    small = ResNet20(classes=7, channels=1, widths=(4, 8), blocks=2)
    assert small(torch.zeros(3, 1, 9, 9)).shape == (3, 7)


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@contextmanager
def exact_convolutions():
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=str)
@pytest.mark.parametrize("gpu", [pytest.param(True, marks=needs_gpu)])
def test_recorded_steps_equal_the_textbook_loop(gpu, dtype, tolerance):
    x, y = images(dtype=dtype, device="cuda")
    keeps = [torch.arange(75), torch.arange(20, 75), torch.arange(10)]
    state = torch.get_rng_state(), torch.cuda.get_rng_state()
    with exact_convolutions():
        models = trained(x, y, keeps, [0, 1, 2])
        assert torch.equal(torch.get_rng_state(), state[0])
        assert torch.equal(torch.cuda.get_rng_state(), state[1])
        for model, keep, seed in zip(models, keeps, [0, 1, 2], strict=True):
            assert_same(model, textbook(x, y, keep, seed), rtol=tolerance, atol=tolerance)
            assert all(p.is_contiguous() and p.is_cuda for p in model.parameters())


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("gpu", [pytest.param(True, marks=needs_gpu)])
def test_networks_side_by_side_equal_each_alone(gpu, autocast):
    x, y = images(n=600, size=16, dtype=torch.float32, device="cuda")
    keeps, recipe = [torch.arange(600), torch.arange(100, 600)], replace(RECIPE, batch=64, autocast=autocast)
    with exact_convolutions():
        both = trained(x, y, keeps, [0, 1], recipe)
        for model, keep, seed in zip(both, keeps, [0, 1], strict=True):
            assert_same(model, trained(x, y, [keep], [seed], recipe)[0], rtol=0, atol=0)


@pytest.mark.parametrize("gpu", [pytest.param(True, marks=needs_gpu)])
def test_autocast_changes_little(gpu):
    x, y = images(n=600, size=16, dtype=torch.float32, device="cuda")
    y = (x.mean((1, 2, 3)) > 0).long()
    keep, recipe = torch.arange(600), replace(RECIPE, batch=64, epochs=10)
    full, half = (trained(x, y, [keep], [0], replace(recipe, autocast=on))[0] for on in (False, True))
    assert all(p.dtype == torch.float32 for p in half.parameters())
    right = [float((model(x).argmax(1) == y).float().mean()) for model in (full, half)]
    assert min(right) > 0.9
