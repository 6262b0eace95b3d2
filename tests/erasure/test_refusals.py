"""Steps that cannot be right: refused, unless overridden. Honest requests are not."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.erasure.health import staying
from ssse.erasure.refusal import IMPOSSIBLE_STEP, IMPOSSIBLE_STEP_OF_FEW
from ssse.errors import InvalidData
from tests.support import digits, problems, workspaces
from tests.support.refusals import attempt, refused, snapshot


@cache
def fitted(decay: float) -> ssse.Curvature:
    """As of a file that an earlier version wrote: what the gradient says of the weight decay is not known."""
    data = [digits.training_data()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ssse.DoubtfulSetting)  # a wrong one is meant
        curvature = ssse.Curvature.fit(digits.model(), "cross_entropy", data, weight_decay=decay, progress=False)
    return replace(curvature, decay_estimate=None)


def batch(places: list[int]) -> list[tuple[Tensor, Tensor]]:
    x, y = digits.training_data()
    return [(x[places], y[places])]


WRONG = pytest.mark.parametrize(
    "places", [digits.THIRTY_PERCENT, digits.THIRTY_PERCENT[:40], digits.places_of(8)], ids=["30%", "10%", "class"]
)


@WRONG
def test_a_step_with_a_weight_decay_1000_times_too_small_is_refused(places):
    model, curvature = digits.model(), fitted(digits.DECAY / 1000)
    with refused(ssse.Refused, "times as long as θ.*cannot be right.*weight decay", model) as caught:
        ssse.erase(model, curvature, forget=batch(places))
    seen = caught.value.diagnostics
    assert seen.verdict == "refused"
    assert "step" in seen.broken
    assert not seen.overridden
    assert seen.relative_step is not None
    assert seen.relative_step > 1
    assert seen.loss_after is not None


def test_a_step_that_overrides_a_bound_is_taken_and_says_so():
    model, curvature = digits.model(), fitted(digits.DECAY / 1000)
    before = snapshot(model)
    erasure = ssse.erase(model, curvature, forget=batch(digits.THIRTY_PERCENT), override=ssse.BOUNDS)
    found = erasure.diagnostics
    assert (found.overridden[0], found.verdict) == ("step", "caution")
    assert found.reasons[0].startswith("Overridden (step): The step is ")
    assert not found.sound
    assert "not stationary" in " ".join(found.reasons)  # what else is to be said comes after it
    assert found.to_dict()["overridden"] == list(found.overridden)
    assert digits.accuracy(model) > 0.88
    assert digits.accuracy(erasure.model) < 0.4  # this is what would have been served
    assert erasure.curvature.doubted
    assert snapshot(model) == before


@pytest.mark.parametrize("places", [[0], list(range(4)), *(WRONG.args[1])], ids=["one", "1%", "30%", "10%", "class"])
@pytest.mark.parametrize("override", [(), ssse.BOUNDS], ids=["", "override"])
def test_honest_requests_pass_and_override_nothing(places, override):
    found = ssse.erase(
        digits.model(), fitted(digits.DECAY), forget=batch(places), probe=[digits.held_out()], override=override
    ).diagnostics
    assert (found.broken, found.overridden, found.probe_worse) == ((), (), False)
    assert found.sound
    assert not any("probe" in reason or "Overridden" in reason for reason in found.reasons)
    assert found.probe_samples is not None
    assert found.probe_accuracy_after == pytest.approx(found.probe_accuracy_before, abs=0.05)


def test_what_has_no_step_stays_refused():
    sample = problems.linear("mse", n=12, p=4)
    lowrank = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=0.1, structure="lowrank")
    never = [(sample.x[:2] + 1, sample.y[:2])]
    dense = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=0.1, structure="dense")
    for curvature, samples, why in (
        (lowrank, never, "not among the curvature's rows"),
        (dense, [(100 * sample.x[:2], sample.y[:2])], "more curvature"),
    ):
        with refused(ssse.Refused, why, sample.model):
            ssse.erase(sample.model, curvature, forget=samples, override=ssse.BOUNDS)


def test_a_joint_stream_is_judged_as_one_request():
    """In parts that each look harmless, a wrong step would otherwise go as far."""
    model, curvature = digits.model(), fitted(digits.DECAY / 1000)
    answers = []
    for start in range(0, 40, 4):
        part = batch(list(range(start, start + 4)))
        answer = attempt(lambda: ssse.erase(model, curvature, forget=part, policy="joint"))  # noqa: B023
        if isinstance(answer, ssse.Erasure):
            model, curvature = answer.model, answer.curvature
        answers.append(type(answer))
    assert answers[0] is ssse.Erasure
    assert answers[-1] is ssse.Refused


def test_least_squares_is_exact_at_any_length():
    """One sample held θ near 0; without it θ is 1, thousands of times as long."""
    x, y = torch.tensor([[1e3], [1.0], [1.0]]).double(), torch.tensor([[0.0], [1.0], [1.0]]).double()
    model = nn.Linear(1, 1, bias=False).double().eval()
    decay = 1e-6
    with torch.no_grad():
        model.weight.copy_((x.T @ y) / (x.T @ x + 3 * decay))
    curvature = ssse.Curvature.fit(model, "mse", [(x, y)], weight_decay=decay)
    erasure = ssse.erase(model, curvature, forget=[(x[:1], y[:1])])
    assert float(next(erasure.model.parameters()).detach()) == pytest.approx(1, abs=1e-4)
    assert erasure.diagnostics.relative_step is not None
    assert erasure.diagnostics.relative_step > 100 * IMPOSSIBLE_STEP


@pytest.mark.parametrize("share", [0.2, 0.4, 0.58])
def test_a_step_is_not_long_because_there_was_little_to_learn(share):
    """Labels by chance: θ is nearly 0, and what a share of one class has to change is many times as long."""
    x, y = workspaces.data(1000, 3, 2)
    model = workspaces.train(x, y, 2)
    curvature = ssse.Curvature.fit(model, "cross_entropy", [(x, y)], weight_decay=workspaces.DECAY, progress=False)
    ones = (y == 1).nonzero().flatten()
    gone = ones[: round(share * len(ones))]
    stays = torch.ones(len(y), dtype=torch.bool)
    stays[gone] = False
    erasure = ssse.erase(model, curvature, forget=[(x[gone], y[gone])])
    found = erasure.diagnostics
    assert found.relative_step is not None
    assert found.relative_step > IMPOSSIBLE_STEP_OF_FEW
    before, after, retrained = (
        nn.utils.parameters_to_vector(of.parameters()).detach()
        for of in (model, erasure.model, workspaces.train(x[stays], y[stays], 2))
    )
    assert (after - retrained).norm() < 0.1 * (before - retrained).norm()


def test_the_probe_is_measured_and_shown():
    model, forget = digits.model(), batch(digits.places_of(8))
    x, y = digits.held_out()
    stays = y != 8
    erasure = ssse.erase(model, fitted(digits.DECAY), forget=forget, probe=[(x[:700], y[:700]), (x[700:], y[700:])])
    found = erasure.diagnostics
    assert found.probe_samples == int(stays.sum())  # the eights go, so they need not keep working
    for of, loss, accuracy in (
        (model, found.probe_loss_before, found.probe_accuracy_before),
        (erasure.model, found.probe_loss_after, found.probe_accuracy_after),
    ):
        with torch.no_grad():
            z = of(x[stays])
        assert loss == pytest.approx(float(nn.functional.cross_entropy(z, y[stays])))
        assert accuracy == pytest.approx(float((z.argmax(1) == y[stays]).double().mean()))
    assert f"({int(stays.sum()):,} samples)" in found.shown()["probe"]
    assert "probe" not in ssse.erase(model, fitted(digits.DECAY), forget=forget).diagnostics.shown()


def short_step(**options) -> ssse.Erasure:
    """With a weight decay ten times too small, not at its full length: one that no other measure refuses."""
    model, forget = digits.model(), batch(digits.THIRTY_PERCENT)
    return ssse.erase(model, fitted(digits.DECAY / 10), forget=forget, scale=0.6, **options)


def right_before_and_after(erasure: ssse.Erasure) -> tuple[Tensor, Tensor]:
    x, y = digits.held_out()
    with torch.no_grad():
        return digits.model()(x).argmax(1) == y, erasure.model(x).argmax(1) == y


def counted(probe: Tensor) -> int:
    """Of the held-out samples in the probe, those whose class stays: more of some classes go than of others."""
    forgotten = batch(digits.THIRTY_PERCENT)[0][1]
    return int(staying(digits.held_out()[1][probe].numpy(), forgotten.numpy(), digits.TRAINED).sum())


def test_a_step_that_ruins_the_probe_is_refused_unless_overridden():
    model, erasure = digits.model(), short_step()
    x, y = digits.held_out()
    before, after = right_before_and_after(erasure)
    lost = before & ~after
    probe = [(x[lost], y[lost])]  # all that it costs, and nothing else
    assert counted(lost) > 20
    with refused(ssse.Refused, f"Of {counted(lost)} probe samples 100.0% were right before.*0.0% after", model) as why:
        short_step(probe=probe)
    assert why.value.diagnostics.probe_accuracy_after == 0
    found = short_step(probe=probe, override=ssse.BOUNDS).diagnostics
    assert found.overridden == ("probe",)
    assert found.reasons[0].startswith("Overridden (probe): Of ")
    with refused(ssse.Refused, r'To take the step all the same: override=\("probe",\)\.', model):
        short_step(probe=probe, override=["step", "leverage", "share", "stationarity"])
    assert torch.equal(short_step(probe=probe, override=["probe"]).step, erasure.step)


def test_a_probe_that_gets_worse_is_a_reason_for_caution():
    before, after = right_before_and_after(short_step())
    x, y = digits.held_out()
    some = before | ~after  # all that it costs and nothing that it mends: about 7 %, beyond chance, no ruin
    found = short_step(probe=[(x[some], y[some])]).diagnostics
    assert (found.verdict, found.overridden, found.probe_samples) == ("caution", (), counted(some))
    assert (found.probe_worse, found.sound) == (True, False)
    assert any(reason.startswith(f"Of {counted(some):,} probe samples") for reason in found.reasons)


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "mse", "own"])
def test_the_probe_of_other_losses(loss):
    sample = problems.linear("mse" if loss == "own" else loss)
    given = (lambda z, y: (z - y).abs().sum(1)) if loss == "own" else loss
    rows: Any = {"rows": "empirical"} if loss == "own" else {}
    curvature = ssse.Curvature.fit(sample.model, given, sample.data, damping=10.0, **rows)
    found = ssse.erase(sample.model, curvature, given, sample.part(slice(0, 2)), probe=sample.data).diagnostics
    assert found.probe_samples == 40
    assert found.probe_loss_before is not None
    assert (found.probe_accuracy_before is not None) == (loss == "binary_cross_entropy")


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        ([], "The probe is empty"),
        ([(torch.zeros(3, 64).double(), torch.tensor([0, 1, 12]))], r"Labels must lie in 0 … 9"),
        ([(torch.zeros(3, 64), torch.tensor([0, 1, 2]))], r"The inputs are torch.float32"),
    ],
    ids=["empty", "labels", "dtype"],
)
def test_a_probe_that_cannot_be_one_is_refused(probe, why):
    with refused(InvalidData, why, digits.model()):
        ssse.erase(digits.model(), fitted(digits.DECAY), forget=batch([0]), probe=probe)
