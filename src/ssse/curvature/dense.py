"""Dense blocks: one Gram matrix and its Cholesky factor per block of θ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.structure import Builder, LeftOut, Structure, close_gap
from ssse.errors import NotPositiveDefinite, PrecisionLost
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import HeldRows

ACCEPTED_LOSS = 1e-2  # of a step, to cancellation; the estimate is within a factor of about four


class DenseBuilder(Builder):
    """Accumulates RᵀR block by block, lower triangles only."""

    def __init__(self, blocks: Sequence[Block], dtype: torch.dtype, device: torch.device):
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.dtype = dtype
        self.squares: list[Tensor] = [
            torch.zeros(block.size, block.size, dtype=dtype, device=device) for block in blocks
        ]

    def add(self, rows: HeldRows) -> None:
        rows = rows.to(self.dtype)
        for block, square in zip(self.blocks, self.squares, strict=True):
            rows.add_gram(square, block)

    def build(self, ridge: float) -> DenseStructure:
        grams = [
            DampedGram.factorise(square, ridge, block.name)
            for block, square in zip(self.blocks, self.squares, strict=True)
        ]
        return DenseStructure(self.blocks, grams, ridge)


class DenseStructure(Structure):
    """M, block-diagonal. Exact where one block covers all of θ, or where the blocks do not interact."""

    kind = "dense"
    holds = "sums over all training samples"

    def __init__(self, blocks: Sequence[Block], grams: Sequence[DampedGram], ridge: float):
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.grams: tuple[DampedGram, ...] = tuple(grams)
        self.ridge = ridge

    @property
    def dtype(self) -> torch.dtype:
        return self.grams[0].square.dtype

    def solve(self, v: Tensor) -> Tensor:
        out = torch.empty_like(v)
        for block, gram in zip(self.blocks, self.grams, strict=True):
            part = block.take(v).to(self.dtype)
            block.put(out, gram.solve(part[:, None])[:, 0].to(v.dtype))
        return out

    def leave_out(self, rows: HeldRows, v: Tensor) -> LeftOut:
        rows = rows.to(self.dtype)
        out = torch.empty_like(v)
        worst, where, total, indefinite = torch.zeros(1, dtype=torch.float64), "", 0.0, False
        for block, gram in zip(self.blocks, self.grams, strict=True):
            part = _leave_out_of_block(gram, rows, block, block.take(v).to(self.dtype))
            block.put(out, part.solution.to(v.dtype))
            total += float(part.leverages.sum()) if part.all_leverages else torch.nan
            indefinite |= part.indefinite
            if not where or float(part.leverages[0]) > float(worst[0]):
                worst, where = part.leverages, block.name
        return LeftOut(out, worst, total, where, indefinite)

    def remove(self, rows: Iterable[HeldRows]) -> DenseStructure:
        squares = [gram.gram() for gram in self.grams]
        for part in rows:
            part = part.to(self.dtype)
            for block, square in zip(self.blocks, squares, strict=True):
                part.add_gram(square, block, sign=-1.0)
        return self._refactorised(squares, self.ridge)

    def with_ridge(self, ridge: float) -> DenseStructure:
        return self._refactorised([gram.gram() for gram in self.grams], ridge)

    def merged(self, other: DenseStructure, ridge: float) -> DenseStructure:
        """RᵀR summed over two shards of the data."""
        pairs = zip(self.grams, other.grams, strict=True)
        return self._refactorised([a.gram() + b.gram() for a, b in pairs], ridge)

    def _refactorised(self, squares: Sequence[Tensor], ridge: float) -> DenseStructure:
        grams = [
            DampedGram.factorise(square, ridge, gram.name) for square, gram in zip(squares, self.grams, strict=True)
        ]
        return DenseStructure(self.blocks, grams, ridge)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        """The largest measured relative error of `solve(v)` over the blocks, and the block it is in."""
        errors = [
            (gram.solve_error(block.take(v).to(self.dtype)), block.name)
            for block, gram in zip(self.blocks, self.grams, strict=True)
        ]
        return max(errors)

    def state(self) -> dict[str, Tensor]:
        tensors = {}
        for i, gram in enumerate(self.grams):
            tensors[f"{i}.square"] = gram.square
            tensors[f"{i}.pivots"] = gram.pivots
        return tensors

    def settings(self) -> dict[str, Any]:
        return {"blocks": [[block.name, [list(r) for r in block.ranges]] for block in self.blocks]}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> DenseStructure:
        blocks = [Block(name, tuple((a, b) for a, b in ranges)) for name, ranges in settings["blocks"]]
        grams = [
            DampedGram(state[f"{i}.square"], state[f"{i}.pivots"], ridge, block.name) for i, block in enumerate(blocks)
        ]
        return cls(blocks, grams, ridge)

    def to(self, device: torch.device) -> DenseStructure:
        return DenseStructure(self.blocks, [gram.to(device) for gram in self.grams], self.ridge)


@dataclass(frozen=True)
class _BlockLeftOut:
    solution: Tensor
    leverages: Tensor
    indefinite: bool = False
    all_leverages: bool = True


def _leave_out_of_block(gram: DampedGram, rows: HeldRows, block: Block, v: Tensor) -> _BlockLeftOut:
    """With HᵀH = M⁻¹, y = Hv and Y = HR_Sᵀ: K = YᵀY and M₋S⁻¹v = Hᵀ(y + Y(I − K)⁻¹Yᵀy)."""
    if rows.count_on(block) < block.size:
        half = gram.half_solve(torch.cat([rows.restricted(block).mT, v[:, None]], dim=1))
        y_rows, y_v = half[:, :-1], half[:, -1]
        correction, leverages = close_gap(y_rows.mT @ y_rows, y_rows.mT @ y_v)
        gap, blurred = 1 - float(leverages[0]), torch.finfo(v.dtype).eps ** 0.25
        if gap < -blurred:
            return _BlockLeftOut(torch.full_like(v, torch.nan), leverages, indefinite=True)
        if gap > blurred:
            return _BlockLeftOut(gram.half_solve_transposed((y_v + y_rows @ correction)[:, None])[:, 0], leverages)
    # More rows than parameters, or a leverage so near 1 that I − K has lost its digits:
    # subtract from the Gram matrix itself, which loses only what that subtraction loses.
    removed = torch.zeros_like(gram.square)
    rows.add_gram(removed, block)
    removed.tril_()
    try:
        remaining = DampedGram.factorise(gram.gram() - removed, gram.ridge, gram.name)
    except NotPositiveDefinite:
        nothing = torch.full_like(v, torch.nan)
        return _BlockLeftOut(nothing, _largest_leverage(gram, removed), indefinite=True, all_leverages=False)
    # The largest eigenvalue a of M₋S⁻¹M tells how much the subtraction cancelled: the leverage is 1 − 1/a.
    amplified = 1 + float(_largest_leverage(remaining, removed))
    lost = torch.finfo(v.dtype).eps * amplified
    if lost > ACCEPTED_LOSS:
        raise PrecisionLost(
            f"In block '{gram.name}' the forgotten samples determine a direction up to 1 part in {amplified:.1e}, and "
            f"{v.dtype} loses {lost:.1e} of the step there. Fit with dtype=torch.float64 or a larger damping."
        )
    leverages = torch.tensor([1 - 1 / amplified], dtype=torch.float64)  # alone: the trace is not known
    return _BlockLeftOut(remaining.solve(v[:, None])[:, 0], leverages, all_leverages=False)


def _largest_leverage(gram: DampedGram, removed: Tensor, steps: int = 30) -> Tensor:
    """The largest eigenvalue of (gram)⁻¹R_SᵀR_S from below, by power iteration; K is too large to form."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(removed), 1, generator=generator, dtype=torch.float64).to(removed)
    whole = removed + removed.tril(-1).mT
    value = 0.0
    for _ in range(steps):
        x = gram.half_solve(whole @ gram.half_solve_transposed(x / x.norm()))
        value = float(x.norm())
    return torch.tensor([value], dtype=torch.float64)
