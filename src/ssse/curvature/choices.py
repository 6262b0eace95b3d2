"""What `structure=` takes: each choice knows its options, its cost, and how it is built.

This is the list of structures: `CHOICES` are those to ask for, `STORED` those that are found on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch

from ssse.curvature.dense import DenseBuilder, DenseStructure
from ssse.curvature.diagonal import DiagonalBuilder, DiagonalStructure
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.recurrence import RecurrenceBuilder, RecurrenceStructure
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.truncated import TruncatedBuilder, TruncatedStructure
from ssse.errors import InvalidSetting
from ssse.problem.parameters import Block, Layout, LinearShape, make_blocks

Preconditioner = Literal["auto", "none", "diagonal", "dense"]
PRECONDITIONER_SHARE = 0.4  # of the memory budget, that dense blocks as a preconditioner may take


@dataclass(frozen=True)
class Extent:
    """How much a structure has to hold.

    Attributes:
        samples, rows: how many. dim: d. linear: the shape of θ, where rows have a closed form.
        row_numbers: that all rows together are kept in; fewer than rows × d where they have a closed form.
        size: bytes of a number. budget: bytes of memory.
    """

    samples: int
    rows: int
    dim: int
    row_numbers: int
    linear: LinearShape | None
    blocks: tuple[Block, ...]
    size: int
    budget: int


@dataclass(frozen=True)
class Cost:
    """Bytes that are held, needed for a while beside them, and stored on disk; floating-point operations."""

    held: int
    spare: int
    stored: int
    operations: float


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
        rows, size = extent.rows, extent.size
        kernels = len(extent.blocks) or 1
        held, spare = extent.row_numbers * size + kernels * rows**2 * size, 2 * rows**2 * size
        operations = rows**2 * _kernel_width(extent) + kernels * rows**3 / 3
        if self.rank is None:
            return Cost(held, spare, held, operations)
        stored = (self.rank * extent.dim + self.rank**2) * size
        return Cost(held, spare + self.rank * extent.dim * size, stored, operations + 9 * rows**3)

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
        linear, size = extent.linear, extent.size
        if linear is not None and _fits_dense_blocks(linear, size, extent.budget):
            held = linear.outputs * (linear.inputs + linear.bias) ** 2 * size
            return Cost(held, held // linear.outputs, held, extent.samples * held / size)
        held = extent.dim * size
        return Cost(held, held, held, extent.samples * extent.dim)

    def builder(self, ground: Ground) -> Builder | None:
        """Of the preconditioner: a block per output where the model is linear and they fit, else the diagonal."""
        chosen, linear = self.preconditioner, ground.linear
        if chosen == "auto":
            size = torch.empty((), dtype=ground.dtype).element_size()
            fits = linear is not None and _fits_dense_blocks(linear, size, ground.budget)
            chosen = "dense" if fits else "diagonal" if linear is not None else "none"
        if chosen == "none":
            return None
        if chosen == "diagonal":
            return DiagonalBuilder(ground.layout.dim, ground.dtype, ground.device)
        blocks = make_blocks(ground.layout, "output" if linear is not None else "parameter", linear)
        return DenseBuilder(blocks, ground.dtype, ground.device)


@dataclass(frozen=True)
class Diagonal(Choice):
    """d numbers, for comparison and for scrubbing."""

    kind = "diagonal"

    def cost(self, extent: Extent) -> Cost:
        held = extent.dim * extent.size
        return Cost(held, held, held, extent.samples * extent.dim)

    def builder(self, ground: Ground) -> Builder:
        return DiagonalBuilder(ground.layout.dim, ground.dtype, ground.device)


@dataclass(frozen=True)
class Recurrence(Choice):
    """The paper's Eq. 7, word for word; the reference, not for use."""

    kind = "recurrence"
    takes_blocks = True
    needs_count = True

    def cost(self, extent: Extent) -> Cost:
        return _cost_of_squares(extent)

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
    squares = [block.size**2 for block in extent.blocks]
    held, spare = sum(squares) * extent.size, 2 * max(squares) * extent.size
    # Closed form: one weighted product of the features per pair of outputs, r rows for the price of one.
    passes = extent.samples if extent.linear else extent.rows
    operations = sum(passes * block.size**2 + block.size**3 / 3 for block in extent.blocks)
    return Cost(held, spare, held, operations)


def _kernel_width(extent: Extent) -> int:
    """Numbers that one entry of every block's RRᵀ is summed of; in closed form a product of features, one of cores."""
    linear = extent.linear
    if linear is None:
        return extent.dim
    shapes = [slab.shape for block in extent.blocks for slab in linear.slabs(block)] or [linear]
    return sum(shape.inputs + shape.outputs for shape in shapes)


def _fits_dense_blocks(linear: LinearShape, size: int, budget: int) -> bool:
    """Whether conjugate gradients on a linear model get a dense block per output."""
    return linear.outputs * linear.inputs**2 * size < PRECONDITIONER_SHARE * budget
