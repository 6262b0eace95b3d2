"""Dense blocks: one Gram matrix and its Cholesky factor per block of θ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Product
from ssse.curvature.gram import DampedGram, factor_in_place
from ssse.curvature.lowered import lower_ridge, steps_to_lower, worth_iterating
from ssse.curvature.refinement import ACCEPTED_RESIDUAL, Refined, refine, relative_residual
from ssse.curvature.structure import Builder, Gap, LeftOut, Structure
from ssse.errors import NotPositiveDefinite, PrecisionLost
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import ExplicitRows, HeldRows, Rows
from ssse.system.side_by_side import side_by_side

TRIED, ROUNDS = 16, 6  # directions and rounds in which the largest leverage is looked for, where there are many
LARGE = 1024  # parameters of a block whose work is long beside that of the interpreter
ACCEPTED_LOSS = 1e-2  # of a step, to cancellation; the estimate is within a factor of about four


Result = TypeVar("Result")


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

    def since_last(self) -> dict[str, Tensor]:
        return {f"{i}.square": square for i, square in enumerate(self.squares)}

    def take_in(self, tensors: dict[str, Tensor]) -> None:
        for i, square in enumerate(self.squares):
            square += tensors[f"{i}.square"]


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

    def pairs(self) -> Iterator[tuple[Block, DampedGram]]:
        return zip(self.blocks, self.grams, strict=True)

    def _of_blocks(self, work: Callable[[Block, DampedGram], Result]) -> list[Result]:
        """The result for each; of large blocks on a CPU several at once."""
        pairs = list(self.pairs())
        large = any(block.size >= LARGE and gram.device.type == "cpu" for block, gram in pairs)
        return side_by_side(lambda pair: work(*pair), pairs) if large else [work(*pair) for pair in pairs]

    def solve(self, v: Tensor) -> Tensor:
        out = torch.zeros_like(v)
        parts = self._of_blocks(lambda block, gram: gram.solve(block.take(v).to(self.dtype)[:, None])[:, 0])
        for block, part in zip(self.blocks, parts, strict=True):
            block.put(out, part.to(v.dtype))
        return out

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        def solved(block: Block, gram: DampedGram) -> Refined:
            return refine(_solving(gram), _multiplying(gram, gram.ridge), block.take(v), self.dtype)

        out, squared = torch.zeros_like(v), 0.0
        for block, part in zip(self.blocks, self._of_blocks(solved), strict=True):
            block.put(out, part.x.to(v.dtype))
            squared += part.residual**2
        return out, relative_residual(squared**0.5, v)

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        rows = rows.to(self.dtype) if self.grams else rows
        out = torch.zeros_like(v)
        worst, where, total, indefinite = torch.zeros(1, dtype=torch.float64), "", 0.0, False
        squared = 0.0
        parts = self._of_blocks(
            lambda block, gram: _leave_out_of_block(gram, rows, block, block.take(v).to(self.dtype), ridge)
        )
        for block, part in zip(self.blocks, parts, strict=True):
            block.put(out, part.solved.x.to(v.dtype))
            squared += part.solved.residual**2
            total += float(part.leverages.sum()) if part.all_leverages else torch.nan
            indefinite |= part.indefinite
            if not where or float(part.leverages[0]) > float(worst[0]):
                worst, where = part.leverages, block.name
        return LeftOut(out, worst, total, where, indefinite, residual=relative_residual(squared**0.5, v))

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> DenseStructure:
        squares = [gram.gram() for gram in self.grams]
        for part in rows if squares else ():
            part = part.to(self.dtype)
            for block, square in zip(self.blocks, squares, strict=True):
                part.add_gram(square, block, sign=-1.0)
        return self._refactorised(squares, ridge)

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
        errors = [(gram.solve_error(block.take(v).to(self.dtype)), block.name) for block, gram in self.pairs()]
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
    solved: Refined
    leverages: Tensor
    indefinite: bool = False
    all_leverages: bool = True


def _solving(gram: DampedGram) -> Product:
    return lambda v: gram.solve(v[:, None])[:, 0]


def _multiplying(gram: DampedGram, ridge: float, removed: Product = torch.zeros_like) -> Product:
    """x → (G − removed + ridge·I) x."""
    return lambda x: gram.product(x[:, None])[:, 0] - (gram.ridge - ridge) * x - removed(x)


def _leave_out_of_block(gram: DampedGram, rows: HeldRows, block: Block, v: Tensor, ridge: float) -> _BlockLeftOut:
    """With HᵀH = M⁻¹ and Y = HR_Sᵀ: K = YᵀY, (M − R_SᵀR_S)⁻¹ = Hᵀ(I + Y(I − K)⁻¹Yᵀ)H; then the damping is lowered."""
    leverages: Tensor | None = None
    nothing = Refined(torch.full_like(v, torch.nan), torch.nan, torch.nan)
    if rows.count_on(block) < block.size:
        part = ExplicitRows(rows.restricted(block))
        y_rows = gram.half_solve(part.values.mT)
        gap = Gap.of(y_rows.mT @ y_rows)
        room, blurred = 1 - float(gap.leverages[0]), torch.finfo(v.dtype).eps ** 0.25
        if room < -blurred:
            return _BlockLeftOut(nothing, gap.leverages, indefinite=True)

        def without(p: Tensor) -> Tensor:
            y = gram.half_solve(p[:, None])
            return gram.half_solve_transposed(y + y_rows @ gap.solve(y_rows.mT @ y))[:, 0]

        if room > blurred:
            leverages, steps = gap.leverages, steps_to_lower(gram.ridge, ridge, v.dtype)
            if worth_iterating(2 * steps, block.size):  # two solutions, mostly

                def lowered(p: Tensor) -> Tensor:
                    found = lower_ridge(without, without(p), gram.ridge - ridge, steps)
                    return torch.full_like(p, torch.nan) if found is None else found

                product = _multiplying(gram, ridge, lambda x: part.transposed_times(part.times(x)))
                solved = refine(lowered, product, v, v.dtype)
                if relative_residual(solved.residual, v) <= ACCEPTED_RESIDUAL:
                    return _BlockLeftOut(solved, leverages)
    # More rows than parameters, a leverage so near 1 that I − K has lost its digits, or too many steps to the lower
    # damping: subtract from the Gram matrix itself, which loses only what that subtraction loses.
    columns = rows.columns(block)
    square = gram.gram()
    rows.add_gram(square, block, sign=-1.0)
    try:
        lower = factor_in_place(square, ridge, gram.name)
    except NotPositiveDefinite:
        if leverages is not None:
            return _BlockLeftOut(nothing, leverages, indefinite=True)
        share = _strongest(columns, gram.half_solve, gram.half_solve_transposed, square)[0]
        largest = torch.tensor([share], dtype=torch.float64)
        return _BlockLeftOut(nothing, largest, indefinite=True, all_leverages=False)

    def half(x: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(lower, x, upper=False)

    def half_transposed(x: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(lower.mT, x, upper=True)

    product = _multiplying(gram, ridge, lambda x: columns.transposed_times(columns.times(x)))
    solved = refine(lambda p: half_transposed(half(p[:, None]))[:, 0], product, v, v.dtype)
    if leverages is not None:
        return _BlockLeftOut(solved, leverages)
    # The largest eigenvalue a of M₋S⁻¹(M₋S + R_SᵀR_S) tells how much the subtraction cancelled.
    share, squared = _strongest(columns, half, half_transposed, lower)
    amplified = 1 + share
    lost = torch.finfo(v.dtype).eps * amplified
    if lost > ACCEPTED_LOSS:
        raise PrecisionLost(
            f"In block '{gram.name}' the forgotten samples determine a direction up to 1 part in {amplified:.1e}, and "
            f"{v.dtype} loses {lost:.1e} of the step there. Fit with dtype=torch.float64 or a larger damping."
        )
    # Along the same direction, the share of R_SᵀR_S in M; alone, since the trace is not known.
    largest = torch.tensor([share / (amplified + (gram.ridge - ridge) * squared)], dtype=torch.float64)
    return _BlockLeftOut(solved, largest, all_leverages=False)


def _strongest(rows: Rows, half: Product, half_transposed: Product, like: Tensor) -> tuple[float, float]:
    """The largest eigenvalue of A⁻¹RᵀR from below, by subspace iteration, since K is too large to form; A⁻¹ = HᵀH.

    Also ‖u‖² of its direction u with uᵀAu = 1. R is multiplied with as it is: RᵀR is never read.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(rows.dim, min(TRIED, rows.dim), generator=generator, dtype=torch.float64)

    def image(x: Tensor) -> Tensor:
        return half(rows.transposed_times(rows.times(half_transposed(x))).to(x.dtype))

    basis = torch.linalg.qr(start.to(like)).Q
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(image(basis)).Q
    values, vectors = torch.linalg.eigh((basis.mT @ image(basis)).double())
    u = half_transposed(basis @ vectors[:, -1:].to(basis.dtype))
    return max(float(values[-1]), 0.0), float(u.norm()) ** 2
