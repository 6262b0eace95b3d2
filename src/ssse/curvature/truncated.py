"""The leading r directions of the rows: r·d numbers instead of n·d."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.lowrank import LowRankBuilder
from ssse.curvature.refinement import Refined, refine, relative_residual
from ssse.curvature.structure import Builder, Gap, LeftOut, Structure
from ssse.errors import InvalidData, InvalidSetting, NotPositiveDefinite
from ssse.problem.parameters import LinearShape
from ssse.rows import wide
from ssse.rows.held import HeldRows, StackedRows


class TruncatedBuilder(Builder):
    """Keeps every row until the end, then their `rank` leading singular directions."""

    keeps_rows = True

    def __init__(self, rank: int, dtype: torch.dtype | None = None, linear: LinearShape | None = None):
        if rank < 1:
            raise InvalidSetting(f"rank must be at least 1, not {rank}.")
        self.rank = rank
        self.full: LowRankBuilder = LowRankBuilder(dtype=dtype, linear=linear)

    def add(self, rows: HeldRows) -> None:
        self.full.add(rows)

    def since_last(self) -> dict[str, Tensor]:
        return self.full.since_last()

    def take_in(self, tensors: dict[str, Tensor]) -> None:
        self.full.take_in(tensors)

    def mark(self) -> None:
        self.full.mark()

    def build(self, ridge: float) -> TruncatedStructure:
        """In float64 throughout: eigenvectors of small eigenvalues of RRᵀ lose orthogonality in float32."""
        self.full.close_tile()
        dtype = next(iter(self.full.parts[0].tensors().values())).dtype
        self.full.parts = [part.to(torch.float64) for part in self.full.parts]
        rows = StackedRows(self.full.parts)
        values, vectors = leading(self.full.kernel(), self.rank)
        basis = torch.linalg.qr(rows.transposed_times(vectors) / values.sqrt()).Q  # Vᵀ = Σ⁻¹UᵀR, made orthonormal
        inside = rows.times(basis)
        core = DampedGram.factorise((inside.mT @ inside).to(dtype), ridge, "directions")
        return TruncatedStructure(basis.mT.contiguous().to(dtype), core, ridge)


def leading(kernel: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Its largest eigenvalues, ascending, and their vectors; of the lower triangle, and at most those above zero."""
    values, vectors = torch.linalg.eigh(kernel)
    floor = float(values[-1]) * len(values) * torch.finfo(values.dtype).eps
    kept = min(rank, int((values > floor).sum()))
    if kept == 0:
        raise InvalidData("Every row is zero; there is no direction to keep.")
    return values[-kept:], vectors[:, -kept:]


class TruncatedStructure(Structure):
    """M = Vᵀ T V + ridge·I, V orthonormal rows (r×d), T the curvature inside their span.

    Outside the span only the damping acts. Rows are removed inside the span: subtracting more than was
    kept of them would leave M indefinite.
    """

    kind = "truncated"
    complete = False
    holds = "the strongest directions of the samples' rows, and the curvature in them"
    holds_after_erasure = "the leading directions of all samples; the forgotten ones were subtracted inside them"

    def __init__(self, basis: Tensor, core: DampedGram, ridge: float):
        self.basis: Tensor = basis
        self.core: DampedGram = core
        self.ridge: float = ridge

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        solved = self._solved(v, self.core)
        return solved.x.to(v.dtype), relative_residual(solved.residual, v)

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        inside = rows.to(self.basis.dtype).times(self.basis.mT)
        if len(inside) < len(self.basis):
            half = self.core.half_solve(inside.mT)
            leverages = Gap.of(half.mT @ half).leverages
        else:
            half = self.core.half_solve(self.core.half_solve(inside.mT @ inside).mT)
            leverages = Gap.of(half).leverages
        try:
            core = self._core_without([rows], ridge)
        except NotPositiveDefinite:
            return LeftOut(torch.full_like(v, torch.nan), leverages, torch.nan, "directions", indefinite=True)
        solved, total = self._solved(v, core), float(leverages.sum())
        residual = relative_residual(solved.residual, v)
        return LeftOut(solved.x.to(v.dtype), leverages, total, "directions", residual=residual)

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> TruncatedStructure:
        """Inside the span, and without the directions that are then empty: they would be the removed rows'."""
        values, vectors = torch.linalg.eigh(self._core_without(rows, ridge).gram().double())  # of the lower triangle
        kept = values > float(values[-1]) * len(values) * torch.finfo(self.basis.dtype).eps
        basis = (vectors[:, kept].mT @ self.basis.double()).to(self.basis.dtype)
        core = torch.diag(values[kept]).to(self.basis.dtype)
        return TruncatedStructure(basis, DampedGram.factorise(core, ridge, "directions"), ridge)

    def with_ridge(self, ridge: float) -> TruncatedStructure:
        return TruncatedStructure(self.basis, self.core.with_ridge(ridge), ridge)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        return self.core.solve_error(self.basis @ v.to(self.basis.dtype)), "directions"

    def state(self) -> dict[str, Tensor]:
        return {"basis": self.basis, "square": self.core.square, "pivots": self.core.pivots}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> TruncatedStructure:
        return cls(state["basis"], DampedGram(state["square"], state["pivots"], ridge, "directions"), ridge)

    def to(self, device: torch.device) -> TruncatedStructure:
        return TruncatedStructure(self.basis.to(device), self.core.to(device), self.ridge)

    def _core_without(self, rows: Iterable[HeldRows], ridge: float) -> DampedGram:
        square = self.core.gram()
        for part in rows:
            inside = part.to(self.basis.dtype).times(self.basis.mT)
            square -= (inside.mT @ inside).tril()
        return DampedGram.factorise(square, ridge, "directions")

    def _solved(self, v: Tensor, core: DampedGram) -> Refined:
        """M⁻¹ v inside the span, and by the damping alone outside of it."""

        def solve(w: Tensor) -> Tensor:
            inside = self.basis @ w
            return (w - self.basis.mT @ inside) / core.ridge + self.basis.mT @ core.solve(inside[:, None])[:, 0]

        def product(x: Tensor) -> Tensor:
            inside = wide.times(self.basis, x)
            curved = core.product(inside[:, None])[:, 0] - core.ridge * inside
            return wide.transposed_times(self.basis, curved) + core.ridge * x

        return refine(solve, product, v, self.basis.dtype)
