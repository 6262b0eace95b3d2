"""What `structure=` takes: each choice knows its options, its cost, and how it is built.

This is the list of structures: `CHOICES` are those to ask for, `STORED` those that are found on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch

from ssse.curvature.costs import Work, factor_of, solves_of
from ssse.curvature.dense import DenseBuilder, DenseStructure
from ssse.curvature.diagonal import DiagonalBuilder, DiagonalStructure
from ssse.curvature.extent import Cost, Extent, cost_of_squares, kernel_width, left_out_of_kernel
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.recurrence import RecurrenceBuilder, RecurrenceStructure
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.truncated import TruncatedBuilder, TruncatedStructure
from ssse.errors import InvalidSetting
from ssse.problem.parameters import Block, Layout, LinearShape, make_blocks

Preconditioner = Literal["auto", "none", "diagonal", "dense"]
KernelPrecision = Literal["auto", "rows", "float64", "split"]
NARROW = 3  # by which a product of features with one vector for each output is slower than one of squares
PRECONDITIONER_SHARE = 0.4  # of the memory budget, that dense blocks as a preconditioner may take


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
    shared: ClassVar[bool] = True  # whether several processes can fit it

    @property
    def knows_samples(self) -> bool:
        """Whether rows are held by a digest of their sample."""
        return False

    def working(self, rows: torch.dtype) -> torch.dtype:
        """The precision that products and factors are made in, where rows are in that."""
        return rows

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
        return cost_of_squares(extent)

    def builder(self, ground: Ground) -> Builder:
        return DenseBuilder(ground.blocks, ground.dtype, ground.device)


@dataclass(frozen=True)
class LowRank(Choice):
    """The rows themselves, and the factor of their kernel for each block; or their leading directions alone.

    Attributes:
        rank: keep so many directions of all of θ, without blocks, instead of the rows.
        kernel: the precision of the kernel, its factor and all solutions, the rows staying as they are: "rows", that of
            the rows; "float64"; or "auto": float64 for the margin rows of a network, where it fits the memory. "split":
            that of float32 rows on a GPU, on its tensor cores.
    """

    rank: int | None = None
    kernel: KernelPrecision = "auto"

    kind = "lowrank"
    takes_blocks = True
    needs_count = True

    @property
    def knows_samples(self) -> bool:
        return self.rank is None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise InvalidSetting(f"rank must be at least 1, not {self.rank}.")
        if self.kernel not in get_args(KernelPrecision):
            named = ", ".join(get_args(KernelPrecision))
            raise InvalidSetting(f"kernel must be one of {named}, not {self.kernel!r}.")
        if self.rank is not None and self.kernel in ("float64", "split"):
            raise InvalidSetting("rank keeps directions instead of a kernel: leave out rank= or kernel=.")

    def working(self, rows: torch.dtype) -> torch.dtype:
        return torch.float64 if self.kernel == "float64" else rows

    def cost(self, extent: Extent) -> Cost:
        rows, kept = extent.rows, extent.row_numbers * extent.size
        size = torch.empty((), dtype=self.working(extent.dtype)).element_size()  # of what is solved with
        kernels = len(extent.blocks) or 1
        held, spare = kept + kernels * rows**2 * size, 2 * rows**2 * size
        work = Work(products=rows**2 * kernel_width(extent), moved=4 * kept + 6 * kernels * rows**2 * size)
        work += factor_of(rows, size) * kernels
        wider = 1 if size == extent.size else 3  # rows are read, written wider, and read again
        asked = Work(moved=16 * kept * wider, calls=4 * extent.groups) + left_out_of_kernel(extent, size) * kernels
        if extent.linear is not None:  # about ten products with the rows and as many back
            asked += Work(products=NARROW * 40 * extent.samples * extent.dim)
        if self.rank is None:
            return Cost(held, spare, held, work, asked)
        stored = (self.rank * extent.dim + self.rank**2) * size
        work += Work(products=2 * self.rank * rows * extent.dim, factors=9 * rows**3)
        solved = Work(products=4 * self.rank * extent.dim * extent.rows_asked, moved=20 * stored, calls=100)
        return Cost(held, spare + self.rank * extent.dim * size, stored, work, solved)

    def builder(self, ground: Ground) -> Builder:
        if self.rank is not None:
            return TruncatedBuilder(self.rank, ground.dtype, ground.linear)
        wider = None if self.working(ground.dtype) == ground.dtype else self.working(ground.dtype)
        split = self.kernel == "split"
        if split and (ground.linear is not None or ground.dtype != torch.float32 or ground.device.type != "cuda"):
            what = "network" if ground.linear is None else "linear model"
            raise InvalidSetting(
                "kernel='split' multiplies the float32 rows of a network on the tensor cores of a GPU; these are of a "
                f"{what}, in {ground.dtype}, on {ground.device.type}. Use kernel='rows' or 'float64'."
            )
        return LowRankBuilder(ground.salt, ground.dtype, ground.blocks, wider, ground.linear, split)

    def __str__(self) -> str:
        if self.kernel in ("float64", "split"):
            return f"{self.kind} with a {self.kernel} kernel"
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
    shared = False

    def cost(self, extent: Extent) -> Cost:
        """Every row is a step that reads and writes a whole block."""
        cost = cost_of_squares(extent)
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


def _dense_preconditioner(chosen: Preconditioner, linear: LinearShape, size: int, budget: int) -> bool:
    """Whether conjugate gradients on a linear model get a dense block per output."""
    if chosen != "auto":
        return chosen == "dense"
    return linear.outputs * linear.inputs**2 * size < PRECONDITIONER_SHARE * budget
