"""The dual form on several processes: each holds the rows of its tiles, and their block rows of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure, columns_of, everything, stored_names, weights_of
from ssse.curvature.shared_kernel import SharedKernel
from ssse.curvature.tiles import SharedRows, Tiles, deal_tiles, of_all, pass_around
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import HeldRows, LinearRows
from ssse.rows.joined import rows_from_tensors
from ssse.rows.wide import Sums
from ssse.system.group import ALONE, Group


def share_lowrank(builder: LowRankBuilder, ridge: float, group: Group) -> SharedLowRank:
    """Rows stay where they are, and visit the others tile by tile; each process makes the block rows of its own."""
    tiles, parts, form = hold_tiles(builder, group)
    blocks = builder.blocks or (everything(form.dim),)
    squares = block_rows(builder, tiles, parts, form, blocks, group)
    weights = _all_weights(tiles, parts, group) if form.apart else None
    kernels = []
    for block, square in zip(blocks, squares, strict=True):
        apart = None if weights is None else weights.to(square.dtype)
        kernels.append(SharedKernel.factorise(square, ridge, block.name, tiles, group, apart))
    return SharedLowRank(_rows(tiles, parts, form, group), blocks, kernels, ridge, builder.salt)


@dataclass(frozen=True)
class Form:
    """Of rows, as those have it that hold some; a process may be without any."""

    kind: str
    dim: int
    dtype: torch.dtype
    shape: LinearShape | None
    apart: bool  # weights
    known: bool  # by digests of their samples

    @classmethod
    def of(cls, parts: Sequence[HeldRows], group: Group) -> Form:
        mine = None
        if parts:
            one = parts[0]
            shape, apart = one.shape if isinstance(one, LinearRows) else None, weights_of([one]) is not None
            mine = cls(type(one).__name__, one.dim, _dtype(one), shape, apart, one.digests is not None)
        found = {form for form in group.gather(mine) if form is not None}
        if len(found) != 1:
            raise InvalidData(f"The processes hold rows of several forms: {', '.join(sorted(map(str, found)))}.")
        return found.pop()


def hold_tiles(builder: LowRankBuilder, group: Group) -> tuple[Tiles, dict[int, HeldRows], Form]:
    builder.close_tile()
    return *deal_tiles(builder.parts, group), Form.of(builder.parts, group)


def block_rows(
    builder: LowRankBuilder,
    tiles: Tiles,
    parts: Mapping[int, HeldRows],
    form: Form,
    blocks: Sequence[Block],
    group: Group,
) -> list[Tensor]:
    """Of the kernel of each block: in the tile on the diagonal and to the right of it."""
    dtype = builder.kernel_dtype or form.dtype
    sums: Sums = "split" if builder.split else dtype
    empty = SharedKernel(torch.empty(0), {}, 0.0, "", tiles, group)
    own = len(tiles.rows_of(group.rank))
    squares = [torch.zeros(own, tiles.count, dtype=dtype, device=group.device) for _ in blocks]

    def visit(tile: int, rows: HeldRows) -> None:
        for block, square in zip(blocks, squares, strict=True):
            there = columns_of(rows, block, form.apart)
            for other, place in empty.places.items():
                if other <= tile:
                    here = columns_of(parts[other], block, form.apart)
                    square[place, tiles.slices[tile]] = here.kernel(there, sums)

    pass_around(tiles, parts, _rebuilding(form.shape), group, visit)
    return squares


class SharedLowRank(LowRankStructure):
    """As `LowRankStructure`: its vectors are whole on every process, its matrices are in parts."""

    rows: SharedRows
    grams: tuple[SharedKernel, ...]

    @property
    def group(self) -> Group:
        return self.rows.group

    def merged(self, other: LowRankStructure, ridge: float) -> LowRankStructure:
        raise InvalidSetting("Save the shards, and merge them in one process.")

    def state(self) -> dict[str, Tensor]:
        """Of the tiles that are here."""
        tensors = self.rows.tensors()
        for name, kernel in zip(stored_names(len(self.grams)), self.grams, strict=True):
            for tile, place in kernel.places.items():
                tensors[f"{name}.row.{tile}"] = kernel.square[place]
                tensors[f"{name}.corner.{tile}"] = kernel.corners[tile]
        return tensors

    def settings(self) -> dict[str, Any]:
        tiles = self.rows.tiles
        held = {"starts": list(tiles.starts), "owners": list(tiles.owners)}
        return {**super().settings(), "tiles": {**held, "iterates": [kernel.iterates for kernel in self.grams]}}

    def to(self, device: torch.device) -> SharedLowRank:
        kernels = [kernel.to(device) for kernel in self.grams]
        return SharedLowRank(self.rows.to(device), self.blocks, kernels, self.ridge, self.salt)

    @classmethod
    def from_state(
        cls,
        state: dict[str, Tensor],
        settings: dict[str, Any],
        ridge: float,
        linear: LinearShape | None = None,
        group: Group = ALONE,
    ) -> LowRankStructure:
        """Of all tiles, on whatever number of processes: those of others are not touched. One alone joins them."""
        tiles = Tiles(tuple(settings["tiles"]["starts"]), tuple(settings["tiles"]["owners"])).again(group.size)
        stacked = rows_from_tensors({k: v for k, v in state.items() if not k.startswith("dual.")}, linear)
        filled = [tile for tile, part in enumerate(tiles.slices) if part.stop > part.start]
        parts = dict(zip(filled, stacked.parts, strict=True))
        blocks = [Block(name, tuple((a, b) for a, b in ranges)) for name, ranges in settings.get("blocks", ())]
        blocks = blocks or [everything(stacked.dim)]
        names, salt = stored_names(len(blocks)), bytes.fromhex(settings["salt"])
        weights, mine = weights_of(stacked.parts), tiles.mine(group.rank)
        kernels = []
        for name, block, iterates in zip(names, blocks, settings["tiles"]["iterates"], strict=True):
            square = torch.cat([state[f"{name}.row.0"][:0], *(state[f"{name}.row.{tile}"] for tile in mine)])
            corners = {tile: state[f"{name}.corner.{tile}"] for tile in mine}
            apart = None if weights is None else weights.to(square)
            kernels.append(SharedKernel(square, corners, ridge, block.name, tiles, group, apart, iterates))
        if group.alone:
            return LowRankStructure(stacked, blocks, [joined(kernel) for kernel in kernels], ridge, salt)
        own = {tile: rows for tile, rows in parts.items() if tile in mine}
        rows = SharedRows(tiles, own, stacked.dim, _dtype(stacked.parts[0]), group, stacked.digests)
        return cls(rows, blocks, kernels, ridge, salt)


def joined(kernel: SharedKernel) -> DampedGram:
    """All block rows, on one process: what stands right of the diagonal there stands below it here."""
    square = kernel.square.mT.contiguous()
    if kernel.iterates:  # of which nobody has made a factor yet
        return DampedGram.factorise(square.tril_(), kernel.ridge, kernel.name, kernel.weights)
    pivots = torch.cat([kernel.corners[tile].diagonal() for tile in kernel.corners])
    for tile, part in enumerate(kernel.tiles.slices):
        square[part, part] = square[part, part].tril() + kernel.corners[tile].tril(-1).mT
    upper = square.triu(1)
    square.tril_().add_(upper.div_(pivots[:, None]))
    return DampedGram(square, pivots, kernel.ridge, kernel.name, kernel.weights)


def _rows(tiles: Tiles, parts: Mapping[int, HeldRows], form: Form, group: Group) -> SharedRows:
    digests = None
    if form.known:
        known = {tile: part.digests for tile, part in parts.items() if part.digests is not None}
        digests = of_all(tiles, known, torch.empty(0, dtype=torch.long), group).cpu()
    return SharedRows(tiles, dict(parts), form.dim, form.dtype, group, digests)


def _all_weights(tiles: Tiles, parts: Mapping[int, HeldRows], group: Group) -> Tensor:
    alone = {tile: weights for tile, part in parts.items() if (weights := weights_of([part])) is not None}
    return of_all(tiles, alone, torch.empty(0, dtype=torch.float64), group)


def _dtype(rows: HeldRows) -> torch.dtype:
    return next(iter(rows.tensors().values())).dtype


def _rebuilding(shape: LinearShape | None) -> Callable[[dict[str, Tensor]], HeldRows]:
    def rebuild(tensors: dict[str, Tensor]) -> HeldRows:
        return rows_from_tensors({f"0.{name}": value for name, value in tensors.items()}, shape).parts[0]

    return rebuild
