"""How much a structure has to hold and to do, and what that costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from ssse.curvature.costs import Work, factor_of, solves_of
from ssse.curvature.lowered import steps_to_lower, worth_iterating
from ssse.problem.parameters import Block, LinearShape


@dataclass(frozen=True)
class Extent:
    """How much a structure has to hold, and to do.

    Attributes:
        samples, rows: how many. groups: that they come in. dim: d.
        linear: the shape of θ, where rows have a closed form.
        row_numbers: that all rows together are kept in; fewer than rows × d where they have a closed form.
        size: bytes of a number. budget: bytes of memory.
        asked: samples of a request.
    """

    samples: int
    rows: int
    groups: int
    dim: int
    row_numbers: int
    linear: LinearShape | None
    blocks: tuple[Block, ...]
    size: int
    budget: int
    asked: int
    dtype: torch.dtype

    @property
    def rows_asked(self) -> int:
        return self.asked * self.rows // max(self.samples, 1)

    @property
    def steps(self) -> int:
        """Solves that lower the damping to that of what remains."""
        return steps_to_lower(1.0, 1 - min(self.asked / max(self.samples, 1), 0.9), self.dtype)


@dataclass(frozen=True)
class Cost:
    """Bytes that are held, needed for a while beside them, and stored on disk; the work of a fit and of a request.

    `products`: with all rows and back, that a request takes, where it is solved by them.
    """

    held: int
    spare: int
    stored: int
    work: Work
    request: Work
    products: bool = False


def cost_of_squares(extent: Extent) -> Cost:
    shapes = Counter((block.size, _outputs_in(extent.linear, block)) for block in extent.blocks)
    squares = sum(count * size**2 for (size, _), count in shapes.items())
    held, spare = squares * extent.size, 2 * max(size for size, _ in shapes) ** 2 * extent.size
    work = request = Work()
    for (size, outputs), count in shapes.items():
        fit = _squares_of(extent, size, outputs, extent.samples, extent.rows, extent.groups)
        work += (fit + factor_of(size, extent.size)) * count
        request += _left_out_of_block(extent, size, outputs) * count
    return Cost(held, spare, held, work, request)


def _outputs_in(linear: LinearShape | None, block: Block) -> int:
    """Of a linear model, those whose parameters are in the block."""
    return 0 if linear is None else len({piece.output for piece in linear.pieces(block)})


def _squares_of(extent: Extent, size: int, outputs: int, samples: int, rows: int, groups: int) -> Work:
    """RᵀR of one block, its lower half.

    Closed form: a weighted product of the features per pair of outputs, r rows for the price of one; half of a
    symmetric product each, also off the diagonal.
    """
    if not outputs:
        return Work(rows * size**2, moved=2 * groups * size**2 * extent.size, calls=groups * (3 + size / 512))
    pairs, width = outputs * (outputs + 1) / 2, size / outputs
    moved = pairs * (3 * samples * width + 3 * groups * width**2) * extent.size
    products = pairs * samples * width * (width + 512)  # of small ones, half of the speed
    return Work(products, moved=moved, calls=groups * pairs * (12 + width / 512))


def _left_out_of_block(extent: Extent, size: int, outputs: int) -> Work:
    """By Woodbury's identity for few rows; else, or where a new factor is cheaper, by subtraction and a new factor."""
    asked, each, steps = extent.rows_asked, extent.size, extent.steps
    rows = min(asked, extent.asked * outputs) if outputs else asked
    work = Work()
    if rows < size:
        work = solves_of(size, rows / 2, each) + Work(2 * rows**2 * size, 12 * rows**3, 4 * rows * size * each, 20)
        if worth_iterating(2 * steps, size):  # two solutions, each with its residual
            solved = (solves_of(size, 1, each) + Work(4 * rows * size)) * (steps + 1)
            return work + (solved + Work(moved=2 * size**2 * each)) * 2
    else:
        work = solves_of(size, 1, each) * 30 + Work(moved=30 * size**2 * each)  # how much was cancelled
    work += _squares_of(extent, size, outputs, extent.asked, asked, 1) + Work(moved=8 * size**2 * each)
    return work + factor_of(size, each)


def kernel_width(extent: Extent) -> int:
    """Numbers that one entry of every block's RRᵀ is summed of; in closed form a product of features, one of cores."""
    linear = extent.linear
    if linear is None:
        return extent.dim
    shapes = [slab.shape for block in extent.blocks for slab in linear.slabs(block)] or [linear]
    return sum(shape.inputs + shape.outputs for shape in shapes)


def left_out_of_kernel(extent: Extent, size: int) -> Work:
    """`Dual.leave_out`: a column of the inverse for each row of S, then three solutions with the lower damping."""
    rows, asked = extent.rows, extent.rows_asked
    work = solves_of(rows, asked, size) + Work(factors=12 * asked**3, moved=6 * rows * asked * size)
    if worth_iterating(3 * extent.steps, rows):
        return work + solves_of(rows, 1, size) * (3 * (extent.steps + 1))
    return work + factor_of(rows, size) + Work(moved=4 * rows**2 * size) + solves_of(rows, 1, size) * 3
