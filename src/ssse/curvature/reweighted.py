"""Newton's steps on what remains of the linearised problem, from the margins and their kernel alone.

With φᵢ + ∇φᵢ·u for the margin of sample i at θ* + u, its loss is ℓ = log(1 + e^−φ) of that, and what stays of the data
has the objective

    F(u) = Σ_{i∉S} vᵢ [ℓ(φᵢ + sᵢ) − ℓ(φᵢ) − ℓ'(φᵢ) sᵢ] + (ρ/2)‖u‖² − b·u,     s = ∇φ u,  ρ = (n−k)λ,

whose gradient at u = 0 is −b: the right-hand side of the one step, which is the first of Newton's steps here. Where b
is the gradient of what is removed, no samples removed leave u = 0; where b is minus the gradient of what remains, F is
the training objective of what remains, but for a constant. All of u that is ever reached is (τ b + ∇φᵀβ)/ρ, so that it
is found in n numbers β: with q = ∇φ b and K = ∇φ∇φᵀ, s = (τ q + Kβ)/ρ. Each round costs one factor and no data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ssse.curvature.dual import leverages_of
from ssse.curvature.gram import DampedGram, KeptFactor, symmetric_product
from ssse.curvature.lowrank import LowRankStructure
from ssse.curvature.refinement import relative_residual
from ssse.curvature.structure import LeftOut, Structure
from ssse.errors import InvalidSetting
from ssse.rows.held import Rows, StackedRows
from ssse.rows.margin import MarginRows, margin_weights

TOLERANCE = 1e-10  # of the gradient, over that at u = 0
SLACK = 1e-12  # by how much of itself F is blurred
HALVINGS = 40
MOVED = 1e-2  # by which a margin computed again may differ; a network computes in float32, and on a GPU in any order


@dataclass(frozen=True)
class Reweighted:
    """u, in float64.

    Attributes:
        rounds: that were taken. gradient: ‖∇F(u)‖ over ‖∇F(0)‖, where they ended.
        residual: of the last linear system, relative, measured with the rows.
    """

    x: Tensor
    rounds: int
    gradient: float
    residual: float


@dataclass(frozen=True)
class Point:
    """u = (τ b + ∇φᵀβ)/ρ, and what it does to every margin. `spread`: s."""

    tau: float
    beta: Tensor
    spread: Tensor

    def moved(self, other: Point, share: float) -> Point:
        return Point(self.tau + share * other.tau, self.beta + share * other.beta, self.spread + share * other.spread)


@dataclass(frozen=True)
class Remaining:
    """F, of the samples that stay.

    Attributes:
        slopes: ∇φ of all samples. gram: K, on and below its diagonal. phi: φ. counts: v.
        index: the places of S. right: b. ridge: ρ.
    """

    slopes: Rows
    gram: DampedGram
    phi: Tensor
    counts: Tensor
    index: Tensor
    right: Tensor
    ridge: float

    def newton(self, most: int) -> Reweighted:
        """At most so many rounds; each is shortened until F falls."""
        q, squared = self.slopes.times(self.right), float(self.right.square().sum())
        nothing = torch.zeros_like(q)
        point = Point(0.0, nothing, nothing)
        value, rounds, gradient, last = 0.0, 0, float(squared > 0), None
        while rounds < most and gradient > TOLERANCE:
            step, weights = self._step(point, q)
            found = self._lower(point, step, value, q, squared)
            if found is None:
                break  # as low as can be told from rounding
            last = (point, point.moved(step, 1.0), weights)
            point, value = found
            gradient = self._gradient(point, q, squared)
            rounds += 1
        residual = 0.0 if last is None else self._residual(*last)
        return Reweighted(self._lifted(point), rounds, gradient, residual)

    def _lower(self, point: Point, step: Point, value: float, q: Tensor, squared: float) -> tuple[Point, float] | None:
        """Along the step, halved until F is not above `value`; and F there."""
        for halvings in range(HALVINGS):
            found = point.moved(step, 0.5**halvings)
            lower = self._value(found, q, squared)
            if lower <= value + SLACK * abs(value):
                return found, lower
        return None

    def _slopes_at(self, point: Point) -> Tensor:
        """α = v (ℓ'(φ + s) − ℓ'(φ)) of those that stay, where ∇F = ∇φᵀ(α + β) + (τ − 1) b."""
        change = self.counts * ((-self.phi).sigmoid() - (-(self.phi + point.spread)).sigmoid())
        return self._kept(change)

    def _step(self, point: Point, q: Tensor) -> tuple[Point, Tensor]:
        """−(∇²F)⁻¹∇F in the same numbers, and the weights √ℓ'' that it is of."""
        weights = self._kept(margin_weights(self.phi + point.spread, self.counts))
        uneven, left = self._slopes_at(point) + point.beta, 1 - point.tau
        factor = KeptFactor.of(self.gram, self.index, self.ridge, weights)
        right = weights * (self._times_kernel(uneven) - left * q)
        y = factor.solve(right)
        y += factor.solve(right - weights * self._times_kernel(weights * y) - self.ridge * y)
        beta = self._kept(weights * y - uneven)
        return Point(left, beta, (left * q + self._times_kernel(beta)) / self.ridge), weights

    def _value(self, point: Point, q: Tensor, squared: float) -> float:
        """F − F(0)."""
        moved = softplus(-(self.phi + point.spread)) - softplus(-self.phi) + (-self.phi).sigmoid() * point.spread
        along = float(q @ point.beta)
        curved = float(point.beta @ (self.ridge * point.spread - point.tau * q))  # βᵀKβ
        length = (point.tau**2 * squared + 2 * point.tau * along + curved) / self.ridge**2
        removed = (point.tau * squared + along) / self.ridge
        return float(self._kept(self.counts * moved).sum()) + self.ridge / 2 * length - removed

    def _gradient(self, point: Point, q: Tensor, squared: float) -> float:
        uneven, left = self._slopes_at(point) + point.beta, 1 - point.tau
        length = float(uneven @ self._times_kernel(uneven)) - 2 * left * float(q @ uneven) + left**2 * squared
        return (max(length, 0.0) / squared) ** 0.5

    def _residual(self, before: Point, full: Point, weights: Tensor) -> float:
        """Of (∇φᵀWW∇φ + ρ) u = b + ∇φᵀ(WWs − α), the system of a round that began at `before`, with the rows."""
        curved = weights.square()
        right = self.right + self.slopes.transposed_times(self._kept(curved * before.spread) - self._slopes_at(before))
        x = self._lifted(full)
        image = self.slopes.transposed_times(curved * self.slopes.times(x)) + self.ridge * x
        return relative_residual(float((right - image).norm()), right)

    def _lifted(self, point: Point) -> Tensor:
        return (point.tau * self.right + self.slopes.transposed_times(point.beta)) / self.ridge

    def _times_kernel(self, x: Tensor) -> Tensor:
        return symmetric_product(self.gram.square, x[:, None])[:, 0]

    def _kept(self, values: Tensor) -> Tensor:
        """Zero at S."""
        values = values.clone()
        values[self.index] = 0
        return values


def reweight(structure: LowRankStructure, rows: StackedRows, v: Tensor, ridge: float, rounds: int) -> LeftOut:
    """As `leave_out`, by at most so many of Newton's steps on the linearised problem.

    Raises:
        InvalidSetting: the margins that are kept are no longer those of the model.
    """
    check_reweighting(structure)
    gram, margins = structure.grams[0], margin_parts(structure.rows)
    index, missing = structure.find(rows)
    if missing:
        return structure.leave_out(rows, v, ridge)  # which says so
    phi = torch.cat([part.phi for part in margins]).double()
    now = torch.cat([part.phi for part in margin_parts(rows)]).to(phi)
    if not bool(((now - phi[index]).abs() <= MOVED * (1 + phi[index].abs())).all()):
        raise InvalidSetting(
            "The margins that the curvature keeps are no longer those of this model, which has moved since; "
            "re-weighting needs them. Fit the curvature again, or erase with policy='joint'."
        )
    counts = torch.cat([torch.ones_like(part.phi) if part.counts is None else part.counts for part in margins])
    slopes = StackedRows([part.unweighted for part in margins])
    found = Remaining(slopes, gram, phi, counts.double(), index, v.double(), ridge).newton(rounds)
    leverages, known = leverages_of(gram, index)
    return LeftOut(
        found.x.to(v.dtype), leverages, float(leverages.sum()) if known else torch.nan, gram.name,
        residual=found.residual, rounds=found.rounds, gradient=found.gradient,
    )  # fmt: skip


def check_reweighting(structure: Structure) -> None:
    """Whether there are margins, and a kernel of all of them."""
    if isinstance(structure, LowRankStructure) and not isinstance(structure.rows, StackedRows):
        raise InvalidSetting(
            "Re-weighting is for one process. Save the curvature, and load it in a process of its own."
        )
    if not isinstance(structure, LowRankStructure) or len(margin_parts(structure.rows)) < len(structure.rows.parts):
        raise InvalidSetting(
            'Re-weighting is for networks with rows="margin" and structure="lowrank", whose margins and their kernel '
            "are kept, fitted by this version. A linear model is brought to its refit by ssse.refine."
        )
    if len(structure.blocks) > 1 or structure.kernel_dtype != torch.float64:
        raise InvalidSetting(
            'Re-weighting needs blocks="one", and a kernel in float64: ssse.LowRank(kernel="float64").'
        )


def margin_parts(rows: StackedRows) -> list[MarginRows]:
    return [part for part in rows.parts if isinstance(part, MarginRows)]
