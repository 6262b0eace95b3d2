"""A step and a repair at a length that is chosen by a few of both: what is handed back, told, refused."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.calibration.lasting import LastingErasure, _reasons
from ssse.calibration.lengths import LENGTHS, START, Seen, Splits, Trial, shortfall
from ssse.errors import Diverged, InvalidData, InvalidSetting, ModelMismatch
from ssse.problem.short_training import Trainee
from tests.support import digit_networks as networks
from tests.support import problems
from tests.support.digits import digits
from tests.support.known_networks import by_hand, samples
from tests.support.refusals import NAN, fit, refused, snapshot


@cache
def curvature() -> ssse.Curvature:
    return ssse.Curvature.fit(
        networks.original(), "cross_entropy", networks.part(torch.arange(networks.TRAINED)), rows="margin",
        structure="lowrank", weight_decay=networks.DECAY, damping=networks.DECAY, progress=False,
    )  # fmt: skip


def erased(**options: Any) -> LastingErasure:
    settings: dict[str, Any] = {
        "model": networks.original(),
        "curvature": curvature(),
        "loss_fn": "cross_entropy",
        "forget": networks.part(networks.forgotten()),
        "retained": networks.part(networks.retained()),
        "held_out": networks.part(torch.arange(networks.TRAINED, len(digits()[1]))),
        "training": networks.TRAINING,
        "dampings": (1,),
        "progress": False,
    }
    return ssse.erase_and_repair(**{**settings, **options})


def test_a_new_model_and_the_curve_it_was_chosen_from():
    model = networks.original()
    before = snapshot(model)
    done = erased()
    assert snapshot(model) == before
    assert not any(module.training for module in done.model.modules())
    assert all(p.grad is None and p.requires_grad for p in done.model.parameters())
    beside = [trial.length for trial in done.trials if trial.length not in LENGTHS]
    assert len(beside) <= 1  # between the best and the next
    assert START in {trial.length for trial in done.trials}
    chosen = next(trial for trial in done.trials if trial.length == done.length)
    assert chosen.shortfall == min(trial.shortfall for trial in done.trials)
    assert done.scale == chosen.scale
    assert done.training.epochs == 2
    assert done.epochs == 2 * len(done.trials)
    for trial in done.trials:
        assert trial.shortfall == pytest.approx(shortfall(trial.seen, done.original))
        assert trial.scale / trial.length == pytest.approx(done.scale / done.length)
    assert chosen.seen.forgotten == pytest.approx(networks.accuracy(done.model, networks.forgotten()))
    assert chosen.seen.expected == pytest.approx(networks.accuracy(done.model, networks.held_out()))
    assert done.original.forgotten == pytest.approx(networks.accuracy(model, networks.forgotten()))


def test_it_is_the_step_of_that_length_and_the_librarys_repair():
    done = erased(lengths=[0.3], epochs=1, learning_rate=0.05)
    forget = networks.part(networks.forgotten())
    step = ssse.erase(
        networks.original(), curvature(), "cross_entropy", forget, scale=1.0, push=0.0, override=["step"],
        progress=False,
    )  # fmt: skip
    assert done.step.push == 0
    assert done.scale == pytest.approx(0.3 / step.reach)
    assert done.step.solve_residual == step.diagnostics.solve_residual
    start, retained = step.at(done.scale), networks.part(networks.retained())
    repaired = ssse.repair(
        start, retained, "cross_entropy", forget=forget, training=networks.TRAINING, epochs=1, learning_rate=0.05,
        progress=False,
    )  # fmt: skip
    assert snapshot(repaired.model) == snapshot(done.model)
    (trial,) = done.trials
    assert trial.before_repair.forgotten == pytest.approx(networks.accuracy(start, networks.forgotten()))


def on_grid(done: LastingErasure, lengths: Sequence[float]) -> list[Trial]:
    """Without the one beside the best."""
    return [trial for trial in done.trials if trial.length in lengths]


def test_a_softer_direction_is_tried_from_the_best_length_on():
    """Its trials are those that it has alone; what has the smallest shortfall of all is kept, with its own step."""
    options: dict[str, Any] = {"lengths": (0.2, 0.3), "start": 0.3, "epochs": 1}
    done, first = erased(dampings=(1, 8), **options), erased(**options)
    best = min(on_grid(first, (0.2, 0.3)), key=lambda trial: trial.shortfall)
    soft = erased(dampings=(8,), **{**options, "start": best.length})
    assert on_grid(done, (0.2, 0.3)) == on_grid(first, (0.2, 0.3)) + on_grid(soft, (0.2, 0.3))
    chosen = min(done.trials, key=lambda trial: trial.shortfall)
    assert (done.damping, done.length, done.scale) == (chosen.damping, chosen.length, chosen.scale)
    assert done.step.damping == done.damping
    assert soft.damping == pytest.approx(8 * curvature().damping)
    assert str(done).count("←") == 1


@pytest.mark.parametrize("dampings", [(), (0.0,), (1, -4), (NAN,), 4.0, "4", None])
def test_dampings_that_are_none(dampings):
    with refused(InvalidSetting, "dampings are those of the direction over the curvature's", networks.original()):
        erased(dampings=dampings)


def test_the_same_seed_gives_the_same():
    options: dict[str, Any] = {"lengths": (0.3, 0.2, 0.3), "start": 0.2, "epochs": 1}
    first, again, other = erased(**options), erased(**options), erased(**options, seed=1)
    assert snapshot(first.model) == snapshot(again.model) != snapshot(other.model)
    assert first.trials == again.trials
    tried = [trial.length for trial in on_grid(first, (0.2, 0.3))]
    assert tried == sorted(set(tried))


def test_what_it_tells():
    done = erased(lengths=(0.2, 0.3), epochs=1)
    record = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert record["model"] is None
    assert record["length"] == done.length
    assert [trial["length"] for trial in record["trials"]] == [trial.length for trial in done.trials]
    assert record["step"]["k"] == len(networks.forgotten())
    assert record["training"]["epochs"] == 1
    lines = str(done).splitlines()
    assert lines[0] == f"verdict: {done.verdict}"
    rows = lines[lines.index(next(line for line in lines if "S right" in line)) + 1 :]
    assert len(rows) == 1 + len(done.trials)
    (marked,) = [row for row in rows if row.endswith("←")]
    chosen = next(trial for trial in done.trials if trial.length == done.length)
    assert marked.split()[:2] == [f"{done.damping:.2g}", f"{done.length:.2f}"]
    assert marked.split()[2] == f"{chosen.seen.forgotten:.1%}"
    assert marked.split()[-2] == f"{100 * chosen.shortfall:.2f}"


def still(retained: list, forget: list, held_out: list, **options: Any) -> LastingErasure:
    """A step and a repair of next to nothing on the model by hand: it says after them what it said before."""
    model = by_hand()
    fitted = ssse.Curvature.fit(
        model, "cross_entropy", [*retained, *forget], rows="margin", structure="lowrank", damping=0.1, progress=False
    )
    settings: dict[str, Any] = {"lengths": (1e-9,), "epochs": 1, "learning_rate": 1e-9, "progress": False}
    settings |= {"dampings": (1,)}
    return ssse.erase_and_repair(
        model, fitted, "cross_entropy", forget, retained=retained, held_out=held_out, **{**settings, **options}
    )


def test_what_is_still_remembered_is_said():
    retained, forget = samples("012" * 20, "012" * 20), samples("0" * 12, "0" * 12, 1)
    wrong = samples("1" * 20 + "12" * 20, "0" * 20 + "12" * 20, 2)
    done = still(retained, forget, wrong)
    assert (done.trials[0].seen.forgotten, done.trials[0].seen.expected) == (1, 0)
    assert done.verdict == "caution"
    assert len(done.reasons) == 1
    assert done.reasons[0].startswith("S is still remembered: 100.0% of it are right, and 0.0% of held-out samples")
    assert "It was the longest that was tried." in done.reasons[0]
    assert "  because S is still remembered" in str(done)
    assert done.resolution == 0
    good = still(retained, forget, samples("0" * 20 + "12" * 20, "0" * 20 + "12" * 20, 2))
    assert (good.verdict, good.reasons) == ("ok", ())


def test_samples_that_are_known_less_than_strangers_are_said():
    """Wrong on all of S and right on all held-out samples: forgotten too well, which is a trace."""
    retained, wrong = samples("012" * 20, "012" * 20), samples("1" * 12, "0" * 12, 1)
    done = still(retained, wrong, samples("0" * 20 + "12" * 20, "0" * 20 + "12" * 20, 2))
    assert (done.trials[0].seen.forgotten, done.trials[0].seen.expected) == (0, 1)
    assert done.verdict == "caution"
    assert done.reasons[0].startswith("S stands out: 0.0% of it are right, and 100.0% of held-out samples")


def test_a_model_that_the_repair_has_not_healed_is_said():
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("012" * 20, "012" * 20))
    splits = Splits.of(trainee, samples("0" * 12, "0" * 12, 1), samples("012" * 20, "012" * 20, 2), 72)
    original = splits.look(trainee)
    for retained, staying, said in [
        (0.98, 0.98, []),
        (0.96, 0.98, ["96.0% of the retained samples are right, before 100.0%"]),
        (0.98, 0.90, ["90.0% of the held-out samples of what stays are right, before 100.0%"]),
        (0.50, 0.50, ["50.0% of the retained samples", "50.0% of the held-out samples of what stays"]),
    ]:
        seen = Seen(0.9, 0.9, retained, staying, 1.0)
        reasons = _reasons(Trial(1e-3, 0.5, 1.0, seen, seen, 0.1, 0.0), original, splits, [0.5])
        assert len(reasons) == len(said)
        for reason, words in zip(reasons, said, strict=True):
            assert reason.startswith(f"The repair has not healed the model: {words}")


def test_what_confidence_tells_where_accuracy_does_not_is_said():
    """As often right, and yet apart: more confident is memory, less a trace; few samples tell nothing."""
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("012" * 20, "012" * 20))
    for count, words in ((200, True), (2, False)):
        forget, held_out = samples("012" * count, "012" * count, 1), samples("012" * count, "012" * count, 2)
        splits = Splits.of(trainee, forget, held_out, 600)
        seen = splits.look(trainee)
        assert abs(seen.told - 0.5) < 0.5
        for told, said in ((0.6, "more confidence"), (0.4, "less confidence"), (0.53, ""), (math.nan, "")):
            one = replace(seen, told=told)
            reasons = _reasons(Trial(1e-3, 0.5, 1.0, one, one, 0.0, 0.0), seen, splits, [0.5])
            assert [said in reason for reason in reasons] == ([True] if said and words else [])
            assert not any("60%" not in reason for reason in reasons)


@pytest.mark.parametrize(("push", "words"), [(0.5, "push= is for networks"), (2.0, "from 0 .* to 1")])
def test_a_model_linear_in_theta_is_not_pushed(push, words):
    sample = problems.linear("cross_entropy")
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2, progress=False)
    with refused(InvalidSetting, words, sample.model):
        ssse.erase_and_repair(
            sample.model, curvature, sample.loss, sample.part(slice(0, 4)), retained=sample.part(slice(4, None)),
            held_out=sample.part(slice(0, 4)), push=push, progress=False,
        )  # fmt: skip


def test_of_a_class_of_which_nothing_stays_none_is_to_be_right():
    retained, forget = samples("12" * 30, "12" * 30), samples("0" * 40, "0" * 40, 1)
    done = still(retained, forget, samples("012" * 20, "012" * 20, 2))
    assert (done.trials[0].seen.forgotten, done.trials[0].seen.expected) == (1, 0)
    (reason,) = done.reasons
    assert reason.startswith("S is still remembered: 100.0% of it are right, and nothing of its kind stays.")


def test_all_right_on_both_sides_is_known_to_the_last_place():
    """Weights of many classes add up to one and the last place of a number; that is no error below zero."""
    forget, held_out = samples("0012", "0012", 1), samples("012" * 17 + "00", "012" * 17 + "00", 2)
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("012" * 20, "012" * 20))
    splits = Splits.of(trainee, forget, held_out, 64)
    seen = splits.look(trainee)
    assert 1 - 1e-12 < seen.expected <= 1
    assert _reasons(Trial(1e-3, 0.5, 1.0, seen, seen, 0.0, 0.0), seen, splits, [0.5]) == []
    for count in (1, 7, 11):
        done = still(samples("012" * 20, "012" * 20), forget, samples("012" * count, "012" * count, 2))
        assert done.resolution == pytest.approx(0, abs=1e-6)


class OfDicts(nn.Module):
    """The network, of inputs by name."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, pixels: Tensor) -> Tensor:
        return self.inner(pixels)


