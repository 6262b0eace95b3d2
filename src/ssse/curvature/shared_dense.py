"""Dense blocks on several processes: each factorises and solves those that it owns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.dense import DenseBuilder, DenseStructure
from ssse.curvature.gram import DampedGram
from ssse.curvature.structure import LeftOut, Structure
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import HeldRows
from ssse.system.group import ALONE, Group

STRIP = 1024  # rows of a lower triangle that are summed at a time


def owners_of(blocks: Sequence[Block], processes: int) -> tuple[int, ...]:
    """The largest block first, each to whoever has the least to factorise."""
    owners, work = [0] * len(blocks), [0.0] * processes
    for place in sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, i)):
        owners[place] = min(range(processes), key=lambda rank: (work[rank], rank))
        work[owners[place]] += float(blocks[place].size) ** 3
    return tuple(owners)


def share_dense(builder: DenseBuilder, ridge: float, group: Group) -> SharedDense:
    """Every Gram matrix is summed once, at its owner, its lower triangle alone."""
    owners, grams = owners_of(builder.blocks, group.size), []
    squares = list(builder.squares)
    builder.squares.clear()  # each is let go when it has been handed over
    for place, block in enumerate(builder.blocks):
        square, owner = squares[place], owners[place]
        for start in range(0, block.size, STRIP):
            part = square[start : start + STRIP, : start + STRIP].contiguous()
            group.sum_at(part, owner)
            square[start : start + STRIP, : start + STRIP] = part
        del square
        if owner != group.rank:
            squares[place] = torch.empty(0)
    with group.together():
        for place, block in enumerate(builder.blocks):
            if owners[place] == group.rank:
                grams.append(DampedGram.factorise(squares[place], ridge, block.name))
    return SharedDense(builder.blocks, owners, grams, builder.dtype, ridge, group)


class SharedDense(Structure):
    """M, block-diagonal, as `DenseStructure`; here are the grams of those blocks that this process owns."""

    kind = "dense"
    holds = "sums over all training samples"

    def __init__(
        self,
        blocks: Sequence[Block],
        owners: Sequence[int],
        grams: Sequence[DampedGram],
        dtype: torch.dtype,
        ridge: float,
        group: Group,
    ):
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.owners: tuple[int, ...] = tuple(owners)
        self.places: tuple[int, ...] = tuple(i for i, owner in enumerate(owners) if owner == group.rank)
        self.own: DenseStructure = DenseStructure([self.blocks[i] for i in self.places], grams, ridge)
        self.dtype: torch.dtype = dtype
        self.ridge: float = ridge
        self.group: Group = group

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        with self.group.together():
            x, residual = self.own.solve_measured(v)
        squares = self.group.numbers((residual or 0.0) ** 2)
        return self.group.sum(x), float(squares.sum()) ** 0.5

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        group = self.group
        with group.together():
            part = self.own.leave_out(rows, v, ridge)
        where = next((i for i in self.places if self.blocks[i].name == part.where), -1)
        told = group.numbers(
            float(part.leverages[0]), part.leverage_sum, part.indefinite, where, len(part.leverages),
            (part.residual or 0.0) ** 2,
        )  # fmt: skip
        told[told[:, 3] < 0, 0] = -torch.inf  # processes without a block
        worst = int(told[:, 0].argmax())
        leverages = part.leverages.to(group.device).clone()
        if worst != group.rank:
            leverages = torch.empty(int(told[worst, 4]), dtype=torch.float64, device=group.device)
        group.spread(leverages, worst)
        return LeftOut(
            group.sum(part.solution), leverages, float(told[:, 1].sum()), self.blocks[int(told[worst, 3])].name,
            bool(told[:, 2].any()), residual=float(told[:, 5].sum()) ** 0.5,
        )  # fmt: skip

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> SharedDense:
        with self.group.together():
            own = self.own.remove(rows, ridge)
        return self._with(own)

    def with_ridge(self, ridge: float) -> SharedDense:
        with self.group.together():
            own = self.own.with_ridge(ridge)
        return self._with(own)

    def _with(self, own: DenseStructure) -> SharedDense:
        return SharedDense(self.blocks, self.owners, own.grams, self.dtype, own.ridge, self.group)

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        errors = [gram.solve_error(block.take(v).to(self.dtype)) for block, gram in self.own.pairs()]
        mine = max(errors, default=0.0)
        where = self.places[errors.index(mine)] if errors else 0
        told = self.group.numbers(mine if mine == mine else torch.inf, where)
        worst = int(told[:, 0].argmax())
        return float(told[worst, 0]), self.blocks[int(told[worst, 1])].name

    def state(self) -> dict[str, Tensor]:
        """Of the blocks that are here, under their places among all."""
        tensors = {}
        for place, gram in zip(self.places, self.own.grams, strict=True):
            tensors[f"{place}.square"] = gram.square
            tensors[f"{place}.pivots"] = gram.pivots
        return tensors

    def settings(self) -> dict[str, Any]:
        return {"blocks": [[block.name, [list(r) for r in block.ranges]] for block in self.blocks]}

    @classmethod
    def from_state(
        cls,
        state: dict[str, Tensor],
        settings: dict[str, Any],
        ridge: float,
        linear: LinearShape | None = None,
        group: Group = ALONE,
    ) -> SharedDense:
        """Of all blocks, on whatever number of processes: those of others are not touched."""
        blocks = [Block(name, tuple((a, b) for a, b in ranges)) for name, ranges in settings["blocks"]]
        owners = owners_of(blocks, group.size)
        grams = [
            DampedGram(state[f"{i}.square"], state[f"{i}.pivots"], ridge, block.name)
            for i, block in enumerate(blocks)
            if owners[i] == group.rank
        ]
        return cls(blocks, owners, grams, state["0.square"].dtype, ridge, group)

    def to(self, device: torch.device) -> SharedDense:
        return self._with(self.own.to(device))
