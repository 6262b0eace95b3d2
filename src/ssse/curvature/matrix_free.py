"""Conjugate gradients on curvature–vector products: nothing held, the training data needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.structure import LeftOut, Structure
from ssse.errors import InvalidSetting
from ssse.rows.autodiff import held
from ssse.rows.held import HeldRows, Rows

RowSource = Callable[[], Iterable[Rows]]


@dataclass(frozen=True)
class Solved:
    """A solution by conjugate gradients, with its own account of how good it is."""

    x: Tensor
    iterations: int
    residual: float  # ‖v − Ax‖/‖v‖
    converged: bool
    leverage: float  # the largest share of pᵀMp that the left-out rows had along any direction p tried
    indefinite: bool


class MatrixFree(Structure):
    """M x = Σ_batches Rᵀ(Rx) + ridge·x, solved by preconditioned conjugate gradients.

    The most exact structure for a network, and the only one that needs the training data when erasing.
    It stores its preconditioner; in memory it also keeps the rows of a linear model, where they fit.
    """

    kind = "matrix_free"

    def __init__(
        self,
        source: RowSource | None,
        ridge: float,
        preconditioner: Structure | None = None,
        tolerance: float | None = None,
        max_iterations: int = 1000,
    ):
        self.source, self.ridge, self.preconditioner = source, ridge, preconditioner
        self.tolerance, self.max_iterations = tolerance, max_iterations

    def solve(self, v: Tensor) -> Tensor:
        return self.conjugate_gradients(v).x

    def leave_out(self, rows: HeldRows | None, v: Tensor) -> LeftOut:
        solved = self.conjugate_gradients(v, without=rows)
        note = f"{solved.iterations} steps of conjugate gradients, relative residual {solved.residual:.1e}"
        if not solved.converged:
            note += f", not below the tolerance {self._tolerance(v):.0e}"
        leverages = torch.tensor([solved.leverage], dtype=torch.float64)
        return LeftOut(solved.x, leverages, torch.nan, "all", solved.indefinite, converged=solved.converged, note=note)

    def remove(self, rows: Iterable[HeldRows]) -> MatrixFree:
        """Without a source: the next request must bring the training data that remains."""
        preconditioner = self.preconditioner
        if preconditioner is not None:
            preconditioner = preconditioner.remove(held(part) for part in rows)
        return MatrixFree(None, self.ridge, preconditioner, self.tolerance, self.max_iterations)

    def bound(self, source: RowSource) -> MatrixFree:
        return MatrixFree(source, self.ridge, self.preconditioner, self.tolerance, self.max_iterations)

    def with_ridge(self, ridge: float) -> MatrixFree:
        preconditioner = None if self.preconditioner is None else self.preconditioner.with_ridge(ridge)
        return MatrixFree(self.source, ridge, preconditioner, self.tolerance, self.max_iterations)

    def conjugate_gradients(self, v: Tensor, without: Rows | None = None) -> Solved:
        """Solve (M − R_SᵀR_S) x = v, from x = 0."""
        tolerance = self._tolerance(v)
        x, r = torch.zeros_like(v), v.clone()
        z = self._precondition(r)
        p, rz = z.clone(), _dot(r, z)
        target, leverage = tolerance * float(v.norm()), 0.0
        iterations, indefinite = 0, False
        while float(r.norm()) > target and iterations < self.max_iterations:
            product, removed = self._product(p, without)
            curvature = _dot(p, product)
            share = _dot(p, removed) / max(curvature + _dot(p, removed), torch.finfo(torch.float64).tiny)
            leverage = max(leverage, share)
            if curvature <= 0:
                indefinite = True
                break
            step = rz / curvature
            x.add_(p, alpha=step)
            r.sub_(product, alpha=step)
            z = self._precondition(r)
            rz, previous = _dot(r, z), rz
            p = z.add(p, alpha=rz / previous)
            iterations += 1
        if not indefinite:
            r = v - self._product(x, without)[0]  # the true one: the recursion's drifts from it
        residual = float(r.norm()) / max(float(v.norm()), torch.finfo(v.dtype).tiny)
        return Solved(x, iterations, residual, residual <= 2 * tolerance, leverage, indefinite)

    def _product(self, p: Tensor, without: Rows | None) -> tuple[Tensor, Tensor]:
        """(M − R_SᵀR_S) p and R_SᵀR_S p."""
        if self.source is None:
            raise InvalidSetting(
                "A matrix-free curvature holds no rows: pass the training data, ssse.erase(..., data=train_loader); "
                "after an erasure, the training data that remains."
            )
        product = self.ridge * p
        for rows in self.source():
            product += rows.transposed_times(rows.times(p))
        removed = torch.zeros_like(p) if without is None else without.transposed_times(without.times(p))
        return product - removed, removed

    def _precondition(self, r: Tensor) -> Tensor:
        return r / self.ridge if self.preconditioner is None else self.preconditioner.solve(r)

    def _tolerance(self, v: Tensor) -> float:
        return self.tolerance or (1e-10 if v.dtype == torch.float64 else 1e-4)

    def state(self) -> dict[str, Tensor]:
        return {} if self.preconditioner is None else self.preconditioner.state()

    def settings(self) -> dict[str, object]:
        inner = self.preconditioner
        return {
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
            "preconditioner": None if inner is None else {"kind": inner.kind, "settings": inner.settings()},
        }

    def to(self, device: torch.device) -> MatrixFree:
        inner = None if self.preconditioner is None else self.preconditioner.to(device)
        return MatrixFree(None, self.ridge, inner, self.tolerance, self.max_iterations)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.double(), b.double()))