def test_batches_that_are_dictionaries():
    def named(index: Tensor) -> list[dict[str, Tensor]]:
        ((x, y),) = networks.part(index)
        return [{"pixels": x, "labels": y}]

    model = OfDicts(networks.original()).eval()
    everything = named(torch.arange(networks.TRAINED))
    fitted = ssse.Curvature.fit(
        model, "cross_entropy", everything, rows="margin", structure="lowrank", weight_decay=networks.DECAY,
        damping=networks.DECAY, progress=False,
    )  # fmt: skip
    done = erased(
        model=model, curvature=fitted, forget=named(networks.forgotten()), retained=named(networks.retained()),
        held_out=named(torch.arange(networks.TRAINED, 1797)), lengths=[0.3], epochs=1,
    )  # fmt: skip
    plain = erased(lengths=[0.3], epochs=1)
    assert done.trials[0].seen.forgotten == pytest.approx(plain.trials[0].seen.forgotten)
    assert done.trials[0].shortfall == pytest.approx(plain.trials[0].shortfall)


@pytest.mark.parametrize("lengths", [(), (0.0,), (0.5, -0.1), (NAN,), (math.inf,), 0.5, "0.5", None, [None]], ids=repr)
def test_lengths_that_are_none(lengths):
    with refused(InvalidSetting, "lengths are those of the step over ‖θ‖, positive numbers", networks.original()):
        erased(lengths=lengths)


