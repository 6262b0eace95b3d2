"""A damped kernel by block rows, and its Cholesky factor: each process has the block rows of its tiles.

In the block row of tile i, the kernel stands in tile i and to the right of it, the factor L to the left, with L_ii
apart: one square over all processes keeps both. The factor is made tile by tile. Its owner spreads the whole block row,
L to the left and kernel to the right, which is all that the others need for the column of L below. So every number of
the square passes once. Where conjugate gradients are cheaper there is no factor: of L the corners alone, of the tiles
on the diagonal as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ssse.curvature.gram import check_factor, factor_in_place, measured_error
from ssse.curvature.kernel_steps import are_cheaper, expected_steps, solve_by_steps
from ssse.curvature.tiles import Tiles
from ssse.system.group import Group


@dataclass
class SharedKernel:
    """G + ridge·I, or diag(w) G diag(w) + ridge·I; vectors are whole on every process. As `DampedGram`."""

    square: Tensor  # the block rows that are here, one below the other, shape (own, m)
    corners: dict[int, Tensor]  # L_ii of the tiles that are here
    ridge: float
    name: str
    tiles: Tiles
    group: Group
    weights: Tensor | None = None  # of all rows
    iterates: bool = False  # whether it is solved by conjugate gradients
    places: dict[int, slice] = field(init=False)  # where the block rows are in `square`

    def __post_init__(self) -> None:
        self.places, top, slices = {}, 0, self.tiles.slices
        for tile in self.tiles.mine(self.group.rank):
            length = slices[tile].stop - slices[tile].start
            self.places[tile] = slice(top, top + length)
            top += length

    @classmethod
    def factorise(
        cls, square: Tensor, ridge: float, name: str, tiles: Tiles, group: Group, weights: Tensor | None = None
    ) -> SharedKernel:
        """Take over block rows of G, and write the factor to the left of it.

        Raises:
            NotPositiveDefinite: on all processes.
        """
        made = cls(square, {}, ridge, name, tiles, group, weights)
        made.iterates = are_cheaper(tiles.count, expected_steps(made)) if are_cheaper(tiles.count, 1) else False
        if made.iterates:
            with group.together():
                made.corners = {tile: made._corner(tile) for tile in made.places}
            return made
        w = torch.ones(tiles.count, dtype=square.dtype, device=square.device) if weights is None else weights
        own = tiles.rows_of(group.rank).to(square.device)
        for tile, part in enumerate(tiles.slices):
            lo, hi = part.start, part.stop
            panel = torch.empty(hi - lo, tiles.count, dtype=square.dtype, device=square.device)
            if tile in made.places:
                row = square[made.places[tile]]
                corner = row[:, lo:hi].triu()
                corner = (corner + corner.triu(1).mT) * w[lo:hi, None] * w[lo:hi]
                corner.diagonal().add_(ridge)
                corner -= row[:, :lo] @ row[:, :lo].mT
                factor, info = torch.linalg.cholesky_ex(corner)
                panel.copy_(row)
                panel[:, lo:hi] = factor if int(info) == 0 else torch.nan
                made.corners[tile] = factor
            group.spread(panel, tiles.owners[tile])
            corner = panel[:, lo:hi]
            failed = ~torch.isfinite(corner).all()
            check_factor(corner, failed.to(torch.int32), ridge, name)
            below = len(own) - made._after(tile)
            if below:
                later = own[-below:]
                column = panel[:, later].mT * w[later, None] * w[lo:hi]
                column -= square[-below:, :lo] @ panel[:, :lo].mT
                square[-below:, lo:hi] = torch.linalg.solve_triangular(corner.mT, column, upper=True, left=False)
        return made

    def _corner(self, tile: int) -> Tensor:
        """The factor of the tile on the diagonal."""
        part = self.tiles.slices[tile]
        corner = self.square[self.places[tile], part].triu()
        corner = corner + corner.triu(1).mT
        if self.weights is not None:
            corner = corner * self.weights[part, None] * self.weights[part]
        return factor_in_place(corner.contiguous(), self.ridge, self.name).tril()

    def by_corners(self, r: Tensor) -> Tensor:
        """As if there were nothing between the tiles."""
        out = torch.zeros_like(r)
        for tile, corner in self.corners.items():
            part = self.tiles.slices[tile]
            out[part] = torch.cholesky_solve(r[part], corner)
        return self.group.sum(out)

    @property
    def size(self) -> int:
        return self.tiles.count

    @property
    def dtype(self) -> torch.dtype:
        return self.square.dtype

    @property
    def device(self) -> torch.device:
        return self.square.device

    def solve(self, v: Tensor) -> Tensor:
        """(G + ridge·I)⁻¹ v, G with its weights, for v of shape (m, q)."""
        if self.iterates:
            return solve_by_steps(self, v)
        own, slices, owners = self.tiles.rows_of(self.group.rank).to(v.device), self.tiles.slices, self.tiles.owners
        x, left = torch.empty_like(v), v[own]
        for tile, part in enumerate(slices):  # L y = v
            solved = torch.empty(part.stop - part.start, v.shape[1], dtype=v.dtype, device=v.device)
            if tile in self.places:
                solved = torch.linalg.solve_triangular(self.corners[tile], left[self.places[tile]], upper=False)
            x[part] = self.group.spread(solved.contiguous(), owners[tile])
            below = self._after(tile)
            left[below:] -= self.square[below:, part] @ x[part]
        for tile in reversed(range(len(slices))):  # Lᵀ x = y
            part, below = slices[tile], self._after(tile)
            known = self.square[below:, part].mT @ x[own[below:]]
            self.group.sum_at(known, owners[tile])
            solved = torch.empty_like(known)
            if tile in self.places:
                solved = torch.linalg.solve_triangular(self.corners[tile].mT, x[part] - known, upper=True)
            x[part] = self.group.spread(solved.contiguous(), owners[tile])
        return x

    def product(self, x: Tensor) -> Tensor:
        """(G + ridge·I) x, G with its weights, in the precision of x, of shape (m, q)."""
        weights = None if self.weights is None else self.weights.to(x.dtype)[:, None]
        given, out = x if weights is None else weights * x, torch.zeros_like(x)
        for tile, place in self.places.items():
            part, row = self.tiles.slices[tile], self.square[place]
            corner, right = row[:, part].to(x.dtype).triu(), row[:, part.stop :].to(x.dtype)
            out[part] += corner @ given[part] + corner.triu(1).mT @ given[part] + right @ given[part.stop :]
            out[part.stop :] += right.mT @ given[part]
        self.group.sum(out)
        return (out if weights is None else weights * out) + self.ridge * x

    def of(self, kept: Tensor, ridge: float) -> SharedKernel:
        """Of some rows alone, whose places are given in ascending order: no product is made again."""
        tiles, inside = self.tiles.kept(kept)
        rows = [inside[tile] + place.start for tile, place in self.places.items()]
        index = torch.cat([torch.empty(0, dtype=torch.long), *rows]).to(self.device)
        weights = None if self.weights is None else self.weights[kept]
        square = self.square.index_select(0, index).index_select(1, kept.to(self.device))
        return SharedKernel.factorise(square, ridge, self.name, tiles, self.group, weights)

    def with_ridge(self, ridge: float) -> SharedKernel:
        return SharedKernel.factorise(self.square.clone(), ridge, self.name, self.tiles, self.group, self.weights)

    def without(self, index: Tensor, ridge: float) -> SharedKept:
        stays = torch.ones(self.size, dtype=torch.bool, device=index.device)
        stays[index] = False
        kept = stays.nonzero()[:, 0]
        return SharedKept(self.of(kept, ridge), kept)

    def solve_error(self, v: Tensor) -> float:
        return measured_error(self, v)

    def to(self, device: torch.device) -> SharedKernel:
        weights = None if self.weights is None else self.weights.to(device)
        corners = {tile: corner.to(device) for tile, corner in self.corners.items()}
        square, iterates = self.square.to(device), self.iterates
        return SharedKernel(square, corners, self.ridge, self.name, self.tiles, self.group, weights, iterates)

    def _after(self, tile: int) -> int:
        """Where the rows of later tiles begin among those that are here."""
        return max((place.stop for other, place in self.places.items() if other <= tile), default=0)


@dataclass(frozen=True)
class SharedKept:
    """The kernel of those rows that stay, factorised for one request. As `KeptFactor`."""

    kernel: SharedKernel
    kept: Tensor

    def solve(self, b: Tensor) -> Tensor:
        """Of shape (m,), zero at the rows that do not stay."""
        y = torch.zeros_like(b)
        y[self.kept] = self.kernel.solve(b[self.kept, None])[:, 0]
        return y
