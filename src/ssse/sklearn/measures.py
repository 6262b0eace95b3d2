"""What a step says of itself, from the samples that go and the sums over those that stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssse.sklearn.quadratic import Erased
from ssse.sklearn.sums import TrainingSums
from ssse.verdict import MOST

# The swing and the strain from which on, together, a whole step may raise the objective.
OVERSWUNG, OVERSTRAINED = 2.0, 0.35


@dataclass(frozen=True, kw_only=True)
class StepMeasures:
    """Of one request, in all linear models of an estimator together.

    Attributes:
        due: the length of the request's own step, in scikit-learn's coordinates: from the minimum of the quadratic
            model over the samples that were there to that over those that stay.
        share: of the step that is to be taken, 1 for all of it.
        swing, strain, stretch, bend: as of `ssse.verdict.Assessment`; None for least squares and where unknown.
    """

    due: float
    swing: float | None = None
    strain: float | None = None
    stretch: float | None = None
    bend: float | None = None
    leverage: float | None = None
    share: float = 1.0


def measure_step(steps: Sequence[Erased], old: TrainingSums, design: np.ndarray, *, shorten: bool) -> StepMeasures:
    """Of whole steps. `design`: X̃ of what went; `shorten`: whether a step that reaches too far may be shortened."""
    due = math.hypot(*(_length(one, old, one.own) for one in steps))
    leverage = max(one.leverage for one in steps)
    if old.exact:
        return StepMeasures(due=due, leverage=leverage)
    swings = np.max([one.ranges(design) for one in steps], axis=0)
    swing = float(np.quantile(swings, MOST))
    traces = [one.quadratic.trace for one in steps]
    known = [trace for trace in traces if trace is not None]
    if old.strained is None or len(known) < len(traces):
        return StepMeasures(due=due, swing=swing, leverage=leverage)
    longer = max(sum(one.curved(one.own) for one in steps), sum(one.curved(one.step) for one in steps))
    strain = old.strained + _root(longer, sum(known))
    share = safe_share(float(swings.mean()), strain) if shorten else 1.0
    stretch, bend = _stretch(steps, old, due), _bend(steps, old)
    return StepMeasures(due=due, swing=swing, strain=strain, stretch=stretch, bend=bend, leverage=leverage, share=share)


def safe_share(swing: float, strain: float) -> float:
    """Of a step that reaches so far that whole it may well raise the objective over what stays; `swing`: the mean.

    Where no score changes by more than D along a step, the share log(1 + D)/D of it lowers the objective for certain
    (self-concordance). A D that holds for all who stay is far too cautious; half the swing, or twice the strain, was
    enough wherever whole steps went up, and none did below these limits (`benchmarks/shortened_steps.py`).
    """
    reach = max(swing / 2, 2 * strain)
    return math.log1p(reach) / reach if swing > OVERSWUNG and strain > OVERSTRAINED else 1.0


def _stretch(steps: Sequence[Erased], old: TrainingSums, due: float) -> float:
    """½ uᵀG₋u ‖θ‖ / (θᵀM₋θ ‖u‖): whichever way scores move, what that does to curvatures adds up along θ."""
    curved = sum(one.curved(one.own) for one in steps)
    along = sum(float((one.before * one.quadratic.times(one.before)).sum()) for one in steps)
    length = math.hypot(*(_length(one, old, one.before) for one in steps))
    return 0.5 * curved * length / (along * due) if along > 0 and due > 0 else 0.0


def _bend(steps: Sequence[Erased], old: TrainingSums) -> float | None:
    """‖M⁻¹(g_S(θ̂) − g_S(θ) − H_S u)‖ / ‖u‖ · uᵀG₋u / uᵀH_S u: what S shows, carried over to those who stay."""
    off = [_length(one, old, one.off) for one in steps if one.off is not None]
    if len(off) < len(steps):
        return None
    length = math.hypot(*(_length(one, old, one.step) for one in steps))
    curved, taken = sum(one.curved(one.step) for one in steps), sum(one.taken for one in steps)
    if not length or not taken:
        return 0.0 if not any(off) else math.inf
    return math.hypot(*off) / length * curved / taken


def _length(one: Erased, old: TrainingSums, step: np.ndarray) -> float:
    """In scikit-learn's coordinates."""
    coef, intercept = old.coordinates.to_sklearn(one.quadratic.loss.wide(step, old.coordinates.width))
    return math.hypot(float(np.linalg.norm(coef)), float(np.linalg.norm(intercept)))


def _root(part: float, whole: float) -> float:
    """√(part/whole); nothing of nothing is 0."""
    if part <= 0:
        return 0.0
    return math.sqrt(part / whole) if whole > 0 else math.inf