@pytest.mark.parametrize("start", [0.0, -1.0, NAN, math.inf, None, "0.5"])
def test_a_start_that_is_none(start):
    with refused(InvalidSetting, "start must be a positive number", networks.original()):
        erased(start=start)


def test_what_is_refused():
    model, forget = networks.original(), networks.part(networks.forgotten())
    retained = networks.part(networks.retained())
    with refused(InvalidData, f"{len(networks.forgotten())} of the retained samples are forgotten ones", model):
        erased(retained=[*retained, *forget])
    with refused(InvalidData, f"No held-out sample is of class {networks.GONE}, of which", model):
        erased(held_out=networks.part(networks.held_out(same=False)))
    others = networks.part(networks.held_out(same=False))
    with refused(InvalidData, f"{len(networks.forgotten())} of the held-out samples are forgotten ones, or bit", model):
        erased(held_out=[*others, *forget])
    with refused(InvalidData, "There are no samples to forget", model):
        erased(forget=iter(forget))  # it is read twice
    with refused(InvalidData, "There are no held-out samples", model):
        erased(held_out=[])
    with refused(InvalidData, "The retained data is empty", model):
        erased(retained=[])
    with refused(InvalidSetting, "training must be an ssse.Training, not a dict", model):
        erased(training={"epochs": 3})
    with refused(InvalidSetting, "epochs must be a whole number from 1 on, not 0", model):
        erased(epochs=0)
    with refused(InvalidSetting, "learning_rate must be a positive number", model):
        erased(learning_rate=-0.1)
    with refused(ModelMismatch, "curvature", networks.retrained()):
        erased(model=networks.retrained())


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_losses_without_classes(loss):
    sample = problems.mlp(loss)
    with refused(InvalidSetting, f"for the loss cross_entropy, not {loss}", sample.model):
        ssse.erase_and_repair(
            sample.model, fit(sample), loss, sample.part(slice(0, 2)), retained=sample.part(slice(2, 30)),
            held_out=sample.part(slice(30, 40)), progress=False,
        )  # fmt: skip


