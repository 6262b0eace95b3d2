"""Rows that several processes hold, in tiles: a few rows that are one process's, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ssse.problem.parameters import Block
from ssse.rows.held import HeldRows, LinearRows, Rows
from ssse.system.group import Group

MOST_IN_A_TILE = 1024
TILES_EACH = 8  # of every process, at least: they take turns in a factor, and none is idle for long


@dataclass(frozen=True)
class Tiles:
    """Where each tile begins among all rows, and whose it is."""

    starts: tuple[int, ...]  # and where the last one ends
    owners: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], owners: Sequence[int]) -> Tiles:
        return cls((0, *accumulate(sizes)), tuple(owners))

    @property
    def count(self) -> int:
        """Of rows."""
        return self.starts[-1]

    @property
    def slices(self) -> list[slice]:
        return [slice(start, stop) for start, stop in pairwise(self.starts)]

    def mine(self, rank: int) -> list[int]:
        return [tile for tile, owner in enumerate(self.owners) if owner == rank]

    def rows_of(self, rank: int, after: int = -1) -> Tensor:
        """Places of this process's rows, of tiles after one."""
        slices = self.slices
        parts = [torch.arange(slices[i].start, slices[i].stop) for i in self.mine(rank) if i > after]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)

    def kept(self, places: Tensor) -> tuple[Tiles, list[Tensor]]:
        """Of some rows, ascending: tiles that may be empty now; and which rows of each old tile."""
        places = places.cpu()
        inside = [places[(places >= part.start) & (places < part.stop)] - part.start for part in self.slices]
        return Tiles.of([len(part) for part in inside], self.owners), inside

    def again(self, processes: int) -> Tiles:
        """The same rows on another number of processes."""
        return Tiles(self.starts, tuple(tile % processes for tile in range(len(self.owners))))


@dataclass
class SharedRows(Rows):
    """All rows, of which this process has some: products come out whole on every process.

    Attributes:
        parts: tile → its rows, of the tiles that are here. digests: of the samples of all rows.
    """

    tiles: Tiles
    parts: Mapping[int, Rows]
    dim: int
    dtype: torch.dtype
    group: Group
    digests: Tensor | None = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.tiles.count

    def times(self, v: Tensor) -> Tensor:
        dtype = torch.promote_types(self.dtype, v.dtype)
        out = torch.zeros(self.count, *v.shape[1:], dtype=dtype, device=v.device)
        for tile, rows in self.parts.items():
            out[self.tiles.slices[tile]] = rows.times(v).to(dtype)
        return self.group.sum(out)

    def transposed_times(self, u: Tensor) -> Tensor:
        out = torch.zeros(self.dim, *u.shape[1:], dtype=torch.promote_types(self.dtype, u.dtype), device=u.device)
        for tile, rows in self.parts.items():
            out += rows.transposed_times(u[self.tiles.slices[tile]])
        return self.group.sum(out)

    def columns(self, block: Block) -> SharedRows:
        parts = {tile: rows.columns(block) for tile, rows in self._held().items()}
        return SharedRows(self.tiles, parts, block.size, self.dtype, self.group, self.digests)

    def select(self, keep: Tensor) -> SharedRows:
        """The rows at these places, ascending."""
        tiles, inside = self.tiles.kept(keep)
        parts: dict[int, Rows] = {}
        for tile, rows in self._held().items():
            index = inside[tile].to(keep.device)
            if len(index):
                parts[tile] = rows if len(index) == rows.count else rows.select(index)
        digests = None if self.digests is None else self.digests[keep.cpu()]
        return SharedRows(tiles, parts, self.dim, self.dtype, self.group, digests)

    def to(self, where: torch.device) -> SharedRows:
        parts: dict[int, Rows] = {tile: rows.to(where) for tile, rows in self._held().items()}
        return SharedRows(self.tiles, parts, self.dim, self.dtype, self.group, self.digests)

    def tensors(self) -> dict[str, Tensor]:
        """Of the tiles that are here."""
        return {f"{i}.{name}": value for i, part in self._held().items() for name, value in part.tensors().items()}

    def _held(self) -> dict[int, HeldRows]:
        return {tile: rows for tile, rows in self.parts.items() if isinstance(rows, HeldRows)}


def deal_tiles(parts: Sequence[HeldRows], group: Group) -> tuple[Tiles, dict[int, HeldRows]]:
    """The rows of every process, cut into tiles that take turns."""
    each = (
        parts[0].cores.shape[1] if parts and isinstance(parts[0], LinearRows) else 1
    )  # rows of a sample stay together
    most = -(-sum(part.count for part in parts) // TILES_EACH)
    size = -(-min(MOST_IN_A_TILE, max(most, 1)) // each) * each
    cut: list[HeldRows] = []
    for part in parts:
        places = torch.arange(part.count, device=next(iter(part.tensors().values())).device)
        cut += [part if len(places) <= size else part.select(index) for index in places.split(size)]
    told = group.gather([part.count for part in cut])
    turns = sorted((place, rank) for rank, counts in enumerate(told) for place in range(len(counts)))
    tiles = Tiles.of([told[rank][place] for place, rank in turns], [rank for _, rank in turns])
    return tiles, dict(zip(tiles.mine(group.rank), cut, strict=True))


def of_all(tiles: Tiles, parts: Mapping[int, Tensor], like: Tensor, group: Group) -> Tensor:
    """One line of numbers, a number for each row, from those of the rows that are here."""
    out = torch.zeros(tiles.count, dtype=like.dtype, device=group.device)
    for tile, values in parts.items():
        out[tiles.slices[tile]] = values.to(group.device)
    return group.sum(out)


def pass_around(
    tiles: Tiles,
    parts: Mapping[int, HeldRows],
    rebuild: Callable[[dict[str, Tensor]], HeldRows],
    group: Group,
    visit: Callable[[int, HeldRows], None],
) -> None:
    """Show every tile to all processes in turn; at most one that is not their own is held by any."""
    mine = {tile: _values(rows) for tile, rows in parts.items()}
    forms: dict[int, dict[str, tuple[tuple[int, ...], torch.dtype]]] = {}
    for told in group.gather({i: {n: (tuple(t.shape), t.dtype) for n, t in v.items()} for i, v in mine.items()}):
        forms |= told
    for tile, owner in enumerate(tiles.owners):
        here = mine.get(tile)
        values = {
            name: torch.empty(shape, dtype=dtype, device=group.device) if here is None else here[name].contiguous()
            for name, (shape, dtype) in forms[tile].items()
        }
        for value in values.values():
            group.spread(value, owner)
        visit(tile, rebuild(values) if here is None else parts[tile])


def _values(rows: HeldRows) -> dict[str, Tensor]:
    return {name: value for name, value in rows.tensors().items() if name != "digests"}
