"""The leading r directions of the rows: r·d numbers instead of n·d."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.lowrank import LowRankBuilder
from ssse.curvature.structure import Builder, LeftOut, Structure, close_gap
from ssse.errors import InvalidSetting, NotPositiveDefinite
from ssse.rows import HeldRows, StackedRows


class TruncatedBuilder(Builder):
    """Keeps every row until the end, then their `rank` leading singular directions."""

    def __init__(self, rank: int, dtype: torch.dtype | None = None):
        if rank < 1:
            raise InvalidSetting(f"rank must be at least 1, not {rank}.")
        self.rank = rank
        self.full = LowRankBuilder(dtype=dtype)

    def add(self, rows: HeldRows) -> None:
        self.full.add(rows)

    def build(self, ridge: float) -> Truncated:
        kernel = self.full.kernel()
        values, vectors = torch.linalg.eigh(kernel)  # of the lower triangle, ascending
        rank = min(self.rank, int((values > 0).sum()))
        values, vectors = values[-rank:], vectors[:, -rank:]
        rows = StackedRows(self.full.parts)
        basis = (rows.transposed_times(vectors) / values.sqrt()).mT.contiguous()  # Vᵀ = Σ⁻¹UᵀR
        return Truncated(basis, DampedGram.factorise(torch.diag(values), ridge, "directions"), ridge)


class Truncated(Structure):
    """M = Vᵀ T V + ridge·I, V orthonormal rows (r×d), T the curvature inside their span.

    Outside the span only the damping acts. Rows are removed inside the span: subtracting more than was
    kept of them would leave M indefinite.
    """

    kind = "truncated"

    def __init__(self, basis: Tensor, core: DampedGram, ridge: float):
        self.basis, self.core, self.ridge = basis, core, ridge

    def solve(self, v: Tensor) -> Tensor:
        return self._lifted(v, self.core)

    def leave_out(self, rows: HeldRows, v: Tensor) -> LeftOut:
        inside = rows.to(self.basis.dtype).times(self.basis.mT)
        if len(inside) < len(self.basis):
            half = self.core.half_solve(inside.mT)
            leverages = close_gap(half.mT @ half, half.new_zeros(half.shape[1]))[1]
        else:
            half = self.core.half_solve(self.core.half_solve(inside.mT @ inside).mT)
            leverages = close_gap(half, half.new_zeros(len(half)))[1]
        try:
            core = self._core_without([rows])
        except NotPositiveDefinite:
            return LeftOut(torch.full_like(v, torch.nan), leverages, torch.nan, "directions", indefinite=True)
        return LeftOut(self._lifted(v, core), leverages, float(leverages.sum()), "directions")

    def remove(self, rows: Iterable[HeldRows]) -> Truncated:
        return Truncated(self.basis, self._core_without(rows), self.ridge)

    def with_ridge(self, ridge: float) -> Truncated:
        return Truncated(self.basis, self.core.with_ridge(ridge), ridge)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        return self.core.solve_error(self.basis @ v.to(self.basis.dtype)), "directions"

    def state(self) -> dict[str, Tensor]:
        return {"basis": self.basis, "square": self.core.square, "pivots": self.core.pivots}

    @classmethod
    def from_state(cls, state: dict[str, Tensor], settings: dict, ridge: float) -> Truncated:
        return cls(state["basis"], DampedGram(state["square"], state["pivots"], ridge, "directions"), ridge)

    def to(self, device: torch.device) -> Truncated:
        return Truncated(self.basis.to(device), self.core.to(device), self.ridge)

    def _core_without(self, rows: Iterable[HeldRows]) -> DampedGram:
        square = self.core.gram()
        for part in rows:
            inside = part.to(self.basis.dtype).times(self.basis.mT)
            square -= (inside.mT @ inside).tril()
        return DampedGram.factorise(square, self.ridge, "directions")

    def _lifted(self, v: Tensor, core: DampedGram) -> Tensor:
        w = v.to(self.basis.dtype)
        inside = self.basis @ w
        x = (w - self.basis.mT @ inside) / self.ridge + self.basis.mT @ core.solve(inside[:, None])[:, 0]
        return x.to(v.dtype)