def test_a_repair_that_diverges_at_every_length():
    words = "The repair diverged after every step that was tried .lengths 0.2, 0.3.; nothing was changed. Use a smaller"
    with refused(Diverged, words, networks.original()):
        erased(learning_rate=1e200, lengths=(0.2, 0.3))


def test_a_repair_that_diverges_at_one_length_is_not_kept(monkeypatch):
    """From 0.3 on it does: the next is a shorter one, and no longer one is tried."""
    own, start = Trainee.train, networks.original().get_parameter("6.weight")

    def train(self: Trainee, training: ssse.Training, **options: Any) -> None:
        if float((self.given.get_parameter("6.weight") - start).detach().norm()) > limit:
            raise Diverged("The repair diverged: the loss is nan in epoch 1.")
        own(self, training, **options)

    step = ssse.erase(
        networks.original(), curvature(), "cross_entropy", networks.part(networks.forgotten()), scale=1.0,
        push=0.0, override=["step"], progress=False,
    )  # fmt: skip
    limit = float((step.at(0.25 / step.reach).get_parameter("6.weight") - start).detach().norm())
    monkeypatch.setattr(Trainee, "train", train)
    done = erased(lengths=(0.2, 0.3), epochs=1)
    found = {trial.length: math.isinf(trial.shortfall) for trial in done.trials}
    assert (found.pop(0.2), found.pop(0.3)) == (False, True)
    assert all(0.2 < length < 0.25 for length in found)  # beside the best
    assert done.length < 0.25
    record = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    (lost,) = [trial for trial in record["trials"] if trial["length"] == 0.3]
    assert lost["shortfall"] is lost["seen"] is None
    assert ["0.30", "the repair diverged"] in [line.split(maxsplit=2)[1:] for line in str(done).splitlines()]


