"""A smaller damping from solves with a larger one.

To half of the digits: `refine` solves for what is left once more in any case, and that gives the other half. So the
steps are as many for both solutions together as for one to all digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Product, conjugate_gradients

SIZE_PER_STEP = 64  # a new factor of size B costs more than B/64 solves with the old one: benchmarks/damping.py


def half_the_digits(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).eps)


def steps_to_lower(ridge: float, lowered: float, dtype: torch.dtype) -> int:
    """Of conjugate gradients on I − (ridge − lowered)·M⁻¹, to half of the digits of `dtype`.

    Its eigenvalues lie between lowered/ridge and 1 where M − ridge·I has none below zero, so a step lowers the error by
    (√κ − 1)/(√κ + 1) with κ = ridge/lowered.
    """
    root = math.sqrt(ridge / lowered)
    return 0 if root == 1 else math.ceil(math.log(half_the_digits(dtype) / 2) / math.log((root - 1) / (root + 1)))


def worth_iterating(steps: int, size: int) -> bool:
    """Whether so many solves with a factor at hand cost less than a new factor of that size."""
    return steps * SIZE_PER_STEP <= size


def lower_ridge(solve: Product, solved: Tensor, by: float, steps: int) -> Tensor | None:
    """(M − by·I)⁻¹ v from solves with M and `solved` = M⁻¹v, to half of the digits; None where M − by·I is not positive
    definite.

    It is the solution x of (I − by·M⁻¹) x = M⁻¹v.
    """
    if not steps:
        return solved
    found = conjugate_gradients(
        lambda p: p - by * solve(p),
        solved,
        tolerance=half_the_digits(solved.dtype),
        max_iterations=2 * steps + 10,  # rounding delays them
        check=False,  # a residual measured anew would only show the rounding of `solve`
    )
    return found.x if found.converged and not found.indefinite else None
