"""What `structure=` takes: each choice knows its options, its cost, and how it is built.

This is the list of structures: `CHOICES` are those to ask for, `STORED` those that are found on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch

from ssse.curvature.costs import Work, factor_of, solves_of
from ssse.curvature.dense import DenseBuilder, DenseStructure
from ssse.curvature.diagonal import DiagonalBuilder, DiagonalStructure
from ssse.curvature.lowered import steps_to_lower, worth_iterating
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.recurrence import RecurrenceBuilder, RecurrenceStructure
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.truncated import TruncatedBuilder, TruncatedStructure
from ssse.errors import InvalidSetting
from ssse.problem.parameters import Block, Layout, LinearShape, make_blocks

Preconditioner = Literal["auto", "none", "diagonal", "dense"]
NARROW = 3  # by which a product of features with one vector for each output is slower than one of squares
PRECONDITIONER_SHARE = 0.4  # of the memory budget, that dense blocks as a preconditioner may take


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


@dataclass(frozen=True)
class Ground:
    """What a builder is built on. `salt`: of the digests of samples, where the structure knows its samples."""

    layout: Layout
    linear: LinearShape | None
    blocks: tuple[Block, ...]
    dtype: torch.dtype
    device: torch.device
    n: int | None
    damping: float
    salt: bytes
    budget: int


class Choice(ABC):
    """One way to hold a curvature.

    Attributes:
        kind: its name, which `structure=` takes for the choice with its defaults.
        takes_blocks: whether `blocks=` means anything. needs_count: whether the number of samples must be known first.
    """

    kind: ClassVar[str]
    takes_blocks: ClassVar[bool] = False
    needs_count: ClassVar[bool] = False

    @property
    def knows_samples(self) -> bool:
        """Whether rows are held by a digest of their sample."""
        return False

    @abstractmethod
    def cost(self, extent: Extent) -> Cost: ...

    @abstractmethod
    def builder(self, ground: Ground) -> Builder | None:
        """None where nothing is held."""

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Dense(Choice):
    """A Gram matrix and its Cholesky factor for each block."""

    kind = "dense"
    takes_blocks = True

    def cost(self, extent: Extent) -> Cost:
        return _cost_of_squares(extent)

    def builder(self, ground: Ground) -> Builder:
        return DenseBuilder(ground.blocks, ground.dtype, ground.device)


@dataclass(frozen=True)
class LowRank(Choice):
    """The rows themselves, and the factor of their kernel for each block; or their leading directions alone.

    Attributes:
        rank: keep so many directions of all of θ, without blocks, instead of the rows.
    """

    rank: int | None = None

    kind = "lowrank"
    takes_blocks = True
    needs_count = True

    @property
    def knows_samples(self) -> bool:
        return self.rank is None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise InvalidSetting(f"rank must be at least 1, not {self.rank}.")

    def cost(self, extent: Extent) -> Cost:
        rows, size, kept = extent.rows, extent.size, extent.row_numbers * extent.size
        kernels = len(extent.blocks) or 1
        held, spare = kept + kernels * rows**2 * size, 2 * rows**2 * size
        work = Work(products=rows**2 * _kernel_width(extent), moved=4 * kept + 6 * kernels * rows**2 * size)
        work += factor_of(rows, size) * kernels
        asked = Work(moved=12 * kept, calls=4 * extent.groups) + self._left_out(extent) * kernels
        if extent.linear is not None:  # about ten products with the rows and as many back
            asked += Work(products=NARROW * 40 * extent.samples * extent.dim)
        if self.rank is None:
            return Cost(held, spare, held, work, asked)
        stored = (self.rank * extent.dim + self.rank**2) * size
        work += Work(products=2 * self.rank * rows * extent.dim, factors=9 * rows**3)
        solved = Work(products=4 * self.rank * extent.dim * extent.rows_asked, moved=20 * stored, calls=100)
        return Cost(held, spare + self.rank * extent.dim * size, stored, work, solved)

    @staticmethod
    def _left_out(extent: Extent) -> Work:
        """`Dual.leave_out`: a column of the inverse for each row of S, then two solutions with the lower damping."""
        rows, asked, size = extent.rows, extent.rows_asked, extent.size
        work = solves_of(rows, asked, size) + Work(factors=12 * asked**3, moved=6 * rows * asked * size)
        if worth_iterating(2 * extent.steps, rows):
            return work + solves_of(rows, 1, size) * (2 * (extent.steps + 1))
        return work + factor_of(rows, size) + Work(moved=4 * rows**2 * size) + solves_of(rows, 1, size) * 2

    def builder(self, ground: Ground) -> Builder:
        if self.rank is not None:
            return TruncatedBuilder(self.rank, ground.dtype)
        return LowRankBuilder(ground.salt, ground.dtype, ground.blocks)

    def __str__(self) -> str:
        return self.kind if self.rank is None else f"{self.kind}, rank {self.rank}"


@dataclass(frozen=True)
class MatrixFree(Choice):
    """Nothing but a preconditioner: conjugate gradients over the training data at every request.

    Attributes:
        preconditioner: "dense" blocks, the "diagonal", "none", or "auto": the first of these that fits a linear model.
        tolerance: relative residual to stop at; 1e-10 in float64, 1e-4 else. max_iterations: to stop after.
    """

    preconditioner: Preconditioner = "auto"
    tolerance: float | None = None
    max_iterations: int = 1000

    kind = "matrix_free"

    def __post_init__(self) -> None:
        if self.preconditioner not in get_args(Preconditioner):
            named = ", ".join(get_args(Preconditioner))
            raise InvalidSetting(f"preconditioner must be one of {named}, not {self.preconditioner!r}.")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InvalidSetting(f"tolerance is a relative residual between 0 and 1, not {self.tolerance}.")
        if self.max_iterations < 1:
            raise InvalidSetting(f"max_iterations must be at least 1, not {self.max_iterations}.")

    def cost(self, extent: Extent) -> Cost:
        """A few vectors, the preconditioner, and the rows of a linear model while they fit into half of the budget."""
        linear, size, vectors = extent.linear, extent.size, 12 * extent.dim * extent.size
        if linear is None:
            return Cost(0, vectors, 0, Work(moved=vectors), Work(moved=vectors), products=True)
        kept = min(extent.row_numbers * size, extent.budget // 2)
        if _dense_preconditioner(self.preconditioner, linear, size, extent.budget):
            width = linear.inputs + linear.bias
            blocks = linear.outputs * width**2 * size
            work = Work(extent.samples * linear.outputs * width**2, moved=4 * blocks * extent.groups)
            work += factor_of(width, size) * linear.outputs
            return Cost(blocks + kept, vectors + blocks // linear.outputs, blocks, work, Work(moved=vectors), True)
        work = Work(2 * extent.samples * extent.dim)
        return Cost(extent.dim * size + kept, vectors, extent.dim * size, work, Work(moved=vectors), products=True)

    def solving(self, extent: Extent) -> Work:
        """One step of conjugate gradients on the rows of a linear model: a product with them, one back, and more."""
        linear, size = extent.linear, extent.size
        assert linear is not None
        work = Work(NARROW * 4 * extent.samples * extent.dim, moved=30 * extent.samples * linear.outputs * size)
        work += Work(moved=20 * extent.dim * size, calls=40 * extent.groups)
        if _dense_preconditioner(self.preconditioner, linear, size, extent.budget):
            return work + solves_of(linear.inputs + linear.bias, 1, size) * linear.outputs
        return work

    def builder(self, ground: Ground) -> Builder | None:
        """Of the preconditioner: a block per output where the model is linear and they fit, else the diagonal."""
        chosen, linear = self.preconditioner, ground.linear
        size = torch.empty((), dtype=ground.dtype).element_size()
        if chosen == "none" or (chosen == "auto" and linear is None):
            return None
        if chosen == "diagonal" or (linear and not _dense_preconditioner(chosen, linear, size, ground.budget)):
            return DiagonalBuilder(ground.layout.dim, ground.dtype, ground.device)
        blocks = make_blocks(ground.layout, "output" if linear is not None else "parameter", linear)
        return DenseBuilder(blocks, ground.dtype, ground.device)


@dataclass(frozen=True)
class Diagonal(Choice):
    """d numbers, for comparison and for scrubbing."""

    kind = "diagonal"

    def cost(self, extent: Extent) -> Cost:
        held = extent.dim * extent.size
        squares = Work(moved=3 * extent.rows * held) if extent.linear is None else Work(2 * extent.samples * extent.dim)
        return Cost(held, held, held, squares, Work(moved=10 * held, calls=20))

    def builder(self, ground: Ground) -> Builder:
        return DiagonalBuilder(ground.layout.dim, ground.dtype, ground.device)


@dataclass(frozen=True)
class Recurrence(Choice):
    """The paper's Eq. 7, word for word; the reference, not for use."""

    kind = "recurrence"
    takes_blocks = True
    needs_count = True

    def cost(self, extent: Extent) -> Cost:
        """Every row is a step that reads and writes a whole block."""
        cost = _cost_of_squares(extent)
        return replace(cost, work=cost.work + Work(moved=4 * extent.rows * cost.held, calls=8 * extent.rows))

    def builder(self, ground: Ground) -> Builder:
        assert ground.n is not None  # asked for beforehand: needs_count
        return RecurrenceBuilder(ground.blocks, ground.n, ground.damping, ground.dtype, ground.device)


