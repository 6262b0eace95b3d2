"""Conjugate gradients on curvature–vector products: nothing held, the training data needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Solved, conjugate_gradients, dot, usual_tolerance
from ssse.curvature.dense import DenseStructure
from ssse.curvature.diagonal import DiagonalStructure
from ssse.curvature.structure import LeftOut, Structure
from ssse.errors import InvalidSetting
from ssse.problem.parameters import LinearShape
from ssse.rows.autodiff import held
from ssse.rows.held import HeldRows, Rows
from ssse.system.group import ALONE, Group

RowSource = Callable[[], Iterable[Rows]]


class Watch(Protocol):
    """Whoever wants to know how far a solution is."""

    def step(self, done: int, residual: float) -> None:
        """So many steps are done and left this relative residual; a pass over all rows begins."""

    def rows(self, count: int) -> None:
        """So many more rows have passed."""


class MatrixFreeStructure(Structure):
    """M x = Σ_batches Rᵀ(Rx) + ridge·x, solved by preconditioned conjugate gradients.

    The most exact structure for a network, and the only one that needs the training data when erasing.
    It stores its preconditioner; in memory it also keeps the rows of a linear model, where they fit.
    """

    kind = "matrix_free"
    reads_data = True
    holds = "nothing but a rough summary; every request reads the training data again"
    holds_after_erasure = "a preconditioner at most, from which the forgotten samples were subtracted"
    keeps_remainder = False

    def __init__(
        self,
        source: RowSource | None,
        ridge: float,
        preconditioner: Structure | None = None,
        tolerance: float | None = None,
        max_iterations: int = 1000,
        watch: Watch | None = None,
        group: Group = ALONE,
    ):
        self.source: RowSource | None = source
        self.ridge: float = ridge
        self.preconditioner: Structure | None = preconditioner
        self.tolerance: float | None = tolerance
        self.max_iterations: int = max_iterations
        self.watch: Watch | None = watch
        self.group: Group = group  # each process has a part of the rows

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        solved, _ = self._iterate(v, self.ridge)
        return solved.x, solved.residual

    def rough_solve(self, v: Tensor) -> Tensor:
        """By the preconditioner, where there is one."""
        return self.solve(v) if self.preconditioner is None else self.preconditioner.solve(v)

    def leave_out(self, rows: HeldRows | None, v: Tensor, ridge: float) -> LeftOut:
        solved, leverage = self._iterate(v, ridge, without=rows)
        leverages = torch.tensor([leverage], dtype=torch.float64)
        return LeftOut(
            solved.x, leverages, torch.nan, "all", solved.indefinite,
            converged=solved.converged, note=str(solved), residual=solved.residual,
        )  # fmt: skip

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> MatrixFreeStructure:
        """Without a source: the next request must bring the training data that remains."""
        preconditioner = self.preconditioner
        if preconditioner is not None:
            preconditioner = preconditioner.remove((held(part) for part in rows), ridge)
        return MatrixFreeStructure(None, ridge, preconditioner, self.tolerance, self.max_iterations)

    def bound(self, source: RowSource, group: Group = ALONE) -> MatrixFreeStructure:
        return MatrixFreeStructure(
            source, self.ridge, self.preconditioner, self.tolerance, self.max_iterations, group=group
        )

    def watched(self, watch: Watch) -> MatrixFreeStructure:
        """The same for one solution that somebody looks at; what is made from it is not watched."""
        return MatrixFreeStructure(
            self.source, self.ridge, self.preconditioner, self.tolerance, self.max_iterations, watch, self.group
        )

    def with_ridge(self, ridge: float) -> MatrixFreeStructure:
        preconditioner = None if self.preconditioner is None else self.preconditioner.with_ridge(ridge)
        return MatrixFreeStructure(
            self.source, ridge, preconditioner, self.tolerance, self.max_iterations, group=self.group
        )

    def _iterate(self, v: Tensor, ridge: float, without: Rows | None = None) -> tuple[Solved, float]:
        """Solve M₋S x = v, with the damping `ridge`; also the largest share of pᵀMp that R_S had along any direction p
        tried. The preconditioner keeps the damping of all the data."""
        leverage, removed = 0.0, torch.zeros_like(v)

        def product(p: Tensor) -> Tensor:
            nonlocal removed
            image, removed = self._product(p, ridge, without)
            return image

        def observe(p: Tensor, curvature: float) -> None:
            nonlocal leverage
            share = float(dot(p, removed))
            whole = curvature + share + (self.ridge - ridge) * float(dot(p, p))
            leverage = max(leverage, share / max(whole, torch.finfo(torch.float64).tiny))

        solved = conjugate_gradients(
            product,
            v,
            tolerance=self.tolerance or usual_tolerance(v.dtype),
            max_iterations=self.max_iterations,
            precondition=self._precondition,
            observe=observe,
            watch=None if self.watch is None else self.watch.step,
        )
        return solved, leverage

    def _product(self, p: Tensor, ridge: float, without: Rows | None) -> tuple[Tensor, Tensor]:
        """(RᵀR + ridge·I − R_SᵀR_S) p and R_SᵀR_S p."""
        if self.source is None:
            raise InvalidSetting(
                "A matrix-free curvature holds no rows: pass the training data, ssse.erase(..., data=train_loader); "
                "after an erasure, the training data that remains."
            )
        product = torch.zeros_like(p)
        with self.group.together():  # data that cannot be read on one process ends all
            for rows in self.source():
                product += rows.transposed_times(rows.times(p))
                if self.watch is not None:
                    self.watch.rows(rows.count)
        product = self.group.sum(product) + ridge * p
        removed = torch.zeros_like(p) if without is None else without.transposed_times(without.times(p))
        return product - removed, removed

    def _precondition(self, r: Tensor) -> Tensor:
        return r / self.ridge if self.preconditioner is None else self.preconditioner.solve(r)

    def state(self) -> dict[str, Tensor]:
        return {} if self.preconditioner is None else self.preconditioner.state()

    def settings(self) -> dict[str, object]:
        inner = self.preconditioner
        return {
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
            "preconditioner": None if inner is None else {"kind": inner.kind, "settings": inner.settings()},
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> MatrixFreeStructure:
        inner, kinds = settings["preconditioner"], {kind.kind: kind for kind in (DenseStructure, DiagonalStructure)}
        preconditioner = inner and kinds[inner["kind"]].from_state(state, inner["settings"], ridge)
        return cls(None, ridge, preconditioner, settings["tolerance"], settings["max_iterations"])

    def to(self, device: torch.device) -> MatrixFreeStructure:
        inner = None if self.preconditioner is None else self.preconditioner.to(device)
        return MatrixFreeStructure(None, self.ridge, inner, self.tolerance, self.max_iterations)
