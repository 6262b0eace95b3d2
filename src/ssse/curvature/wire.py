"""What several processes send each other in a fit: bytes given to collectives, as docs/scale.md derives them.

A process that gives N bytes to an `all_reduce` of P processes sends 2(P−1)/P·N of them in a ring, and at most N to a
`reduce` or a `broadcast`; of an `all_to_all` it keeps one part of P. What is counted here is N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ssse.curvature.choices import Choice, Dense, Diagonal, LowRank, MatrixFree
from ssse.curvature.extent import Cost, Extent
from ssse.curvature.kernel_steps import ROUNDS, are_cheaper
from ssse.curvature.shared_dense import STRIP, owners_of
from ssse.curvature.tiles import MOST_IN_A_TILE, TILES_EACH

DOUBLE = 8


@dataclass(frozen=True)
class Wire:
    """Bytes given to each kind of collective; to `all_to_all` by all processes together."""

    all_reduce: int = 0
    reduce: int = 0
    broadcast: int = 0
    all_to_all: int = 0

    def __add__(self, other: Wire) -> Wire:
        return Wire(
            self.all_reduce + other.all_reduce,
            self.reduce + other.reduce,
            self.broadcast + other.broadcast,
            self.all_to_all + other.all_to_all,
        )

    def __mul__(self, times: int) -> Wire:
        return Wire(self.all_reduce * times, self.reduce * times, self.broadcast * times, self.all_to_all * times)

    def sent(self, processes: int) -> float:
        """By each process, in rings."""
        rest = (processes - 1) / processes
        return rest * (2 * self.all_reduce + self.reduce + self.broadcast + self.all_to_all / processes)


def wire_of_sums(samples: int, dim: int, size: int) -> Wire:
    """Σ∇ℓ, Σℓ, n and what goes with them; a digest of each sample; and a gradient that the result is tried on."""
    return Wire(all_reduce=(dim + 7) * DOUBLE, broadcast=dim * size, all_to_all=samples * DOUBLE)


def wire_of_squares(sizes: Sequence[int], size: int) -> Wire:
    """The lower triangle of every block, by strips."""
    numbers = 0
    for block in sizes:
        for start in range(0, block, STRIP):
            stop = min(start + STRIP, block)
            numbers += (stop - start) * stop
    return Wire(reduce=numbers * size)


def wire_of_kernels(rows: int, row_bytes: int, kernels: int, size: int, weighted: bool, columns: int = 1) -> Wire:
    """Every row to all, every block row of each factor to all; two solutions and two products, which it is tried by.

    `row_bytes`: of all rows. `weighted`: whether their weights are apart. `columns`: of what it is tried by.
    """
    told = Wire(all_reduce=rows * DOUBLE * (2 if weighted else 1), broadcast=row_bytes)
    tried = wire_of_solution(rows, size, columns) * 2 + Wire(all_reduce=rows * (size + DOUBLE) * columns)
    looked = ROUNDS * rows * size if are_cheaper(rows, 1) else 0  # whether conjugate gradients would cost less
    return told + (Wire(broadcast=rows**2 * size, all_reduce=looked) + tried) * kernels


def wire_of_solution(rows: int, size: int, columns: int = 1) -> Wire:
    """With a factor by block rows: forward and back, tile by tile."""
    return Wire(reduce=rows * columns * size, broadcast=2 * rows * columns * size)


def wire_of_fit(choice: Choice, extent: Extent, weighted: bool) -> Wire:
    """Of a whole fit, but for a few numbers a step that processes agree by."""
    sums = wire_of_sums(extent.samples, extent.dim, extent.size)
    size = torch.empty((), dtype=choice.working(extent.dtype)).element_size()
    if isinstance(choice, Dense):
        return sums + wire_of_squares([block.size for block in extent.blocks], extent.size)
    if isinstance(choice, Diagonal):
        return sums + Wire(all_reduce=extent.dim * extent.size)
    if isinstance(choice, LowRank) and choice.rank is None:
        rows = extent.row_numbers * extent.size
        return sums + wire_of_kernels(extent.rows, rows, len(extent.blocks) or 1, size, weighted)
    if isinstance(choice, LowRank):
        assert choice.rank is not None
        found = extent.rows * choice.rank + choice.rank + extent.dim * choice.rank
        told = (extent.rows**2 + extent.rows * choice.rank + extent.dim * choice.rank) * DOUBLE
        return sums + Wire(all_reduce=told, broadcast=(extent.row_numbers + found) * DOUBLE)
    return Wire(all_reduce=(extent.dim + 7) * DOUBLE, all_to_all=extent.samples * DOUBLE)


def cost_together(choice: Choice, extent: Extent, cost: Cost, processes: int) -> Cost:
    """Of each process, from the cost of one alone: rows are shared out, and so are blocks, as far as there are enough.

    Every process holds all Gram matrices until they are summed; of kernels it holds its block rows.
    """
    if isinstance(choice, LowRank):
        rows, row = extent.rows, extent.row_numbers * extent.size / max(extent.rows, 1)
        size = torch.empty((), dtype=choice.working(extent.dtype)).element_size()
        tile = min(MOST_IN_A_TILE, math.ceil(rows / (processes * TILES_EACH)))
        spare = cost.spare / processes + tile * (2 * rows * size + row)
        if choice.rank is None:
            held = math.ceil(cost.held / processes)
            return replace(cost, held=held, spare=int(spare), work=cost.work * (1 / processes), request=cost.request)
        kept = math.ceil(extent.row_numbers * DOUBLE / processes)
        work = replace(cost.work * (1 / processes), factors=cost.work.factors)  # the kernel's directions, by one
        return replace(cost, held=kept + rows**2 * DOUBLE, spare=cost.spare, work=work)
    if isinstance(choice, MatrixFree):
        return replace(cost, work=cost.work * (1 / processes), request=cost.request)
    factors = cost.work.factors
    if extent.blocks:
        owners = owners_of(extent.blocks, processes)
        most = max(sum(b.size**3 for b, o in zip(extent.blocks, owners, strict=True) if o == r) for r in set(owners))
        factors *= most / sum(block.size**3 for block in extent.blocks)
    return replace(cost, work=replace(cost.work * (1 / processes), factors=factors))