StructureName = Literal["auto", "dense", "lowrank", "matrix_free", "diagonal", "recurrence"]
CHOICES: dict[str, type[Choice]] = {
    choice.kind: choice for choice in (Dense, LowRank, MatrixFree, Diagonal, Recurrence)
}
STORED: dict[str, type[Structure]] = {
    structure.kind: structure
    for structure in (
        DenseStructure,
        LowRankStructure,
        TruncatedStructure,
        MatrixFreeStructure,
        DiagonalStructure,
        RecurrenceStructure,
    )
}


def as_choice(structure: StructureName | Choice) -> Choice | None:
    """`structure=` as the user gives it; None is "auto"."""
    if isinstance(structure, Choice):
        return structure
    if structure == "auto":
        return None
    if isinstance(structure, str) and structure in CHOICES:
        return CHOICES[structure]()
    if isinstance(structure, type) and issubclass(structure, Choice):
        raise InvalidSetting(f"structure is an object, not a class: {structure.__name__}(), not {structure.__name__}.")
    raise InvalidSetting(
        f"structure must be 'auto', one of {', '.join(CHOICES)}, or an object such as ssse.LowRank(rank=100); not "
        f"{structure!r}."
    )


def named_choice(name: StructureName, options: Mapping[str, Any]) -> StructureName | Choice:
    """By its name and options beside it, as settings files hold them; an option of another structure is refused."""
    if not options:
        return name
    for option in options:
        owners = [choice.kind for choice in CHOICES.values() if option in getattr(choice, "__dataclass_fields__", {})]
        if name not in owners:
            raise InvalidSetting(
                f"{option} belongs to structure={' or '.join(map(repr, owners))}; name it, or leave {option} out."
            )
    return CHOICES[name](**options)


def _cost_of_squares(extent: Extent) -> Cost:
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
        if worth_iterating(steps, size):
            return work + (solves_of(size, 1, each) + Work(4 * rows * size)) * (steps + 1)
    else:
        work = solves_of(size, 1, each) * 30 + Work(moved=30 * size**2 * each)  # how much was cancelled
    work += _squares_of(extent, size, outputs, extent.asked, asked, 1) + Work(moved=8 * size**2 * each)
    return work + factor_of(size, each)


def _kernel_width(extent: Extent) -> int:
    """Numbers that one entry of every block's RRᵀ is summed of; in closed form a product of features, one of cores."""
    linear = extent.linear
    if linear is None:
        return extent.dim
    shapes = [slab.shape for block in extent.blocks for slab in linear.slabs(block)] or [linear]
    return sum(shape.inputs + shape.outputs for shape in shapes)


def _dense_preconditioner(chosen: Preconditioner, linear: LinearShape, size: int, budget: int) -> bool:
    """Whether conjugate gradients on a linear model get a dense block per output."""
    if chosen != "auto":
        return chosen == "dense"
    return linear.outputs * linear.inputs**2 * size < PRECONDITIONER_SHARE * budget
