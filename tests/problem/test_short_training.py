"""The short training is torch's own loop, on a copy, and nothing of the model's that was given changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from ssse.errors import Diverged, InvalidData, InvalidModel, InvalidSetting
from ssse.problem.labels import WeightedLabels
from ssse.problem.short_training import Trainee, Training
from tests.support import problems
from tests.support.refusals import refused, snapshot
from tests.support.sequences import language_model, sequences

SHORT = Training(epochs=3, learning_rate=0.1, batch_size=4, weight_decay=1e-2)


def trained(model: nn.Module, loss: str, data: list, training: Training = SHORT, **options) -> nn.Module:
    trainee = Trainee.of(model, loss, data)
    trainee.train(training, progress=False, **options)
    return trainee.given.eval()


def by_hand(model: nn.Module, x: Tensor, y: Tensor, training: Training, weights: Tensor | None = None) -> nn.Module:
    """As torch's documentation has it; the last, incomplete batch is left out."""
    model = copy.deepcopy(model).train()
    chosen = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(
        chosen, lr=1.0, momentum=training.momentum, nesterov=True, weight_decay=training.weight_decay
    )
    size, order = min(training.batch_size, len(y)), torch.Generator().manual_seed(7)
    cycle = OneCycleLR(optimiser, training.learning_rate, total_steps=training.epochs * (len(y) // size))
    for _ in range(training.epochs):
        places = torch.randperm(len(y), generator=order)
        for i in range(len(y) // size):
            some = places[i * size : (i + 1) * size]
            optimiser.zero_grad()
            losses = nn.functional.cross_entropy(model(x[some]), y[some], reduction="none")
            (losses if weights is None else weights[some] * losses).mean().backward()
            optimiser.step()
            cycle.step()
    return model.eval()


@pytest.mark.parametrize("size", [4, 5, 16, 100])  # 16 samples: with and without a rest, in one batch, in part of one
def test_it_is_torchs_own_loop(size):
    sample = problems.conv()
    training = Training(epochs=3, learning_rate=0.1, batch_size=size, weight_decay=1e-2)
    wanted = by_hand(sample.model, sample.x, sample.y, training)
    found = trained(sample.model, sample.loss, sample.data, training, seed=7)
    for name, value in wanted.state_dict().items():
        assert torch.allclose(found.state_dict()[name].double(), value.double(), rtol=1e-9, atol=1e-12), name


def test_samples_count_by_their_weights():
    sample = problems.conv()
    weights = torch.linspace(0.5, 2.0, len(sample.y), dtype=torch.float64)
    wanted = by_hand(sample.model, sample.x, sample.y, SHORT, weights)
    found = trained(sample.model, sample.loss, [(sample.x, sample.y, weights)], seed=7)
    assert torch.allclose(found.state_dict()["conv.weight"], wanted.state_dict()["conv.weight"], rtol=1e-9)
    assert isinstance(Trainee.of(sample.model, sample.loss, [(sample.x, sample.y, weights)]).samples[1], WeightedLabels)


def test_a_cycle_of_one_step_is_a_step_at_the_rate_that_was_asked_for():
    sample = problems.mlp()
    found = trained(sample.model, sample.loss, sample.data, Training(1, 0.1, 100, 0.0, momentum=0.0))
    loss = nn.functional.cross_entropy(sample.model(sample.x), sample.y)
    (gradient,) = torch.autograd.grad(loss, sample.model.get_parameter("0.weight"))
    moved = found.get_parameter("0.weight") - sample.model.get_parameter("0.weight")
    assert torch.allclose(moved, -0.1 * gradient, rtol=1e-9)


def test_steps_are_counted():
    assert Training(epochs=3, batch_size=512).steps(45_000) == 3 * 87
    assert Training(epochs=2, batch_size=512).steps(100) == 2


@pytest.mark.parametrize("momentum", [0.0, 0.02, 0.5, 0.9, 0.98])
def test_the_momentum_stays_between_nothing_and_one(momentum):
    swing = Training(momentum=momentum).swing
    assert 0 <= momentum - swing <= momentum + swing < 1
    sample = problems.mlp()
    trained(sample.model, sample.loss, sample.data, Training(2, 1e-3, 8, momentum=momentum))


def test_the_model_that_was_given_is_untouched_and_torchs_random_state_too():
    sample = problems.conv()
    before, state = snapshot(sample.model), torch.get_rng_state()
    trained(sample.model, sample.loss, sample.data)
    assert snapshot(sample.model) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_gives_the_same_model_also_where_layers_draw():
    sample = problems.mlp()
    first, tanh, last = sample.model.children()
    model = nn.Sequential(first, tanh, nn.Dropout(0.5), last).eval()
    one, again, other = (trained(model, sample.loss, sample.data, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.get_parameter("0.weight"), again.get_parameter("0.weight"))
    assert not torch.equal(one.get_parameter("0.weight"), other.get_parameter("0.weight"))


def test_what_is_frozen_stays_and_so_do_statistics_of_frozen_layers():
    sample = problems.conv()
    sample.model.get_submodule("conv").requires_grad_(False)
    sample.model.get_submodule("norm").requires_grad_(False)
    trainee = Trainee.of(sample.model, sample.loss, sample.data)
    trainee.train(SHORT, progress=False)
    found, before = trainee.finish().state_dict(), sample.model.state_dict()
    changed = {name for name, value in found.items() if not torch.equal(value, before[name])}
    assert changed == {"head.weight", "head.bias"}


def test_mappings_of_tokens():
    model, batch = language_model(), sequences()
    before = snapshot(model)
    losses: list[float] = []
    trainee = Trainee.of(model, "causal_lm", [batch])
    trainee.train(Training(20, 0.1, 4, 0.0), after_epoch=lambda _, loss: losses.append(loss), progress=False)
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert snapshot(model) == before


def test_bfloat16_in_the_layers():
    sample = problems.conv(dtype=torch.float32)
    found = trained(sample.model, sample.loss, sample.data, autocast=True, seed=7)
    wanted = trained(sample.model, sample.loss, sample.data, seed=7)
    assert not torch.equal(found.get_parameter("head.weight"), wanted.get_parameter("head.weight"))
    assert torch.allclose(found.get_parameter("head.weight"), wanted.get_parameter("head.weight"), atol=0.05)
    assert found.get_parameter("head.weight").dtype == torch.float32


def test_called_where_gradients_are_off():
    sample = problems.mlp()
    with torch.no_grad():
        found = trained(sample.model, sample.loss, sample.data)
    assert not torch.equal(found.get_parameter("0.weight"), sample.model.get_parameter("0.weight"))


def test_a_training_that_diverges():
    sample = problems.mlp("mse")
    with refused(Diverged, "diverged.*smaller learning_rate than 1e\\+06", sample.model):
        trained(sample.model, sample.loss, sample.data, Training(30, 1e6, 8))


def test_one_sample_has_no_variance():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    with refused(InvalidData, "a single sample in training mode", model):
        trained(model, "cross_entropy", [(torch.randn(1, 3).double(), torch.tensor([1]))])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1 on, not 0"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"batch_size": -1}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
        ({"weight_decay": -1e-4}, "weight_decay must be zero or positive"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, not '0.1'"),
        ({"weight_decay": None}, "weight_decay must be a number, not None"),
        ({"momentum": [0.9]}, "momentum must be a number"),
    ],
)
def test_settings_that_have_no_meaning(wrong, match):
    with pytest.raises(InvalidSetting, match=match):
        Training(**wrong)


@pytest.mark.parametrize("seed", [None, 1.5, "1"])
def test_a_seed_that_is_none(seed):
    sample = problems.mlp()
    with refused(InvalidSetting, "seed must be a whole number", sample.model):
        Trainee.of(sample.model, sample.loss, sample.data).train(SHORT, seed=seed, progress=False)


def test_what_is_no_model():
    sample = problems.mlp()
    wrong: Any = "model.pt"
    with pytest.raises(InvalidModel, match=r"must be a torch.nn.Module, not a str"):
        Trainee.of(wrong, sample.loss, sample.data)
    trainee = Trainee.of(sample.model, sample.loss, sample.data)
    with pytest.raises(InvalidModel, match=r"must be a torch.nn.Module, not a str"):
        trainee.beside(wrong, sample.loss)
