"""The rows themselves, and per block the factor of their m×m kernel: exact whatever the size of the block is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.dual import Dual
from ssse.curvature.gram import DampedGram
from ssse.curvature.refinement import relative_residual
from ssse.curvature.structure import Builder, LeftOut, Structure
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.parameters import Block, LinearShape
from ssse.problem.sample_digests import find_places
from ssse.rows.held import HeldRows, LinearRows, SlabRows, StackedRows
from ssse.rows.joined import join_rows, rows_from_tensors
from ssse.rows.margin import MarginRows
from ssse.rows.wide import Sums

TILE_ROWS = 4096
TILE_BYTES = {"cpu": 2**29, "cuda": 2**33}


def everything(dim: int) -> Block:
    """The one block where none were asked for."""
    return Block("rows", ((0, dim),))


class LowRankBuilder(Builder):
    """Keeps every row, in tiles large enough for fast products; RRᵀ of every block is made at the end, its lower half.

    Without `blocks`, one block over everything. `kernel_dtype`: the precision of RRᵀ and its factor, where it is wider
    than that of the rows. The few numbers of a linear model's rows are then kept in it too. `split`: RRᵀ of
    float32 rows on tensor cores.
    """

    keeps_rows = True

    def __init__(
        self,
        salt: bytes = b"",
        dtype: torch.dtype | None = None,
        blocks: Sequence[Block] = (),
        kernel_dtype: torch.dtype | None = None,
        linear: LinearShape | None = None,
        split: bool = False,
    ) -> None:
        self.salt: bytes = salt
        self.dtype: torch.dtype | None = dtype
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.kernel_dtype: torch.dtype | None = kernel_dtype
        self.linear: LinearShape | None = linear
        self.split: bool = split
        self.parts: list[HeldRows] = []
        self.waiting: list[HeldRows] = []
        self.marked: int = 0  # parts that are kept elsewhere

    def add(self, rows: HeldRows) -> None:
        rows = rows if self.dtype is None else rows.to(self.dtype)
        if self.kernel_dtype is not None and isinstance(rows, LinearRows):
            rows = rows.to(self.kernel_dtype)
        self.waiting.append(rows)
        sample = next(iter(rows.tensors().values()))
        tile = min(TILE_ROWS, TILE_BYTES[sample.device.type] // (rows.dim * sample.element_size()))
        if sum(part.count for part in self.waiting) >= tile:
            self.close_tile()

    def close_tile(self) -> None:
        if self.waiting:
            self.parts.append(join_rows(self.waiting))
            self.waiting = []

    def since_last(self) -> dict[str, Tensor]:
        self.close_tile()
        fresh = self.parts[self.marked :]
        return StackedRows(fresh).tensors() if fresh else {}

    def take_in(self, tensors: dict[str, Tensor]) -> None:
        self.close_tile()
        self.parts += rows_from_tensors(tensors, self.linear).parts if tensors else []

    def mark(self) -> None:
        self.close_tile()
        self.marked = len(self.parts)

    def kernel(self, block: Block | None = None) -> Tensor:
        """RRᵀ on and below the diagonal, over the columns of one block, or over all; of margins ∇φ∇φᵀ."""
        self.close_tile()
        apart = weights_of(self.parts) is not None
        parts = [columns_of(part, block or everything(part.dim), apart) for part in self.parts]
        count = sum(part.count for part in parts)
        sample = next(iter(self.parts[0].tensors().values()))
        dtype = self.kernel_dtype or sample.dtype
        sums: Sums = "split" if self.split else dtype
        square = torch.zeros(count, count, dtype=dtype, device=sample.device)
        top = 0
        for i, part in enumerate(parts):
            left = 0
            for other in parts[: i + 1]:
                square[top : top + part.count, left : left + other.count] = part.kernel(other, sums)
                left += other.count
            top += part.count
        return square

    def build(self, ridge: float) -> LowRankStructure:
        self.close_tile()
        blocks, weights = self.blocks or (everything(self.parts[0].dim),), weights_of(self.parts)
        grams = []
        for block in blocks:
            square = self.kernel(block)
            apart = None if weights is None else weights.to(square.dtype)
            grams.append(DampedGram.factorise(square, ridge, block.name, apart))
        return LowRankStructure(StackedRows(self.parts), blocks, grams, ridge, self.salt)


def weights_of(parts: Sequence[HeldRows]) -> Tensor | None:
    """Of rows that keep them apart, all of them: their kernel is without. Earlier versions stored them multiplied."""
    margins = [part for part in parts if isinstance(part, MarginRows)]
    return torch.cat([part.weights for part in margins]) if len(margins) == len(parts) else None


def columns_of(part: HeldRows, block: Block, apart: bool) -> SlabRows:
    """Without the weights where they are kept apart."""
    return (part.unweighted if apart and isinstance(part, MarginRows) else part).columns(block)


class LowRankStructure(Structure):
    """M, block-diagonal, in the dual form: the rows once, and for each block an m×m kernel of its columns.

    Of margin rows the kernel is of ∇φ without weights, ∇φ∇φᵀ: another damping, other weights and other samples left out
    cost one factor, and no pass over the rows.

    Rows are left out by leaving them out: those of S are found again among the stored ones by a keyed
    digest of their sample, so a sample that was never in the curvature is noticed with certainty.
    """

    kind = "lowrank"
    holds = "one row for every training sample; for a linear model the rows are the samples' inputs themselves"
    holds_after_erasure = (
        "the rows of every sample that stays; those of the forgotten samples were taken out. The old model's outputs "
        "on the others can still be read off it"
    )
    keeps_remainder = False

    def __init__(self, rows: Any, blocks: Sequence[Block], grams: Sequence[Any], ridge: float, salt: bytes):
        self.rows: Any = rows  # StackedRows; of several processes SharedRows
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.grams: tuple[Any, ...] = tuple(grams)  # DampedGram; of several processes SharedKernel
        self.ridge: float = ridge
        self.salt: bytes = salt

    @property
    def kernel_dtype(self) -> torch.dtype:
        """That everything is solved in; the rows may be in a narrower one."""
        return self.grams[0].dtype

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        out, squared = torch.empty_like(v), 0.0
        for block, dual in self._duals():
            solved = dual.solve(block.take(v))
            block.put(out, solved.x.to(v.dtype))
            squared += solved.residual**2
        return out, relative_residual(squared**0.5, v)

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        index, missing = self.find(rows)
        if missing:
            unknown = torch.full((1,), torch.nan)
            return LeftOut(torch.full_like(v, torch.nan), unknown, torch.nan, self.blocks[0].name, missing=missing)
        out = torch.empty_like(v)
        worst, where, total, squared = torch.zeros(1, dtype=torch.float64), "", 0.0, 0.0
        for block, dual in self._duals():
            part = dual.leave_out(index, block.take(v), ridge)
            block.put(out, part.solved.x.to(v.dtype))
            squared += part.solved.residual**2
            total += float(part.leverages.sum()) if part.all_leverages else torch.nan
            if not where or float(part.leverages[0]) > float(worst[0]):
                worst, where = part.leverages, block.name
        return LeftOut(out, worst, total, where, residual=relative_residual(squared**0.5, v))

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> LowRankStructure:
        index, missing = self.find(StackedRows(list(rows)))
        if missing:
            raise InvalidData(f"{missing} of the rows to remove are not among the curvature's rows.")
        keep = torch.ones(self.rows.count, dtype=torch.bool, device=index.device)
        keep[index] = False
        kept = keep.nonzero()[:, 0]
        grams = [gram.of(kept, ridge) for gram in self.grams]
        return type(self)(self.rows.select(kept), self.blocks, grams, ridge, self.salt)

    def with_ridge(self, ridge: float) -> LowRankStructure:
        return type(self)(self.rows, self.blocks, [gram.with_ridge(ridge) for gram in self.grams], ridge, self.salt)

    def merged(self, other: LowRankStructure, ridge: float) -> LowRankStructure:
        widest = torch.promote_types(self.kernel_dtype, other.kernel_dtype)
        builder = LowRankBuilder(self.salt, blocks=self.blocks, kernel_dtype=widest)
        builder.parts = [*self.rows.parts, *other.rows.parts]
        return builder.build(ridge)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        """The largest measured relative error of a kernel's solution over the blocks, and the block it is in."""
        return max((dual.solve_error(block.take(v)), block.name) for block, dual in self._duals())

    def state(self) -> dict[str, Tensor]:
        tensors = self.rows.tensors()
        for name, gram in zip(stored_names(len(self.grams)), self.grams, strict=True):
            tensors[f"{name}.square"] = gram.square
            tensors[f"{name}.pivots"] = gram.pivots
        return tensors

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> LowRankStructure:
        rows = rows_from_tensors({k: v for k, v in state.items() if not k.startswith("dual.")}, linear)
        blocks = [Block(name, tuple((a, b) for a, b in ranges)) for name, ranges in settings.get("blocks", ())]
        blocks = blocks or [everything(rows.dim)]
        grams = []
        for name, block in zip(stored_names(len(blocks)), blocks, strict=True):
            square, weights = state[f"{name}.square"], weights_of(rows.parts)
            apart = None if weights is None else weights.to(square)
            grams.append(DampedGram(square, state[f"{name}.pivots"], ridge, block.name, apart))
        return cls(rows, blocks, grams, ridge, bytes.fromhex(settings["salt"]))

    def settings(self) -> dict[str, Any]:
        """Without blocks where there is one over everything: so it was stored before there were blocks."""
        settings: dict[str, Any] = {"salt": self.salt.hex()}
        if self.blocks != (everything(self.rows.dim),):
            settings["blocks"] = [[block.name, [list(r) for r in block.ranges]] for block in self.blocks]
        return settings

    def to(self, device: torch.device) -> LowRankStructure:
        grams = [gram.to(device) for gram in self.grams]
        return LowRankStructure(self.rows.to(device), self.blocks, grams, self.ridge, self.salt)

    def count_missing(self, digests: Tensor) -> int:
        """How many of these samples are not among the stored ones."""
        stored = set(_digest_list(self.rows))
        return sum(digest not in stored for digest in digests.tolist())

    def find(self, rows: HeldRows) -> tuple[Tensor, int]:
        """Index of each given row among the stored ones, and how many have none.

        By the digest of its sample, so that it is found at any θ; equal samples count once each.
        """
        places = find_places(_digest_list(rows), _digest_list(self.rows))
        stored = [place for place in places if place is not None]
        device = self.grams[0].device
        return torch.tensor(stored, dtype=torch.long, device=device), len(places) - len(stored)

    def _duals(self) -> Iterator[tuple[Block, Dual]]:
        for block, gram in zip(self.blocks, self.grams, strict=True):
            yield block, Dual(self.rows.columns(block), gram)


def stored_names(blocks: int) -> list[str]:
    """Of the kernels; a single one has the name from before there were blocks."""
    return ["dual"] if blocks == 1 else [f"dual.{i}" for i in range(blocks)]


def _digest_list(rows: HeldRows) -> list[int]:
    if rows.digests is None:
        raise InvalidSetting("These rows do not say which samples they are of, so none can be left out.")
    return rows.digests.tolist()
