"""Preconditioned conjugate gradients, with an account of their own accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solved:
    """x with Ax ≈ v.

    Attributes:
        residual: ‖v − Ax‖/‖v‖; measured anew, since the recursion's drifts from it.
        indefinite: a direction without curvature was met, and x is where the iteration stopped before it.
    """

    x: Tensor
    iterations: int
    residual: float
    tolerance: float
    indefinite: bool = False

    @property
    def converged(self) -> bool:
        return self.residual <= 2 * self.tolerance

    def __str__(self) -> str:
        text = f"{self.iterations} steps of conjugate gradients, relative residual {self.residual:.1e}"
        return text if self.converged else f"{text}, not below the tolerance {self.tolerance:.0e}"


def usual_tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-4


def conjugate_gradients(
    product: Product,
    v: Tensor,
    *,
    tolerance: float,
    max_iterations: int,
    precondition: Product = torch.clone,
    inner: Callable[[Tensor, Tensor], Tensor] | None = None,
    observe: Callable[[Tensor, float], None] | None = None,
    watch: Callable[[int, float], None] | None = None,
    check: bool = True,
) -> Solved:
    """Solve Ax = v from x = 0, A symmetric and positive definite.

    Args:
        product: p → Ap. precondition: r → P⁻¹r, P near A.
        tolerance: ‖v − Ax‖/‖v‖ to stop at. max_iterations: to stop after.
        inner: the inner product; one that gives a column solves a system for each row of v, all in the same products.
        observe: told every direction p and pᵀAp, right after its product; what it raises ends the iteration.
        watch: told before every product how many steps are done and the relative residual that they left.
        check: measure the residual anew, by one more product.
    """
    inner = inner or dot
    length = max(float(v.norm()), torch.finfo(v.dtype).tiny)
    x, r = torch.zeros_like(v), v.clone()
    z = precondition(r)
    p, rz = z.clone(), inner(r, z)
    iterations, indefinite = 0, False
    while (left := float(r.norm())) > tolerance * float(v.norm()) and iterations < max_iterations:
        if watch is not None:
            watch(iterations, left / length)
        image = product(p)
        curvature = inner(p, image)
        if observe is not None:
            observe(p, float(curvature))
        if bool((curvature <= 0 if curvature.dim() == 0 else curvature < 0).any()):
            indefinite = True
            break
        step = _ratio(rz, curvature)
        _add(x, p, step)
        _add(r, image, -step)
        z = precondition(r)
        rz, previous = inner(r, z), rz
        p = _add(z.clone(), p, _ratio(rz, previous))
        iterations += 1
    if check and not indefinite:
        if watch is not None:
            watch(iterations, float(r.norm()) / length)
        r = v - product(x)
    return Solved(x, iterations, float(r.norm()) / length, tolerance, indefinite)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """In float64, shape ()."""
    return torch.dot(a.double(), b.double())


def _add(x: Tensor, p: Tensor, factor: Tensor) -> Tensor:
    return x.add_(p, alpha=float(factor)) if factor.dim() == 0 else x.add_(factor.to(p.dtype) * p)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """Of a system that is solved already, among several, both are zero."""
    return torch.where(b > 0, a / b, 0.0)
