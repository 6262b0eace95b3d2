"""The rows themselves, and the factor of their m×m kernel: exact whatever d is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.structure import Builder, LeftOut, Structure
from ssse.errors import InvalidData
from ssse.partition import LinearShape
from ssse.rows import HeldRows, StackedRows, join_rows, rows_from_tensors

SIGNATURE_LENGTH = 8
TILE_ROWS = 4096
TILE_BYTES = {"cpu": 2**29, "cuda": 2**33}


class LowRankBuilder(Builder):
    """Keeps every row, in tiles large enough for fast products; RRᵀ is made at the end, its lower half."""

    def __init__(self) -> None:
        self.parts: list[HeldRows] = []
        self.waiting: list[HeldRows] = []

    def add(self, rows: HeldRows) -> None:
        self.waiting.append(rows)
        sample = next(iter(rows.tensors().values()))
        tile = min(TILE_ROWS, TILE_BYTES[sample.device.type] // (rows.dim * sample.element_size()))
        if sum(part.count for part in self.waiting) >= tile:
            self._close_tile()

    def _close_tile(self) -> None:
        if self.waiting:
            self.parts.append(join_rows(self.waiting))
            self.waiting = []

    def kernel(self) -> Tensor:
        """RRᵀ on and below the diagonal."""
        self._close_tile()
        count = sum(part.count for part in self.parts)
        sample = next(iter(self.parts[0].tensors().values()))
        square = torch.zeros(count, count, dtype=sample.dtype, device=sample.device)
        top = 0
        for i, part in enumerate(self.parts):
            left = 0
            for other in self.parts[: i + 1]:
                square[top : top + part.count, left : left + other.count] = part.kernel(other)
                left += other.count
            top += part.count
        return square

    def build(self, ridge: float) -> LowRank:
        dual = DampedGram.factorise(self.kernel(), ridge, "rows")  # closes the last tile
        return LowRank(StackedRows(self.parts), dual, ridge)


class LowRank(Structure):
    """M⁻¹ = (I − Rᵀ(RRᵀ + ridge·I)⁻¹R) / ridge, the dual form.

    Rows are left out by leaving them out: those of S are found again among the stored ones by a few
    random projections, so a sample that was never in the curvature is noticed with certainty.
    With A = RRᵀ + ridge·I the leverages of S are exactly I − ridge·(A⁻¹)_SS.
    """

    kind = "lowrank"

    def __init__(self, rows: StackedRows, dual: DampedGram, ridge: float):
        self.rows, self.dual, self.ridge = rows, dual, ridge
        self._signatures: Tensor | None = None

    def solve(self, v: Tensor) -> Tensor:
        return self._refined(v, self._dual_solve, lambda x: self.rows.transposed_times(self.rows.times(x)))

    def leave_out(self, rows: HeldRows, v: Tensor) -> LeftOut:
        index, missing = self._find(rows)
        if missing:
            unknown = torch.full((1,), torch.nan)
            return LeftOut(torch.full_like(v, torch.nan), unknown, torch.nan, "rows", missing=missing)
        size, count = len(self.dual.square), len(index)
        unit = torch.zeros(size, count, dtype=self.dual.square.dtype, device=self.dual.square.device)
        unit[index, torch.arange(count, device=unit.device)] = 1
        columns = self.dual.solve(unit)  # A⁻¹E_S
        corner = columns[index]  # (A⁻¹)_SS
        values = torch.linalg.eigvalsh(((corner + corner.mT) / 2).double())
        leverages = (1 - self.ridge * values).clamp_max(1.0)
        inner = torch.linalg.cholesky(corner.double())

        def without(b: Tensor) -> Tensor:
            """A₋S,₋S⁻¹ b by forcing the entries of S in A⁻¹b to zero."""
            b = b.clone()
            b[index] = 0
            y = self.dual.solve(b[:, None])[:, 0]
            y -= columns @ torch.cholesky_solve(y[index, None].double(), inner)[:, 0].to(y.dtype)
            y[index] = 0
            return y

        def product(x: Tensor) -> Tensor:
            u = self.rows.times(x)
            u[index] = 0
            return self.rows.transposed_times(u)

        return LeftOut(self._refined(v, without, product), leverages, float(leverages.sum()), "rows")

    def remove(self, rows: Iterable[HeldRows]) -> LowRank:
        index, missing = self._find(StackedRows(list(rows)))
        if missing:
            raise InvalidData(f"{missing} of the rows to remove are not among the curvature's rows.")
        keep = torch.ones(self.rows.count, dtype=torch.bool, device=index.device)
        keep[index] = False
        kept = keep.nonzero()[:, 0]
        square = self.dual.gram()[kept][:, kept]
        return LowRank(self.rows.select(kept), DampedGram.factorise(square, self.ridge, "rows"), self.ridge)

    def with_ridge(self, ridge: float) -> LowRank:
        return LowRank(self.rows, self.dual.with_ridge(ridge), ridge)

    def merged(self, other: LowRank, ridge: float) -> LowRank:
        builder = LowRankBuilder()
        builder.parts = [*self.rows.parts, *other.rows.parts]
        return builder.build(ridge)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        return self.dual.solve_error(self.rows.times(v).to(self.dual.square.dtype)), "rows"

    def state(self) -> dict[str, Tensor]:
        return {**self.rows.tensors(), "dual.square": self.dual.square, "dual.pivots": self.dual.pivots}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict, ridge: float, shape: LinearShape | None = None
    ) -> LowRank:
        rows = rows_from_tensors({k: v for k, v in state.items() if not k.startswith("dual.")}, shape)
        return cls(rows, DampedGram(state["dual.square"], state["dual.pivots"], ridge, "rows"), ridge)

    def to(self, device: torch.device) -> LowRank:
        return LowRank(self.rows.to(device), self.dual.to(device), self.ridge)

    def _dual_solve(self, b: Tensor) -> Tensor:
        return self.dual.solve(b[:, None])[:, 0]

    def _refined(self, v: Tensor, dual_solve, product) -> Tensor:
        """(v − Rᵀ dual_solve(Rv)) / ridge, once more on the residual: the difference loses digits."""

        def once(w: Tensor) -> Tensor:
            return (w - self.rows.transposed_times(dual_solve(self.rows.times(w)))) / self.ridge

        x = once(v)
        return x + once(v - product(x) - self.ridge * x)

    def _find(self, rows: HeldRows) -> tuple[Tensor, int]:
        """Index of each given row among the stored ones, and how many have none."""
        if self._signatures is None:
            self._signatures = _signatures(self.rows)
        wanted, stored = _signatures(rows), self._signatures
        coarse = 1e-2 if next(iter(rows.tensors().values())).dtype != torch.float64 else 1e-6
        limit = coarse * wanted.norm(dim=1) + 0.1 * coarse * stored.square().sum(1).mean().sqrt()
        used = torch.zeros(len(stored), dtype=torch.bool, device=stored.device)
        found: list[Tensor] = []
        missing = 0
        for part, bound in zip(wanted.split(512), limit.split(512), strict=True):
            distance = torch.cdist(part, stored)
            nearest = distance.argmin(1)
            if bool(used[nearest].any()) or len(nearest.unique()) < len(nearest):
                nearest = _one_to_one(distance, used)
            used[nearest] = True
            missing += int((distance.gather(1, nearest[:, None])[:, 0] > bound).sum())
            found.append(nearest)
        return torch.cat(found), missing


def _one_to_one(distance: Tensor, used: Tensor) -> Tensor:
    """Nearest unused row for each, in turn: equal rows are as good as each other, but each counts once."""
    used = used.clone()
    chosen = []
    for row in distance:
        best = row.masked_fill(used, torch.inf).argmin()
        used[best] = True
        chosen.append(best)
    return torch.stack(chosen)


def _signatures(rows: HeldRows) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.dim, SIGNATURE_LENGTH, generator=generator, dtype=torch.float64)
    sample = next(iter(rows.tensors().values()))
    return rows.times(directions.to(sample)).double()
