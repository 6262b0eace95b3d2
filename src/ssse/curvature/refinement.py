"""Solutions made better by their own residual, and how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Product

ROUNDS = 5  # of refinement, at most: where it converges, two are enough
ENOUGH = {torch.float32: 1e-6, torch.float64: 1e-11}  # relative residual that needs no further round
ACCEPTED_RESIDUAL = 1e-3  # relative, above which x is not the solution


@dataclass(frozen=True)
class Refined:
    """x with Mx ≈ v.

    Attributes:
        residual: ‖v − Mx‖, measured with products in float64.
        lost: the last correction over the length of x: of that size is the error that it corrected.
    """

    x: Tensor
    residual: float
    lost: float


def refine(solve: Product, product: Product, v: Tensor, working: torch.dtype) -> Refined:
    """Solve Mx = v by an inexact `solve`, and again for what is left while that falls; once more in any case.

    `solve` is given, and gives, the precision `working`; x, `product` and what is left are in float64.
    """
    v = v.double()
    enough = ENOUGH[working] * float(v.norm())
    x = solve(v.to(working)).double()
    left = v - product(x)
    residual, lost = float(left.norm()), 0.0
    for _ in range(ROUNDS):
        correction = solve(left.to(working)).double()
        lost = float(correction.norm() / x.norm().clamp_min(torch.finfo(x.dtype).tiny))
        better = x + correction
        remaining = v - product(better)
        smaller = float(remaining.norm())
        if not smaller < residual:
            break
        slow = smaller > residual / 2
        x, left, residual = better, remaining, smaller
        if slow or residual <= enough:
            break
    return Refined(x, residual, lost)


def relative_residual(residual: float, v: Tensor) -> float:
    """Over the length of v; 0 where both are 0."""
    return residual / max(float(v.norm()), torch.finfo(torch.float64).tiny)
