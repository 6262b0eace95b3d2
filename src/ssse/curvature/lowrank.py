"""The rows themselves, and the factor of their m×m kernel: exact whatever d is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.structure import Builder, LeftOut, Structure
from ssse.errors import InvalidData, InvalidSetting, PrecisionLost
from ssse.partition import LinearShape
from ssse.rows import HeldRows, StackedRows, join_rows, rows_from_tensors

TILE_ROWS = 4096
REFINABLE = 0.03  # a correction of this size squared is what remains of the error
TILE_BYTES = {"cpu": 2**29, "cuda": 2**33}


class LowRankBuilder(Builder):
    """Keeps every row, in tiles large enough for fast products; RRᵀ is made at the end, its lower half."""

    def __init__(self, salt: bytes = b"", dtype: torch.dtype | None = None) -> None:
        self.salt, self.dtype = salt, dtype
        self.parts: list[HeldRows] = []
        self.waiting: list[HeldRows] = []

    def add(self, rows: HeldRows) -> None:
        rows = rows if self.dtype is None else rows.to(self.dtype)
        self.waiting.append(rows)
        sample = next(iter(rows.tensors().values()))
        tile = min(TILE_ROWS, TILE_BYTES[sample.device.type] // (rows.dim * sample.element_size()))
        if sum(part.count for part in self.waiting) >= tile:
            self.close_tile()

    def close_tile(self) -> None:
        if self.waiting:
            self.parts.append(join_rows(self.waiting))
            self.waiting = []

    def kernel(self) -> Tensor:
        """RRᵀ on and below the diagonal."""
        self.close_tile()
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
        return LowRank(StackedRows(self.parts), dual, ridge, self.salt)


class LowRank(Structure):
    """M⁻¹ = (I − Rᵀ(RRᵀ + ridge·I)⁻¹R) / ridge, the dual form.

    Rows are left out by leaving them out: those of S are found again among the stored ones by a keyed
    digest of their sample, so a sample that was never in the curvature is noticed with certainty.
    With A = RRᵀ + ridge·I the leverages of S are exactly I − ridge·(A⁻¹)_SS.
    """

    kind = "lowrank"

    def __init__(self, rows: StackedRows, dual: DampedGram, ridge: float, salt: bytes):
        self.rows, self.dual, self.ridge, self.salt = rows, dual, ridge, salt

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
        dual = DampedGram.factorise(square, self.ridge, "rows")
        return LowRank(self.rows.select(kept), dual, self.ridge, self.salt)

    def with_ridge(self, ridge: float) -> LowRank:
        return LowRank(self.rows, self.dual.with_ridge(ridge), ridge, self.salt)

    def merged(self, other: LowRank, ridge: float) -> LowRank:
        builder = LowRankBuilder(self.salt)
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
        dual = DampedGram(state["dual.square"], state["dual.pivots"], ridge, "rows")
        return cls(rows, dual, ridge, bytes.fromhex(settings["salt"]))

    def settings(self) -> dict[str, object]:
        return {"salt": self.salt.hex()}

    def to(self, device: torch.device) -> LowRank:
        return LowRank(self.rows.to(device), self.dual.to(device), self.ridge, self.salt)

    def _dual_solve(self, b: Tensor) -> Tensor:
        return self.dual.solve(b[:, None])[:, 0]

    def _refined(self, v: Tensor, dual_solve, product) -> Tensor:
        """(v − Rᵀ dual_solve(Rv)) / ridge, once more on the residual: the difference loses digits."""

        def once(w: Tensor) -> Tensor:
            return (w - self.rows.transposed_times(dual_solve(self.rows.times(w)))) / self.ridge

        w = v.to(self.dual.square.dtype)
        x = once(w)
        correction = once(w - product(x) - self.ridge * x)
        error = float(correction.norm() / x.norm().clamp_min(torch.finfo(x.dtype).tiny))
        if error > REFINABLE:
            raise PrecisionLost(
                f"The dual form loses {error:.0%} of its solution to rounding in {x.dtype}: the rows are large over "
                "the damping. Use dtype=torch.float64 or a larger damping."
            )
        return (x + correction).to(v.dtype)

    def count_missing(self, digests: Tensor) -> int:
        """How many of these samples are not among the stored ones."""
        stored = set(_digest_list(self.rows))
        return sum(digest not in stored for digest in digests.tolist())

    def _find(self, rows: HeldRows) -> tuple[Tensor, int]:
        """Index of each given row among the stored ones, and how many have none.

        By the digest of its sample, so that it is found at any θ; equal samples count once each.
        """
        places: dict[int, list[int]] = defaultdict(list)
        for place, digest in enumerate(_digest_list(self.rows)):
            places[digest].append(place)
        found, missing = [], 0
        for digest in _digest_list(rows):
            if places[digest]:
                found.append(places[digest].pop(0))
            else:
                missing += 1
        return torch.tensor(found, dtype=torch.long, device=self.dual.square.device), missing


def _digest_list(rows: HeldRows) -> list[int]:
    if rows.digests is None:
        raise InvalidSetting("These rows do not say which samples they are of, so none can be left out.")
    return rows.digests.tolist()
