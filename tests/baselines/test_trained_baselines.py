"""The baselines that train, each against a loop of plain steps in float64 that knows nothing of the library's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse import baselines
from ssse.baselines.random_labels import other_labels
from ssse.baselines.sgd import Recipe
from ssse.errors import Diverged, InvalidData, InvalidSetting
from ssse.problem.batches import shuffled_places
from tests.support import problems
from tests.support.refusals import refused, snapshot
from tests.support.training_loops import DECAY, MOMENTUM, RATE, SEED, SIZE, Loop, places

EPOCHS = 2
S, REST = slice(3, 8), torch.tensor([0, 1, 2, *range(8, 16)])
TRAINED = ("neggrad_plus", "scrub", "random_labels", "salun")
every_mode = pytest.mark.parametrize("mode", ["train", "eval"])


def call(method: str, sample: problems.Sample, **options: Any) -> baselines.Updated:
    """With the settings of the loops here."""
    if method != "gradient_ascent_until":
        options = {"data": sample.data, **options}
    settings = {
        "learning_rate": RATE,
        "momentum": MOMENTUM,
        "weight_decay": DECAY,
        "batch_size": SIZE,
        "epochs": EPOCHS,
        "seed": SEED,
        "schedule": "constant",
        "progress": False,
    }
    return getattr(baselines, method)(sample.model, None, sample.loss, sample.part(S), **{**settings, **options})


@every_mode
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("together", [True, False])
def test_neggrad_plus_descends_on_what_stays_and_ascends_on_s(mode, size, together):
    sample = problems.conv()
    x, y, u, v = sample.x[REST], sample.y[REST], sample.x[S], sample.y[S]
    loop, one, other = Loop(sample, mode), places(11), places(5, size or SIZE, single=mode == "eval")
    for _ in range(EPOCHS * 3):
        i, j = next(one), next(other)
        if together:
            z = loop.model(torch.cat([x[i], u[j]]))
            loop.step(0.7 * F.cross_entropy(z[: len(i)], y[i]) - 0.3 * F.cross_entropy(z[len(i) :], v[j]))
        else:
            up = F.cross_entropy(loop.model(u[j]), v[j])
            loop.step(0.7 * F.cross_entropy(loop.model(x[i]), y[i]) - 0.3 * up)
    found = call("neggrad_plus", sample, beta=0.7, batch_norm=mode, forget_batch_size=size, together=together)
    loop.assert_equals(found)
    assert found.notes[0].startswith("6 steps")


def divergence(teacher: Tensor, student: Tensor, t: float) -> Tensor:
    p, q = (teacher / t).softmax(1), (student / t).softmax(1)
    return t**2 * (p * (p.log() - q.log())).sum(1).mean()


@every_mode
@pytest.mark.parametrize("most", [0, 1, 2])
def test_scrub_trains_the_student_and_never_the_teacher(mode, most):
    sample, t = problems.conv(), 2.0
    x, y, u = sample.x[REST], sample.y[REST], sample.x[S]
    loop, one, other = Loop(sample, mode), places(11), places(5, 2, single=mode == "eval")
    before = snapshot(sample.model)
    for epoch in range(EPOCHS):
        if epoch < most:
            for _ in range(2 if mode == "train" else 3):
                j = next(other)
                loop.step(-divergence(sample.model(u[j]).detach(), loop.model(u[j]), t))
        for _ in range(3):
            i = next(one)
            z, teacher = loop.model(x[i]), sample.model(x[i]).detach()
            loop.step(0.3 * divergence(teacher, z, t) + 0.6 * F.cross_entropy(z, y[i]))
    options = {"alpha": 0.3, "gamma": 0.6, "temperature": t, "forget_batch_size": 2}
    found = call("scrub", sample, max_epochs=most, batch_norm=mode, **options)
    loop.assert_equals(found)
    assert float(found.step.norm()) > 1e-3
    assert snapshot(sample.model) == before  # the teacher


def test_scrubs_first_step_leads_away_from_the_teacher():
    """At the teacher itself d = 0 and has no gradient: momentum and decay of min-steps are what begins it."""
    sample = problems.converged(problems.mlp(n=16), 0.1)
    held = call("scrub", sample, max_epochs=0, epochs=1)
    moved = call("scrub", sample, max_epochs=2, epochs=2, learning_rate=0.5)
    teacher = sample.model(sample.x[S]).detach()
    away = [float(divergence(teacher, m.model(sample.x[S]), 1.0).detach()) for m in (held, moved)]
    assert away[1] > away[0]


def relabelled(sample: problems.Sample) -> Tensor:
    """Anew, from the definition: the drawn shift is never 0, so that no label is its own."""
    classes = len(sample.model(sample.x)[0])
    shift = torch.randint(1, classes, (5,), generator=torch.Generator().manual_seed(SEED))
    wrong = (sample.y[S] + shift) % classes
    assert bool((wrong != sample.y[S]).all())
    return wrong


@every_mode
@pytest.mark.parametrize("share", [None, 0.4])
@pytest.mark.parametrize("weight", [None, 1.5])
def test_random_labels_and_salun_train_on_wrong_labels(mode, share, weight):
    sample = problems.conv()
    x, y, u, wrong = sample.x[REST], sample.y[REST], sample.x[S], relabelled(sample)
    parameters = list(sample.model.parameters())
    slope = torch.autograd.grad(F.cross_entropy(sample.model(sample.x[S]), sample.y[S]), parameters)
    size = torch.cat([g.reshape(-1).abs() for g in slope])
    kept = len(size) if share is None else round(share * len(size))
    mask = (size >= size.sort(descending=True).values[kept - 1]).double()
    assert int(mask.sum()) == kept
    loop, one, other = Loop(sample, mode, mask), places(11), places(5, 3)
    together, labels, every = torch.cat([x, u]), torch.cat([y, wrong]), places(16)
    for _ in range(EPOCHS * (4 if weight is None else 3)):
        if weight is None:
            i = next(every)
            loop.step(F.cross_entropy(loop.model(together[i]), labels[i]))
        else:
            i, j = next(one), next(other)
            z = loop.model(torch.cat([u[j], x[i]]))
            loop.step(F.cross_entropy(z[: len(j)], wrong[j]) + weight * F.cross_entropy(z[len(j) :], y[i]))
    options = {} if share is None else {"share": share}
    options |= {} if weight is None else {"retain_weight": weight, "forget_batch_size": 3}
    found = call("random_labels" if share is None else "salun", sample, batch_norm=mode, **options)
    loop.assert_equals(found)
    # What is not salient has not moved by one bit, though there are decay and momentum; all else has.
    assert torch.equal(found.step != 0, mask.bool())
    if share is not None:
        assert found.notes[1] == f"{kept} of {len(size)} parameters may move"


def test_a_random_label_is_any_but_its_own():
    y = torch.arange(4).repeat(500).to(torch.int32)
    wrong = other_labels(y, 4, seed=1)
    assert wrong.dtype == y.dtype
    counts = torch.zeros(4, 4).index_put_((y.long(), wrong.long()), torch.ones(len(y)), accumulate=True)
    assert not counts.diagonal().any()
    assert bool((counts + 500 * torch.eye(4) > 120).all())  # 167 of each are expected, with a deviation of 11
    assert torch.equal(other_labels(y, 4, seed=1), wrong)
    assert not torch.equal(other_labels(y, 4, seed=2), wrong)


RATES: dict[str, Callable[[int], float]] = {
    "constant": lambda t: 1.0,
    "step": lambda t: 1.0 if t < 6 else 0.1,
    "cosine": lambda t: (1 + math.cos(math.pi * t / 10)) / 2,
    "one_cycle": lambda t: (
        1 / 25 + 24 / 25 * (1 - math.cos(math.pi * t / 2)) / 2
        if t <= 2
        else 4e-6 + (1 - 4e-6) * (1 + math.cos(math.pi * (t - 2) / 7)) / 2
    ),
}


@pytest.mark.parametrize("schedule", RATES)
def test_the_rate_follows_its_schedule(schedule):
    sample = problems.conv()
    loop = Loop(sample, "train")
    for t in range(10):
        loop.step(F.cross_entropy(loop.model(sample.x[REST]), sample.y[REST]), RATE * RATES[schedule](t))
    found = call("fine_tuning", sample, batch_norm="train", batch_size=16, epochs=10, schedule=schedule)
    loop.assert_equals(found)


@pytest.mark.parametrize("method", ["fine_tuning", *TRAINED])
def test_running_statistics_are_those_of_the_training_or_stay(method):
    sample = problems.conv()
    buffers = {name: value.clone() for name, value in sample.model.named_buffers()}
    still = dict(call(method, sample, batch_norm="eval").model.named_buffers())
    assert all(torch.equal(still[name], value) for name, value in buffers.items())
    moved = dict(call(method, sample, batch_norm="train").model.named_buffers())
    assert not any(torch.equal(moved[name], value) for name, value in buffers.items())
    assert all(torch.equal(value, buffers[name]) for name, value in sample.model.named_buffers())
    usual = dict(
        getattr(baselines, method)(
            sample.model, None, sample.loss, sample.part(S), data=sample.data
        ).model.named_buffers()
    )
    assert torch.equal(usual["norm.running_mean"], buffers["norm.running_mean"]) == (method == "fine_tuning")


def with_dropout() -> problems.Sample:
    sample = problems.mlp(n=16)
    layers = list(sample.model.children())
    sample.model = nn.Sequential(*layers[:2], nn.BatchNorm1d(6).double(), nn.Dropout(0.4), layers[2]).eval()
    return sample


@pytest.mark.parametrize("method", ["fine_tuning", *TRAINED])
def test_the_same_seed_gives_the_same_model_whatever_is_drawn_meanwhile(method):
    sample, seen = with_dropout(), []

    def watch(epoch: int, model: nn.Module) -> None:
        torch.rand(7)
        assert not any(module.training for module in model.modules())
        seen.append((epoch, snapshot(model)))

    random = torch.get_rng_state()
    first = call(method, sample, batch_norm="train", after_epoch=watch)
    assert torch.equal(torch.get_rng_state(), random)
    torch.rand(3)
    assert snapshot(call(method, sample, batch_norm="train").model) == snapshot(first.model)
    assert snapshot(call(method, sample, batch_norm="train", seed=SEED + 1).model) != snapshot(first.model)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert seen[0][1] != seen[1][1]
    assert seen[1][1] == snapshot(first.model)
    assert snapshot(call(method, sample, batch_norm="eval").model) != snapshot(first.model)  # dropout is off there


def test_a_single_sample_at_the_end_of_a_pass_joins_the_batch_before():
    sizes = [len(next(batches)) for batches in [shuffled_places(11, 5, 0, torch.device("cpu"), 2)] for _ in range(4)]
    assert sizes == [5, 6, 5, 6]
    sizes = [len(next(batches)) for batches in [shuffled_places(11, 5, 0, torch.device("cpu"))] for _ in range(4)]
    assert sizes == [5, 5, 1, 5]
    sample = with_dropout()
    assert call("fine_tuning", sample, batch_norm="train", batch_size=5).notes[0].startswith("4 steps")
    assert call("fine_tuning", sample, batch_norm="eval", batch_size=5).notes[0].startswith("6 steps")
    for count, size in [(11, 5), (11, 10), (11, 11), (3, 1), (1, 1), (1, 4), (10, 5)]:  # steps make up whole passes
        for mode in ("train", "eval"):
            index = torch.arange(count)
            draw = Recipe(epochs=1, learning_rate=1.0, batch_size=size, batch_norm=mode).draw((index, index))
            assert torch.cat([next(draw.places) for _ in range(draw.steps)]).sort().values.equal(index)
    alone = {"data": sample.data, "progress": False}
    with refused(InvalidData, 'this one is a single sample. Pass batch_norm="eval"', sample.model):
        baselines.scrub(sample.model, None, sample.loss, sample.part(slice(3, 4)), **alone)
    baselines.scrub(sample.model, None, sample.loss, sample.part(slice(3, 4)), batch_norm="eval", **alone)
    baselines.neggrad_plus(sample.model, None, sample.loss, sample.part(slice(3, 4)), **alone)


@pytest.mark.parametrize("method", ["fine_tuning", *TRAINED, "gradient_ascent_until"])
def test_what_diverges_is_refused(method):
    sample = with_dropout()
    options = {"stop_accuracy": 0.0} if method == "gradient_ascent_until" else {}
    with refused(Diverged, "diverged: the loss is (nan|inf) in step|(is|are) NaN or infinite", sample.model):
        call(method, sample, learning_rate=1e200, epochs=6, batch_norm="eval", **options)


@pytest.mark.parametrize("method", TRAINED)
def test_s_is_found_among_the_data_or_refused(method):
    sample = problems.conv()
    with refused(InvalidData, "5 of the 5 samples to forget are not in", sample.model):
        call(method, sample, data=sample.part(slice(8, 16)))
    with refused(InvalidData, "Nothing remains", sample.model):
        call(method, sample, data=sample.part(S))
    backwards = sample.part(torch.arange(15, -1, -1))  # another order is another training, and no other data
    assert call(method, sample, data=backwards).notes[0].split(";")[0] == call(method, sample).notes[0].split(";")[0]
    if method != "neggrad_plus":
        binary = problems.linear("binary_cross_entropy", n=16)
        with refused(InvalidSetting, f"{method} is for classes: it needs .* one class index a sample", binary.model):
            call(method, binary)


@every_mode
def test_only_theta_moves(mode):
    sample = problems.conv()
    found = call("neggrad_plus", sample, parameters="head", batch_norm=mode).model
    moved = {name for name, p in found.named_parameters() if not torch.equal(p, sample.model.get_parameter(name))}
    assert moved == {"head.weight", "head.bias"}
    assert all(p.requires_grad for p in found.parameters())


def test_bfloat16_in_the_layers_or_in_the_model():
    sample = problems.conv(dtype=torch.float32)
    plain, quick = (call("neggrad_plus", sample, autocast=on) for on in (False, True))
    assert quick.step.dtype == torch.float32
    assert not torch.equal(quick.step, plain.step)
    assert float((quick.step - plain.step).norm() / plain.step.norm()) < 0.1
    half = problems.Sample("half", copy.deepcopy(sample.model).bfloat16(), sample.loss, sample.x, sample.y)
    found = call("neggrad_plus", half).model
    assert {value.dtype for value in found.state_dict().values()} == {torch.bfloat16, torch.int64}
    assert not torch.equal(found.get_buffer("norm.running_mean"), half.model.get_buffer("norm.running_mean"))
    wrapped = problems.Sample("wrapped", nn.DataParallel(sample.model), sample.loss, sample.x, sample.y)
    assert snapshot(call("neggrad_plus", wrapped).model.module) == snapshot(plain.model)  # type: ignore[arg-type]


def test_the_curvature_says_which_decay():
    sample = problems.mlp(n=16)
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=1e-2, weight_decay=DECAY, progress=False
    )
    options: Any = {"data": sample.data, "progress": False}
    arguments = (sample.model, curvature, sample.loss, sample.part(S))
    found = baselines.neggrad_plus(*arguments, **options)
    assert torch.equal(found.step, baselines.neggrad_plus(*arguments, weight_decay=DECAY, **options).step)
    alone = (sample.model, None, sample.loss, sample.part(S))
    usual = baselines.neggrad_plus(*alone, **options)
    assert torch.equal(usual.step, baselines.neggrad_plus(*alone, weight_decay=5e-4, **options).step)
    assert not torch.equal(usual.step, found.step)
