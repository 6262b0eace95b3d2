"""How far one step can be trusted, from the forgotten samples and two sums kept since the fit alone.

One step is exact where the curvature stays as it is. It changes with the scores: by at most the factor e^|δ| where a
sample's scores move by δ. Four numbers say how much of that there is; what they are worth was measured against
retrained models (benchmarks/verdicts.py):

    swing     how far the scores of S move, all but the last twentieth of them
    strain    how far the scores of those who stay move, as their curvature weighs them: √(uᵀG₋u / mass)
    stretch   ½ uᵀG₋u ‖θ‖ / (θᵀM₋θ ‖u‖)
    bend      ‖M⁻¹(g_S(θ̂) − g_S(θ*) − H_S u)‖ / ‖u‖ · uᵀG₋u / uᵀH_S u

with u the step, H_S = R_SᵀR_S, G₋ = RᵀR − H_S, M₋ = G₋ + (n−k)λI. Nothing of this needs the samples that stay: M₋u is
what was solved for. `stretch`: whichever way scores move, they move where the curvature changes, and what that adds
up to over all samples is a pull along θ itself. Where θ is long and u short, that is much of u. `bend`: by how much
the gradient on S turned out otherwise than the quadratic model says, as a step, and carried over from S to those who
stay by how much curvature each of them has along u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ssse.problem.batches import Batch
from ssse.problem.cores import DenseCores, DiagonalCores
from ssse.problem.problem import Problem
from ssse.rows.held import LinearRows
from ssse.rows.score_sums import ScoreSums
from ssse.verdict import MOST


@dataclass(frozen=True)
class Trust:
    """`swing_max`: of all of S. `after`: the sums at the erased model, for the next request."""

    swing: float | None = None
    swing_max: float | None = None
    strain: float | None = None
    stretch: float | None = None
    bend: float | None = None
    after: ScoreSums | None = None


@dataclass(frozen=True)
class Step:
    """A step that was taken, and what it was solved from.

    Attributes:
        before, after: the problem at both of its ends. batches: S.
        u: the step itself. image: M₋u. Both in float64. ridge: (n−k)λ.
    """

    before: Problem
    after: Problem
    batches: list[Batch]
    u: Tensor
    image: Tensor
    ridge: float

    @property
    def curved(self) -> float:
        """uᵀG₋u."""
        return max(float(self.u @ self.image) - self.ridge * float(self.u @ self.u), 0.0)


def measure_trust(step: Step, swings: np.ndarray, remaining: ScoreSums, solve: Callable[[Tensor], Tensor]) -> Trust:
    """Of a linear model. `remaining`: the sums of those who stay, where the step began; `solve`: M⁻¹v."""
    u, ridge, theta = step.u, step.ridge, step.before.theta().double()
    curved, length = step.curved, float(u.norm())
    across = float(step.image @ theta) - ridge * float(u @ theta)  # uᵀG₋θ
    along = remaining.energy + ridge * float(theta @ theta)  # θᵀM₋θ
    stretch = 0.5 * curved * float(theta.norm()) / (along * length) if along and length else 0.0
    return replace(
        trust_by_swing(swings),
        strain=math.sqrt(curved / remaining.mass) if remaining.mass else math.inf if curved else 0.0,
        stretch=stretch,
        bend=_bend(step, solve),
        after=ScoreSums(remaining.mass, max(remaining.energy + 2 * across + curved, 0.0)),
    )


def trust_by_swing(swings: np.ndarray | None) -> Trust:
    """What is known of any model: how far the scores of S move."""
    return Trust() if swings is None else Trust(float(np.quantile(swings, MOST)), float(swings.max()))


def measure_swings(before: Problem, after: Problem, batches: list[Batch]) -> np.ndarray | None:
    """Of every sample of S, shape (k,); None where the loss is one that scores mean nothing to, or not known."""
    found = []
    for x, y in batches:
        swing = before.loss.swing(after.forward(x)[0] - before.forward(x)[0], y)
        if swing is None:
            return None
        found.append(swing.cpu().double().numpy())
    return np.concatenate(found)


def _bend(step: Step, solve: Callable[[Tensor], Tensor]) -> float:
    """In output space and in float64: the difference is far smaller than what it is one of."""
    off, own, length = torch.zeros_like(step.u), 0.0, float(step.u.norm())
    shape, loss = step.before.linear, step.before.loss
    assert shape is not None
    for x, y in step.batches:
        z, features = step.before.forward(x)
        assert features is not None
        z, features = z.double(), features.double()
        if shape.bias:
            features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        change = LinearRows(features, DiagonalCores(torch.ones_like(z)), shape).times(step.u).view(len(z), -1)
        cores = loss.cores(z, y)
        rotated = cores.times(change[:, :, None])
        missed = loss.gradient(z + change, y) - loss.gradient(z, y) - cores.transposed_times(rotated)[:, :, 0]
        off += LinearRows(features, DenseCores(missed[:, None]), shape).transposed_times(missed.new_ones(len(z)))
        own += float(rotated.square().sum())
    if not own or not length:  # S has no curvature along u: nothing that could be carried over
        return 0.0 if not bool(off.any()) else math.inf
    return float(solve(off.to(step.before.dtype)).double().norm()) / length * step.curved / own
