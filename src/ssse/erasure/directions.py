"""Which way down: Newton's, where the Hessian can be multiplied with, or L-BFGS's; both from the stored factor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import conjugate_gradients, dot
from ssse.erasure.descent import Directions, Point
from ssse.problem.losses import Loss
from ssse.problem.parameters import LinearShape
from ssse.rows.held import LinearRows

Product = Callable[[Tensor], Tensor]

MEMORY = 10  # pairs of steps and changes of the gradient that L-BFGS keeps
ITERATIONS = 500  # of conjugate gradients for one direction, at most


class QuasiNewton(Directions):
    """L-BFGS that begins from C⁻¹, the stored inverse, instead of a multiple of the identity."""

    def __init__(self, solve: Product):
        self._solve = solve
        self._scale = 1.0  # of C⁻¹, as the last step had it: a C that is too small everywhere costs one pass only
        self._last: tuple[Point, Tensor] | None = None  # the latest point, and C⁻¹ times its gradient
        # Steps, changes of the gradient, C⁻¹ times these, and the curvature along the step. The third makes one solve
        # a step enough: C⁻¹q of the two-loop recursion is put together from what is known.
        self._pairs: deque[tuple[Tensor, Tensor, Tensor, float]] = deque(maxlen=MEMORY)

    def at(self, point: Point) -> Tensor:
        """−H⁻¹g, by the two-loop recursion."""
        rest, result, shares = point.gradient.clone(), self._solved(point).clone(), []
        for moved, change, solution, curvature in reversed(self._pairs):
            share = float(dot(moved, rest)) / curvature
            rest -= share * change
            result -= share * solution
            shares.append(share)
        result *= self._scale
        for (moved, change, _, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            result += (share - float(dot(change, result)) / curvature) * moved
        return -result

    def learn(self, old: Point, new: Point) -> None:
        """A pair without positive curvature is left out: the estimate must stay positive definite."""
        moved, change, before = new.theta - old.theta, new.gradient - old.gradient, self._solved(old)
        solution = self._solved(new) - before
        met, stored = float(dot(moved, change)), float(dot(change, solution))
        if stored > 0 and met > 1e-3 * torch.finfo(moved.dtype).eps * float(moved.norm()) * float(change.norm()):
            self._pairs.append((moved, change, solution, met))
            self._scale = met / stored

    def start_again(self) -> bool:
        learnt = bool(self._pairs)
        self._pairs.clear()
        self._scale = 1.0
        return learnt

    def _solved(self, point: Point) -> Tensor:
        if self._last is None or self._last[0] is not point:
            self._last = (point, self._solve(point.gradient))
        return self._last[1]


class Newton(Directions):
    """Newton's own direction for a model linear in θ, by conjugate gradients on the features that the pass left.

    The stored factor is their preconditioner: it is that of an older θ, so that it takes a few iterations.
    """

    def __init__(self, loss: Loss, shape: LinearShape, ridge: float, precondition: Product, tolerance: float):
        self._loss, self._shape, self._ridge = loss, shape, ridge
        self._precondition, self._tolerance = precondition, tolerance

    def at(self, point: Point) -> Tensor:
        rows = [
            LinearRows(batch.features, self._loss.cores(batch.outputs, batch.labels), self._shape)
            for batch in point.batches
        ]
        count = sum(len(batch.labels) for batch in point.batches)

        def product(p: Tensor) -> Tensor:
            total = self._ridge * p
            for part in rows:
                total += part.transposed_times(part.times(p))
            return total

        solved = conjugate_gradients(
            product,
            -count * point.gradient,
            tolerance=self._tolerance,
            max_iterations=ITERATIONS,
            precondition=self._precondition,
            check=False,
        )
        return solved.x

    def learn(self, old: Point, new: Point) -> None:
        """Nothing: the next Hessian is taken anew."""

    def start_again(self) -> bool:
        return False
