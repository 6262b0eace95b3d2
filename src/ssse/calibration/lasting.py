"""A network's erasure that lasts: the direction of the exact step, the longest of it that is worth taking, and repair.

Not the damping but the length of the step over ‖θ‖ decides how much a network forgets for good, and what looks best
before the repair is not what is best after it. So a few lengths are tried, each is repaired, and what is kept is the
one after which S is like held-out samples of its kind while all else works as before. Nothing is retrained to choose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ssse.curvature.curvature import Curvature
from ssse.erasure.diagnostics import Diagnostics
from ssse.erasure.erase import erase
from ssse.erasure.health import NOISE, staying
from ssse.erasure.repair import repair_training
from ssse.erasure.request import matching_loss
from ssse.errors import Diverged, InvalidData, InvalidSetting
from ssse.problem.batches import Batch, regroup, take_samples, without_weights
from ssse.problem.labels import label_values
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.overlap import refuse_forgotten, refuse_forgotten_held_out
from ssse.problem.short_training import PASS, Trainee, Training
from ssse.system.progress import bar, say

T = TypeVar("T")

# Of the step over ‖θ‖. Measured on CIFAR-10: a ResNet-20 heals from steps of 0.8 in a tenth
# of its training, a network of 19,000 parameters from 0.35; whole classes need 0.3.
LENGTHS = (0.1, 0.17, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4)
START = 0.5
LOOKED = 5_000  # of the retained samples, at which the health of the model is judged
REMEMBERED = 0.05  # by which S may be better known than held-out samples before it is said
WORN = 0.03  # by which retained or held-out samples may do worse


@dataclass(frozen=True)
class Seen:
    """A model, in shares that are right.

    Attributes:
        forgotten: on S. expected: on held-out samples, in the classes and shares that S has.
        retained: on a part of D∖S. staying: on held-out samples of the classes that stay.
        kin: on retained samples of the classes that S has; None where none are left.
    """

    forgotten: float
    expected: float
    retained: float
    staying: float
    kin: float | None = None


@dataclass(frozen=True)
class Trial:
    """One length, after its repair.

    Attributes:
        length: of the step over ‖θ‖; 0 is the original without step or repair. scale: ε of the same step.
        seen: after the repair. before_repair: right after the step, with the statistics as they were.
        shortfall: the gap to a retrained model as these samples tell it: the mean of |forgotten − expected| and of what
            retained, staying and kin samples lost against the original. worn: the most that one of these lost.
    """

    length: float
    scale: float
    seen: Seen
    before_repair: Seen
    shortfall: float
    worn: float

    @classmethod
    def of(cls, length: float, scale: float, seen: Seen, before_repair: Seen, original: Seen) -> Trial:
        lost = losses_of(seen, original)
        return cls(length, scale, seen, before_repair, shortfall(seen, original), max(lost))

    @property
    def way(self) -> Literal[1, -1]:
        """Which way a better length may lie: longer where S stands out by more than the model suffers."""
        return 1 if self.seen.forgotten - self.seen.expected > self.worn else -1


@dataclass(frozen=True)
class LastingErasure:
    """One request to a network, answered by a step and a repair.

    Attributes:
        model: a new module in eval mode; the one passed in is untouched. No curvature fitted before belongs to it.
        verdict: "ok", or "caution" with the reasons: measured after the repair.
        length, scale: of the step that was taken. trials: all that were tried: the curve it was decided from. Where the
            repair diverged, the shortfall is infinite and what is seen is NaN.
        original: the model passed in, on the same samples. step: the diagnostics of the direction, at ε = 1.
        training: of each repair. epochs: of all of them together.
        resolution: the standard error of forgotten − expected, from so many samples.
    """

    model: nn.Module
    verdict: Literal["ok", "caution"]
    reasons: tuple[str, ...]
    length: float
    scale: float
    trials: tuple[Trial, ...]
    original: Seen
    step: Diagnostics
    training: Training
    epochs: int
    resolution: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """All but the model, as JSON can hold it."""
        plain = replace(self, model=nn.Identity(), step=None)  # type: ignore[arg-type]
        none = {"seen": None, "shortfall": None}  # JSON has neither NaN nor infinity
        trials = [asdict(trial) | (none if math.isinf(trial.shortfall) else {}) for trial in self.trials]
        return asdict(plain) | {"model": None, "step": self.step.to_dict(), "trials": trials}

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}", *(f"  because {reason}" for reason in self.reasons)]
        lines.append("length   S right  held-out  retained   staying  shortfall")
        shown = [Trial(0.0, 0.0, self.original, self.original, math.nan, 0.0), *self.trials]
        for trial in shown:
            if math.isinf(trial.shortfall):
                lines.append(f"{trial.length:6.2f}   the repair diverged")
                continue
            seen, mark = trial.seen, " ←" if trial.length == self.length else ""
            points = "" if math.isnan(trial.shortfall) else f"{100 * trial.shortfall:10.2f}{mark}"
            shares = f"{seen.forgotten:9.1%} {seen.expected:9.1%} {seen.retained:9.1%} {seen.staying:9.1%}"
            lines.append(f"{trial.length:6.2f} {shares} {points}".rstrip())
        return "\n".join(lines)


def erase_and_repair(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike | None,
    forget: Data,
    *,
    retained: Data,
    held_out: Data,
    training: Training | None = None,
    lengths: Sequence[float] = LENGTHS,
    start: float = START,
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    autocast: bool = False,
    progress: bool = True,
) -> LastingErasure:
    """Erase samples from a network so that they do not come back: a long second-order step, then a short repair.

        done = ssse.erase_and_repair(model, curvature, "cross_entropy", forget, retained=rest, held_out=validation,
                                     training=ssse.Training(epochs=40, learning_rate=0.4))

    The direction is that of `ssse.erase`. Lengths are tried from `start` on, longer ones where S stands out from
    held-out samples of its kind by more than the model suffers and shorter ones elsewhere, each repaired as
    `ssse.repair` does, until the shortfall no longer falls; the length with the smallest is kept. Needs S, what stays
    and a few held-out samples; nothing is retrained.

    Args:
        curvature: of the model; rows="margin", structure="lowrank" is what was measured to work.
        retained: batches of D∖S, held in memory. S must not be among them.
        held_out: batches of samples that the model was not trained on, of the classes that S has and of others; with
            them the length is chosen, so they say nothing about the result any more.
        training: how the model was trained; epochs, learning_rate: of each repair, as in `ssse.repair`.
        lengths: of the step over ‖θ‖ that may be tried. start: the first of them.

    Raises:
        Refused: there is no direction to go, or not one of this model. InvalidData: S is among the retained or the
            held-out samples, or a class of S has no held-out sample. InvalidSetting: the loss is not cross_entropy.
        Diverged: the repair did, at every length that was tried.
    """
    started = time.perf_counter()
    tried = _check_lengths(lengths, start)
    own = {"epochs": epochs, "learning_rate": learning_rate}
    repair_training(training, 1, **own)  # what is wrong with them is said before anything is computed
    loss = matching_loss(curvature, loss_fn)
    if loss.name != "cross_entropy":
        raise InvalidSetting(
            f"erase_and_repair compares how many samples are right, for the loss cross_entropy, not "
            f"{loss.name}. Use ssse.erase with a scale of your own, then ssse.repair."
        )
    # Its direction alone: how far to go, and what that does to samples that should keep working, is looked at below.
    erasure = erase(model, curvature, loss_fn, forget, scale=1.0, override=("step", "probe"), progress=progress)
    if erasure.reach == 0:
        raise InvalidSetting("The step for these samples is zero: the model has learnt nothing from them to erase.")
    trainee = Trainee.of(model, curvature.loss if loss_fn is None else loss_fn, retained, curvature.label_key)
    settings = repair_training(training, trainee.count, **own)
    splits = Splits.of(trainee, forget, held_out, curvature.n)
    refuse_forgotten([trainee.samples], splits.forgotten)
    refuse_forgotten_held_out(splits.held, splits.forgotten)
    found = search_lengths(
        trainee, splits, erasure.at, erasure.reach, settings, lengths=tried, start=start, seed=seed,
        autocast=autocast, progress=progress,
    )  # fmt: skip
    chosen = found.chosen
    reasons = _reasons(chosen, found.original, splits, tried)
    return LastingErasure(
        model=found.model,
        verdict="caution" if reasons else "ok",
        reasons=tuple(reasons),
        length=chosen.length,
        scale=chosen.scale,
        trials=found.trials,
        original=found.original,
        step=erasure.diagnostics,
        training=settings,
        epochs=settings.epochs * len(found.trials),
        resolution=_error(splits, chosen.seen),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Searched:
    """The trial that was chosen and its model; all trials, by their length; and the original on the same samples."""

    chosen: Trial
    model: nn.Module
    trials: tuple[Trial, ...]
    original: Seen


def search_lengths(
    trainee: Trainee,
    splits: Splits,
    at: Callable[[float], nn.Module],
    reach: float,
    settings: Training,
    *,
    lengths: Sequence[float] = LENGTHS,
    start: float = START,
    seed: int = 0,
    autocast: bool = False,
    progress: bool = True,
) -> Searched:
    """Repair the model at a few lengths of one step and keep the one with the smallest shortfall.

    Where the repair of one diverges, a shorter one is tried; it is never kept.

    Args:
        trainee: the original and what stays. at: the model at a scale ε, a copy. reach: the length of the step at
            ε = 1 over ‖θ‖. lengths: ascending.

    Raises:
        Diverged: there is none whose repair did not.
    """
    original = splits.look(trainee)

    with bar("lengths", None, progress) as advance:

        def attempt(length: float) -> tuple[Trial, nn.Module | None]:
            advance(text=f"step of {length:g} ‖θ‖, then repair")
            candidate = _on(trainee, at(length / reach))
            before = splits.look(candidate)
            try:
                candidate.train(settings, seed=seed, autocast=autocast, text="repair", progress=False)
            except Diverged:
                advance(1)
                nothing = Seen(math.nan, math.nan, math.nan, math.nan)
                return Trial(length, length / reach, nothing, before, math.inf, 0.0), None
            done = _on(trainee, candidate.finish())
            seen = splits.look(done)
            advance(1)
            return Trial.of(length, length / reach, seen, before, original), done.given

        say(f"at most {len(lengths)} lengths, {settings.epochs} epochs of repair for each", progress)
        (chosen, model), trials = walk(attempt, lengths, start)
    if model is None:
        tried = ", ".join(f"{trial.length:g}" for trial in trials)
        raise Diverged(
            f"The repair diverged after every step that was tried (lengths {tried}); nothing was changed. Use a "
            f"smaller learning_rate than {settings.learning_rate:g}, or shorter lengths."
        )
    return Searched(chosen, model, trials, original)


def walk(
    attempt: Callable[[float], tuple[Trial, T]], lengths: Sequence[float], start: float
) -> tuple[tuple[Trial, T], tuple[Trial, ...]]:
    """The attempt with the smallest shortfall, and all trials by length: from `start` on, until it no longer falls.

    Longer first where S stands out more than the model suffers, otherwise shorter; where that was no better than the
    start, the other way. lengths: ascending.
    """
    first = lengths.index(min(lengths, key=lambda one: abs(math.log(one / start))))
    best = attempt(lengths[first])
    trials, way = {first: best[0]}, best[0].way
    for step in (way, -way):
        if way != step and best[0].length != lengths[first]:
            break  # it was better the first way
        place = first + step
        while 0 <= place < len(lengths):
            found = attempt(lengths[place])
            trials[place] = found[0]
            if found[0].shortfall >= best[0].shortfall:
                break
            best, place = found, place + step
    return best, tuple(trials[one] for one in sorted(trials))


def _check_lengths(lengths: Sequence[float], start: float) -> list[float]:
    try:
        given = sorted({float(one) for one in lengths})
    except (TypeError, ValueError):  # one number, or what is none
        given = []
    if not given or not all(0 < one < math.inf for one in given):
        raise InvalidSetting(
            f"lengths are those of the step over ‖θ‖, positive numbers such as (0.35, 0.5); not {lengths!r}."
        )
    if not isinstance(start, (int, float)) or not 0 < start < math.inf:
        raise InvalidSetting(f"start must be a positive number, the first of the lengths to try, not {start!r}.")
    return given


def _on(trainee: Trainee, model: nn.Module) -> Trainee:
    """The same samples and another model of the same form, which is taken over."""
    return replace(trainee, given=model, problem=trainee.problem.on(model))


@dataclass(frozen=True)
class Splits:
    """What every trial is looked at on. weights: of the held-out samples, as S has their classes; stays: which do."""

    forgotten: list[Batch]
    held: list[Batch]
    retained: list[Batch]
    weights: np.ndarray
    stays: np.ndarray
    kin: list[Batch]

    @classmethod
    def of(cls, trainee: Trainee, forget: Data, held_out: Data, n: int) -> Splits:
        forgotten = trainee.read(forget, "samples to forget")
        held = trainee.read(held_out, "held-out samples")
        labels, own = _classes(held), _classes(forgotten)
        classes, counts = np.unique(own, return_counts=True)
        weights = np.zeros(len(labels))
        for one, count in zip(classes, counts, strict=True):
            same = labels == one
            if not same.any():
                raise InvalidData(
                    f"No held-out sample is of class {one}, of which {count:,} are to be forgotten: what they "
                    "should be like is not known. Add some to held_out."
                )
            weights[same] = count / len(own) / same.sum()
        x, y = trainee.samples
        order = torch.randperm(trainee.count, generator=torch.Generator().manual_seed(0)).to(trainee.problem.device)
        alike = torch.isin(_indices(label_values(y))[order], torch.as_tensor(classes, device=order.device))

        def part(places: Tensor) -> list[Batch]:
            taken = take_samples((x, y), places[:LOOKED])
            return [without_weights(one) for one in regroup([taken], PASS)] if len(places) else []

        return cls(forgotten, held, part(order), weights, staying(labels, own, n), part(order[alike]))

    def look(self, trainee: Trainee) -> Seen:
        held = _hits(trainee, self.held)
        return Seen(
            forgotten=float(_hits(trainee, self.forgotten).mean()),
            expected=float(self.weights @ held),
            retained=float(_hits(trainee, self.retained).mean()),
            staying=float(held[self.stays].mean()),
            kin=float(_hits(trainee, self.kin).mean()) if self.kin else None,
        )

    def error(self, seen: Seen) -> float:
        """Of forgotten − expected: standard error by the number of samples on both sides."""
        count = sum(len(y) for _, y in self.forgotten)
        own, other = seen.forgotten * (1 - seen.forgotten), seen.expected * (1 - seen.expected)
        return math.sqrt(own / count + other * float((self.weights**2).sum()))


@torch.no_grad()
def _hits(trainee: Trainee, parts: list[Batch]) -> np.ndarray:
    right = []
    for x, y in parts:
        z = trainee.problem.forward(x)[0]
        right.append((z.argmax(1) == _indices(label_values(y))).double())
    return torch.cat(right).cpu().numpy()


def _classes(parts: list[Batch]) -> np.ndarray:
    return torch.cat([_indices(label_values(y)) for _, y in parts]).cpu().numpy()


def _indices(y: Tensor) -> Tensor:
    """Of class probabilities the likeliest."""
    return y.argmax(1) if y.is_floating_point() else y


def shortfall(seen: Seen, original: Seen) -> float:
    """The gap to a retrained model, as far as it can be told without one: see `Trial`."""
    lost = losses_of(seen, original)
    return (abs(seen.forgotten - seen.expected) + sum(lost)) / (1 + len(lost))


def losses_of(seen: Seen, original: Seen) -> list[float]:
    """What retained, staying and, where there are any, kin samples lost against the original; no gain counts."""
    pairs = [(original.retained, seen.retained), (original.staying, seen.staying), (original.kin, seen.kin)]
    return [max(0.0, before - after) for before, after in pairs if before is not None and after is not None]


def _error(splits: Splits, seen: Seen) -> float:
    """Of forgotten − expected. The mean of what is all right, by weights, may lie the last place above one."""
    return splits.error(replace(seen, expected=min(max(seen.expected, 0.0), 1.0)))


def _reasons(chosen: Trial, original: Seen, splits: Splits, lengths: Sequence[float]) -> list[str]:
    seen, reasons = chosen.seen, []
    over = seen.forgotten - seen.expected
    if over > max(REMEMBERED, NOISE * _error(splits, seen)):
        longest = " It was the longest that was tried." if chosen.length == lengths[-1] else ""
        reasons.append(
            f"S is still remembered: {seen.forgotten:.1%} of it are right, and {seen.expected:.1%} of held-out samples "
            f"of its kind.{longest}"
        )
    for name, now, was in (
        ("retained samples", seen.retained, original.retained),
        ("held-out samples of what stays", seen.staying, original.staying),
    ):
        if was - now > WORN:
            reasons.append(f"The repair has not healed the model: {now:.1%} of the {name} are right, before {was:.1%}.")
    return reasons
