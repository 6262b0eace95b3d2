"""A network's erasure that lasts: the direction of the exact step, as much of it as is worth taking, and repair.

Not the damping but the length of the step over ‖θ‖ decides how much a network forgets for good, and what looks best
before the repair is not what is best after it. So a few lengths are tried, each is repaired, and what is kept is the
one after which S is like held-out samples of its kind while all else works as before. Nothing is retrained to choose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from ssse.calibration.lengths import DAMPINGS, LENGTHS, LOOKED_AT, PUSH, START, Seen, Splits, Trial, search_lengths
from ssse.curvature.curvature import Curvature
from ssse.erasure.diagnostics import Diagnostics
from ssse.erasure.erase import erase
from ssse.erasure.health import NOISE
from ssse.erasure.repair import repair_training
from ssse.erasure.request import matching_loss
from ssse.erasure.solving import check_power
from ssse.errors import InvalidSetting
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.overlap import refuse_forgotten, refuse_forgotten_held_out
from ssse.problem.short_training import Trainee, Training
from ssse.system.group import current_group

REMEMBERED = 0.05  # by which S may be better known than held-out samples before it is said
TOLD = 0.05  # by which more or fewer pairs than half may tell S from held-out samples
WORN = 0.03  # by which retained or held-out samples may do worse


@dataclass(frozen=True)
class LastingErasure:
    """One request to a network, answered by a step and a repair.

    Attributes:
        model: a new module in eval mode; the one passed in is untouched. No curvature fitted before belongs to it.
        verdict: "ok", or "caution" with the reasons: measured after the repair.
        damping, length, scale: of the step that was taken. trials: all that were tried, damping by damping: the curves
            it was decided from. Where the repair diverged, the shortfall is infinite and what is seen is NaN.
        original: the model passed in, on the same samples. step: the diagnostics of its direction, at a tiny scale.
        training: of each repair. epochs: of all of them together.
        resolution: the standard error of forgotten − expected, from so many samples.
    """

    model: nn.Module
    verdict: Literal["ok", "caution"]
    reasons: tuple[str, ...]
    damping: float
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
        lines.append("       λ  length   S right  expected  retained   staying      told  shortfall")
        shown = [Trial(math.nan, 0.0, 0.0, self.original, self.original, math.nan, 0.0), *self.trials]
        for trial in shown:
            step = f"{'–' if math.isnan(trial.damping) else f'{trial.damping:.2g}':>8} {trial.length:7.2f}"
            if math.isinf(trial.shortfall):
                lines.append(f"{step}   the repair diverged")
                continue
            taken = (trial.damping, trial.length) == (self.damping, self.length)
            points = "" if math.isnan(trial.shortfall) else f"{100 * trial.shortfall:10.2f}{' ←' if taken else ''}"
            seen = trial.seen
            told = (seen.forgotten, seen.expected, seen.retained, seen.staying, seen.told)
            shares = " ".join(f"{share:9.1%}" for share in told)
            lines.append(f"{step} {shares} {points}".rstrip())
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
    dampings: Sequence[float] = DAMPINGS,
    push: float = PUSH,
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    autocast: bool = False,
    progress: bool = True,
) -> LastingErasure:
    """Erase samples from a network so that they do not come back: a second-order step as long as it takes, and repair.

        done = ssse.erase_and_repair(model, curvature, "cross_entropy", forget, retained=rest, held_out=validation,
                                     training=ssse.Training(epochs=40, learning_rate=0.4))

    The direction is that of `ssse.erase(push=push)`. Lengths are tried from `start` on, longer ones where S stands
    out from held-out samples of its kind by more than the model suffers and shorter ones elsewhere, each repaired as
    `ssse.repair` does, until the shortfall no longer falls; then the same for the next of the dampings, from the best
    length on, and one length more beside the best. What has the smallest shortfall is kept. Needs S, what stays and a
    few held-out samples; nothing is retrained.

    Args:
        curvature: of the model; rows="margin", structure="lowrank" is what was measured to work.
        retained: batches of D∖S, held in memory. S must not be among them.
        held_out: batches of samples that the model was not trained on, of the classes that S has and of others; with
            them the length is chosen, so they say nothing about the result any more.
        training: how the model was trained; epochs, learning_rate: of each repair, as in `ssse.repair`.
        lengths: of the step over ‖θ‖ that may be tried. start: the first of them.
        dampings: of the direction, times the curvature's; (1,) looks along one direction alone.
        push: the power of 1−p that each margin of S is pushed by; 0: all alike. 0.5 leaves less of a trace in the
            confidence on S, and probabilities that are further from a retrained model's: docs/reproduction.md.

    Raises:
        Refused: there is no direction to go, or not one of this model. InvalidData: S is among the retained or the
            held-out samples, or a class of S has no held-out sample. InvalidSetting: the loss is not cross_entropy.
        Diverged: the repair did, at every length that was tried.
    """
    started = time.perf_counter()
    tried, softer = _check_lengths(lengths, start), _check_dampings(dampings)
    check_power(push)
    if curvature.linear is not None and push != PUSH:
        raise InvalidSetting("push= is for networks; a model linear in θ goes along Newton's step. Leave it out.")
    own = {"epochs": epochs, "learning_rate": learning_rate}
    repair_training(training, 1, **own)  # what is wrong with them is said before anything is computed
    loss = matching_loss(curvature, loss_fn)
    if loss.name != "cross_entropy":
        raise InvalidSetting(
            f"erase_and_repair compares how many samples are right, for the loss cross_entropy, not "
            f"{loss.name}. Use ssse.erase with a scale of your own, then ssse.repair."
        )
    # Its direction alone: how far to go, and what that does to samples that should keep working, is looked at below.
    erasures = []
    for times in softer:
        damped = curvature if times == 1 else curvature.with_damping(times * curvature.damping)
        erasures.append(
            erase(
                model,
                damped,
                loss_fn,
                forget,
                scale=LOOKED_AT,
                push=push if curvature.linear is None else None,
                override=("step", "probe"),
                progress=progress,
            )
        )
    if any(erasure.reach == 0 for erasure in erasures):
        raise InvalidSetting("The step for these samples is zero: the model has learnt nothing from them to erase.")
    trainee = Trainee.of(model, curvature.loss if loss_fn is None else loss_fn, retained, curvature.label_key)
    settings = repair_training(training, trainee.count, **own)
    splits = Splits.of(trainee, forget, held_out, curvature.n)
    refuse_forgotten([trainee.samples], splits.forgotten)
    refuse_forgotten_held_out(splits.held, splits.forgotten)
    group = current_group(trainee.problem.device)
    with group.together():
        found = search_lengths(
            trainee, splits, erasures, settings, lengths=tried, start=start, seed=seed, autocast=autocast,
            progress=progress and group.first,
        )  # fmt: skip
    found = found.as_the_first(erasures, group)
    chosen = found.chosen
    reasons = _reasons(chosen, found.original, splits, tried)
    return LastingErasure(
        model=found.model,
        verdict="caution" if reasons else "ok",
        reasons=tuple(reasons),
        damping=chosen.damping,
        length=chosen.length,
        scale=chosen.scale,
        trials=found.trials,
        original=found.original,
        step=found.erasure.diagnostics,
        training=settings,
        epochs=settings.epochs * len(found.trials),
        resolution=splits.error(chosen.seen),
        seconds=time.perf_counter() - started,
    )


def _positive(numbers: Sequence[float]) -> list[float]:
    """In their order; empty where one of them is no positive number."""
    try:
        given = [] if isinstance(numbers, str) else [float(one) for one in numbers]
    except (TypeError, ValueError):  # one number, or what is none
        given = []
    return given if all(0 < one < math.inf for one in given) else []


def _check_dampings(dampings: Sequence[float]) -> list[float]:
    given = list(dict.fromkeys(_positive(dampings)))
    if not given:
        raise InvalidSetting(
            "dampings are those of the direction over the curvature's, positive numbers such as (1, 4); not "
            f"{dampings!r}."
        )
    return given


def _check_lengths(lengths: Sequence[float], start: float) -> list[float]:
    given = sorted(set(_positive(lengths)))
    if not given:
        raise InvalidSetting(
            f"lengths are those of the step over ‖θ‖, positive numbers such as (0.35, 0.5); not {lengths!r}."
        )
    if not isinstance(start, (int, float)) or not 0 < start < math.inf:
        raise InvalidSetting(f"start must be a positive number, the first of the lengths to try, not {start!r}.")
    return given


def _reasons(chosen: Trial, original: Seen, splits: Splits, lengths: Sequence[float]) -> list[str]:
    seen, reasons = chosen.seen, []
    over, limit = seen.forgotten - seen.expected, max(REMEMBERED, NOISE * splits.error(seen))
    told, told_limit = seen.told - 0.5, max(TOLD, NOISE * splits.error_told(seen))
    if over < -limit:
        reasons.append(
            f"S stands out: {seen.forgotten:.1%} of it are right, and {seen.expected:.1%} of held-out samples of its "
            "kind. Knowing samples less than strangers is a trace of them, too; shorter lengths may leave less of one."
        )
    elif over > limit:
        longest = " It was the longest that was tried." if chosen.length == lengths[-1] else ""
        kind = "nothing of its kind stays" if splits.gone else f"{seen.expected:.1%} of held-out samples of its kind"
        reasons.append(f"S is still remembered: {seen.forgotten:.1%} of it are right, and {kind}.{longest}")
    elif abs(told) > told_limit:
        more, trace = ("more", "") if told > 0 else ("less", " That is a trace of it, too.")
        reasons.append(
            f"S can be told from held-out samples of its kind: in {0.5 + abs(told):.0%} of all pairs it is known with "
            f"{more} confidence, and half would be chance.{trace}"
        )
    for name, now, was in (
        ("retained samples", seen.retained, original.retained),
        ("held-out samples of what stays", seen.staying, original.staying),
    ):
        if was - now > WORN:
            reasons.append(f"The repair has not healed the model: {now:.1%} of the {name} are right, before {was:.1%}.")
    return reasons
