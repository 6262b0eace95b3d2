"""Relearn time: exact on a quadratic, deterministic, and nothing of the model's changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.metrics.relearning import Relearn, anamnesis, relearn_time
from tests.support import problems
from tests.support.refusals import INF, NAN, put, refused, snapshot

NO_DATA: list[tuple[Tensor, Tensor]] = []


def scalar(value: float) -> tuple[nn.Linear, list[tuple[Tensor, Tensor]]]:
    """z = θ·1 with target 0: the loss is θ²/2, and each step multiplies θ by 1 − η."""
    model = nn.Linear(1, 1, bias=False).double().eval()
    nn.init.constant_(model.weight, value)
    return model, [(torch.ones(3, 1).double(), torch.zeros(3, 1).double())]


def test_by_hand():
    model, data = scalar(4.0)
    found = relearn_time(model, "mse", data, target=0.5, learning_rate=0.5)  # θ = 4, 2, 1
    assert found.steps == 2
    assert found.losses == pytest.approx((8.0, 2.0, 0.5))
    assert str(found) == "2 steps to a loss of 0.5 (from 8)"


def test_at_the_target_already():
    model, data = scalar(1.0)
    found = relearn_time(model, "mse", data, target=0.5)
    assert (found.steps, found.losses) == (0, (0.5,))


def test_not_within_the_steps():
    model, data = scalar(4.0)
    found = relearn_time(model, "mse", data, target=1e-9, learning_rate=0.5, max_steps=3)
    assert found.steps is None
    assert len(found.losses) == 4
    assert "more than 3 steps" in str(found)


def test_the_same_as_torchs_sgd():
    sample = problems.mlp()
    model = problems.mlp().model
    optimiser, expected = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(6):
        loss = nn.functional.cross_entropy(model(sample.x), sample.y)
        expected.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = relearn_time(sample.model, sample.loss, sample.data, target=0.0, learning_rate=0.1, max_steps=5)
    assert found.losses == pytest.approx(expected)


@pytest.mark.parametrize("make", [problems.mlp, problems.conv, problems.tied], ids=["mlp", "conv", "tied"])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_the_model_stays_and_twice_is_the_same(make, batch_size):
    sample = make()
    before = snapshot(sample.model)
    options: dict[str, Any] = {"target": 0.2, "learning_rate": 0.5, "max_steps": 30, "batch_size": batch_size}
    first = relearn_time(sample.model, sample.loss, sample.data, **options)
    torch.manual_seed(99)
    with torch.no_grad():
        second = relearn_time(sample.model, sample.loss, sample.data, **options)
    assert first == second
    assert first.losses[-1] < first.losses[0]
    assert snapshot(sample.model) == before


def test_training_mode_makes_no_difference():
    sample = problems.conv()
    options: dict[str, Any] = {"target": 0.0, "max_steps": 5}
    expected = relearn_time(sample.model, sample.loss, sample.data, **options)
    sample.model.train()
    before = snapshot(sample.model)
    assert relearn_time(sample.model, sample.loss, sample.data, **options) == expected
    assert snapshot(sample.model) == before


def test_how_the_loader_cuts_the_data_makes_no_difference():
    sample = problems.mlp()
    cut = [(sample.x[:7], sample.y[:7]), {"x": sample.x[7:], "y": sample.y[7:]}]
    for batch_size in (None, 4):
        options: dict[str, Any] = {"target": 0.0, "max_steps": 10, "batch_size": batch_size}
        whole = relearn_time(sample.model, sample.loss, sample.data, **options)
        assert relearn_time(sample.model, sample.loss, cut, **options).losses == pytest.approx(whole.losses)


def test_large_forget_sets_are_passed_in_parts(monkeypatch):
    sample = problems.mlp()
    whole = relearn_time(sample.model, sample.loss, sample.data, target=0.0, max_steps=10)
    monkeypatch.setattr("ssse.metrics.relearning.PASS", 7)
    parts = relearn_time(sample.model, sample.loss, sample.data, target=0.0, max_steps=10)
    assert parts.losses == pytest.approx(whole.losses)


def test_mini_batches_depend_on_the_seed_and_pass_over_everything():
    sample = problems.mlp()
    options: dict[str, Any] = {"target": 0.0, "max_steps": 8, "learning_rate": 0.1}
    one, other = (relearn_time(sample.model, sample.loss, sample.data, batch_size=4, seed=s, **options) for s in (0, 1))
    assert one.losses[0] == other.losses[0]
    assert one.losses[1] != other.losses[1]
    everything = relearn_time(sample.model, sample.loss, sample.data, batch_size=len(sample.y), **options)
    assert everything.losses == pytest.approx(relearn_time(sample.model, sample.loss, sample.data, **options).losses)


def test_frozen_parameters_and_losses_of_ones_own():
    sample = problems.mlp()
    nn.Module.requires_grad_(next(sample.model.children()), False)
    named = relearn_time(sample.model, "cross_entropy", sample.data, target=0.0, max_steps=4)

    def own(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, y, reduction="sum")

    assert relearn_time(sample.model, own, sample.data, target=0.0, max_steps=4).losses == pytest.approx(named.losses)


def test_a_model_that_knew_the_samples_is_back_sooner():
    """Nothing is erased, only shrunk: it is back before a model that never saw the samples has learned them."""
    sample = problems.converged(problems.linear("cross_entropy", n=40, p=8), 1e-3)
    never = problems.linear("cross_entropy", n=40, p=8)
    never.x, never.y = sample.x[10:], sample.y[10:]
    problems.converged(never, 1e-3)
    forget = sample.part(slice(0, 10))
    goal = relearn_time(sample.model, sample.loss, forget, target=1e9).losses[0] * 1.05
    shrunk = problems.linear("cross_entropy", n=40, p=8).model
    with torch.no_grad():
        for mine, theirs in zip(shrunk.parameters(), sample.model.parameters(), strict=True):
            mine.copy_(0.7 * theirs)
    options: dict[str, Any] = {"target": goal, "learning_rate": 0.1, "max_steps": 2000}
    times = [relearn_time(model, sample.loss, forget, **options) for model in (shrunk, never.model)]
    ratio = anamnesis(times[0], times[1])
    assert 0 < ratio < 0.7
    assert not ratio.flags
    assert anamnesis(times[1], times[1]) == 1.0


def relearn(steps: int | None, taken: int = 10, **changes: Any) -> Relearn:
    losses = (1.0,) * ((taken if steps is None else steps) + 1)
    return Relearn(steps, losses, **{"target": 0.1, "learning_rate": 0.01, "batch_size": None, **changes})


def test_anamnesis_by_hand():
    assert anamnesis(relearn(6), relearn(8)) == 0.75
    bound = anamnesis(relearn(None, taken=19), relearn(4))
    assert bound == 5.0
    assert "A lower bound" in bound.flags[0]
    nothing = anamnesis(relearn(0), relearn(0))
    assert nothing == 1.0
    assert "Choose a lower target" in nothing.flags[0]
    assert anamnesis(relearn(3), relearn(0)) == math.inf


@pytest.mark.parametrize(
    ("erased", "retrained", "error", "match"),
    [
        (relearn(3), relearn(None), InvalidData, "did not reach the target within 10 steps.*Raise max_steps"),
        (relearn(3), relearn(4, target=0.2), InvalidSetting, "target is 0.1 for the erased and 0.2 for the retrained"),
        (relearn(3), relearn(4, learning_rate=0.1), InvalidSetting, "learning_rate is 0.01"),
        (relearn(3), relearn(4, batch_size=8), InvalidSetting, "batch_size is None"),
    ],
)
def test_what_does_not_compare_is_refused(erased, retrained, error, match):
    with pytest.raises(error, match=match):
        anamnesis(erased, retrained)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target": NAN}, "target is a mean loss"),
        ({"target": INF}, "target is a mean loss"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": INF}, "learning_rate must be"),
        ({"max_steps": 0}, "max_steps must be 1 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more, or None"),
        ({"learning_rate": 1e200}, "Relearning diverged: .*Take a smaller one"),
    ],
)
def test_settings_without_a_meaning_are_refused(options, match):
    model, data = scalar(4.0)
    with refused(InvalidSetting, match, model):
        relearn_time(model, "mse", data, **{"target": 0.5, **options})


def test_data_and_models_that_cannot_be_used_are_refused():
    sample = problems.linear("mse")
    with refused(InvalidData, "forget set is empty", sample.model):
        relearn_time(sample.model, "mse", NO_DATA, target=0.1)
    with refused(InvalidData, "sample 3 of a batch of 40 holds NaN", sample.model):
        relearn_time(sample.model, "mse", [(put(sample.x, (3, 0), NAN), sample.y)], target=0.1)
    with refused(InvalidData, "Each output needs its number", sample.model):
        relearn_time(sample.model, "mse", [(sample.x, sample.y[:, 0])], target=0.1)
    frozen = sample.model.requires_grad_(False)
    with refused(InvalidModel, "nothing to change", frozen):
        relearn_time(frozen, "mse", sample.data, target=0.1)