def test_a_step_of_nothing():
    """Samples that counted zero times were never learnt."""
    retained = [(x, y, torch.ones(len(y), dtype=torch.float64)) for x, y in samples("012" * 10, "012" * 10)]
    forget = [(x, y, torch.zeros(len(y), dtype=torch.float64)) for x, y in samples("012", "012", 1)]
    with pytest.raises(InvalidSetting, match="The step for these samples is zero"):
        still(retained, forget, samples("012", "012", 2))


def test_a_kept_probe_that_the_whole_step_ruins_does_not_stop_the_search():
    model, forget = networks.original(), networks.part(networks.forgotten())
    ((x, y),) = networks.part(torch.arange(networks.TRAINED, len(digits()[1])))
    ruined = ssse.erase(model, curvature(), forget=forget, override=ssse.BOUNDS).at(5.0)
    lost = (model(x).argmax(1) == y) & (ruined(x).argmax(1) != y)
    assert int(lost.sum()) > 30
    kept = curvature().with_damping(networks.DECAY / 10).with_probe([(x[lost], y[lost])])
    with pytest.raises(ssse.Refused) as caught:
        ssse.erase(model, kept, forget=forget)
    assert "probe" in caught.value.diagnostics.broken
    assert erased(curvature=kept, lengths=(0.1,), start=0.1).length == 0.1


def test_interrupted_it_leaves_everything_as_it_was(monkeypatch):
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainee, "_loss", interrupt)
    before, state = snapshot(networks.original()), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        erased()
    assert snapshot(networks.original()) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_model_comes_back_in_its_own_precision_and_wrapper(dtype):
    model = nn.DataParallel(copy.deepcopy(networks.original()).to(dtype)).eval()

    def cast(index: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(x.to(dtype), y) for x, y in networks.part(index)]

    fitted = ssse.Curvature.fit(
        model, "cross_entropy", cast(torch.arange(networks.TRAINED)), rows="margin", structure="lowrank",
        weight_decay=networks.DECAY, damping=networks.DECAY, progress=False,
    )  # fmt: skip
    done = erased(
        model=model, curvature=fitted, forget=cast(networks.forgotten()), retained=cast(networks.retained()),
        held_out=cast(torch.arange(networks.TRAINED, 1797)), lengths=[0.3], epochs=1,
    )  # fmt: skip
    assert isinstance(done.model, nn.DataParallel)
    assert {value.dtype for value in done.model.state_dict().values()} == {dtype, torch.int64}
    ((x, y),) = cast(networks.forgotten())
    right = float((done.model(x).argmax(1) == y).double().mean())
    assert right == pytest.approx(done.trials[0].seen.forgotten, abs=2.5 / len(y))  # worked on in float32
