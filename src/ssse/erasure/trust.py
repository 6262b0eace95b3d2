"""How far one step can be trusted, from the forgotten samples and two sums kept since the fit alone.

One step is exact where the curvature stays as it is. It changes with the scores: by at most the factor e^|δ| where a
sample's scores move by δ. Three numbers say how much of that there is; what they are worth was measured against
retrained models (benchmarks/verdicts.py):

    swing     how far the scores of S move, on average over S
    strain    how far the scores of those who stay move, as their curvature weighs them: √(uᵀG₋u / mass)
    stretch   ½ uᵀG₋u ‖θ‖ / (θᵀM₋θ ‖u‖)

with u the step, G₋ = RᵀR − R_SᵀR_S, M₋ = G₋ + (n−k)λI. Nothing of this needs the samples that stay: M₋u is what was
solved for. `stretch`: whichever way scores move, they move where the curvature changes, and what that adds up to over
all samples is a pull along θ itself. Where θ is long and u short, that is much of u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.structure import LeftOut
from ssse.problem.batches import Batch
from ssse.problem.problem import Problem
from ssse.rows.score_sums import ScoreSums


@dataclass(frozen=True)
class Trust:
    """`after`: the sums at the erased model, for the next request."""

    swing: float | None = None
    strain: float | None = None
    stretch: float | None = None
    after: ScoreSums | None = None


def measure_trust(
    before: Problem,
    erased: Problem,
    batches: list[Batch],
    solved: LeftOut,
    scale: float,
    right: Tensor,
    ridge: float,
    remaining: ScoreSums | None,
) -> Trust:
    """`before`: at the origin of the step `solved` times `scale`; `right`, `ridge`: M₋u = right, and its damping.

    `remaining`: the sums of those who stay, at the origin; None where they, or M₋, are not known.
    """
    swing = _mean_swing(before, erased, batches)
    if remaining is None:
        return Trust(swing)
    u, b, theta = (part.double() for part in (solved.solution, right, before.theta()))
    u = scale * u
    curved = max(scale * float(u @ b) - ridge * float(u @ u), 0.0)  # uᵀG₋u
    across = scale * float(b @ theta) - ridge * float(u @ theta)  # uᵀG₋θ
    after = ScoreSums(remaining.mass, max(remaining.energy + 2 * across + curved, 0.0))
    along = remaining.energy + ridge * float(theta @ theta)  # θᵀM₋θ
    length = float(u.norm())
    strain = math.sqrt(curved / remaining.mass) if remaining.mass else math.inf if curved else 0.0
    stretch = 0.5 * curved * float(theta.norm()) / (along * length) if along and length else 0.0
    return Trust(swing, strain, stretch, after)


def _mean_swing(before: Problem, erased: Problem, batches: list[Batch]) -> float | None:
    total, count = 0.0, 0
    for x, y in batches:
        swing = before.loss.swing(erased.forward(x)[0] - before.forward(x)[0])
        if swing is None:
            return None
        total += float(swing.sum(dtype=torch.float64))
        count += len(y)
    return total / count
