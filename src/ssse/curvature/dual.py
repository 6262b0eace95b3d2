"""The dual form on one block of θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Product
from ssse.curvature.gram import Factorised
from ssse.curvature.lowered import lower_ridge, steps_to_lower, worth_iterating
from ssse.curvature.refinement import Refined, refine
from ssse.errors import NotPositiveDefinite, PrecisionLost
from ssse.rows.held import Rows

REFINABLE = 0.03  # a correction of this size squared is what remains of the error
FEW = 1024  # rows left out, up to which all of their leverages are worth their columns of the inverse
SIZE_PER_COLUMN = 12  # a new factor of size B costs less than B/12 such columns
TRIED = 16  # directions, of which the one with the largest leverage is looked for, where there are more
ROUNDS = 5


@dataclass(frozen=True)
class DualLeftOut:
    """M₋S⁻¹v in one block. `leverages`: of S, descending; where there are too many, the largest alone, from below."""

    solved: Refined
    leverages: Tensor
    all_leverages: bool


@dataclass(frozen=True)
class Dual:
    """M⁻¹ = (I − Rᵀ A⁻¹ R) / ridge with A = RRᵀ + ridge·I, for the columns R of one block.

    Attributes:
        rows: R, a view of the rows that all blocks share. gram: A and its factor.
    """

    rows: Rows
    gram: Factorised

    def solve(self, v: Tensor) -> Refined:
        def product(x: Tensor) -> Tensor:
            return self.rows.transposed_times(self.rows.times(x)) + self.gram.ridge * x

        return self._refined(v, self._solve_gram, product, self.gram.ridge)

    def leave_out(self, index: Tensor, v: Tensor, ridge: float) -> DualLeftOut:
        """M₋S⁻¹v with the damping `ridge`, and the leverages of S, given by the places of its rows.

        By the factor of all rows where few are left out and their damping is near; else by a new factor of the kernel
        of those that stay, which needs no pass over the rows either.
        """
        steps = steps_to_lower(self.gram.ridge, ridge, self.gram.dtype)
        if not _are_few(index, self.gram):
            leverages = largest_leverage(self.gram, index)
            return DualLeftOut(self._solve_anew(index, v, ridge), leverages, all_leverages=False)
        columns = inverse_columns(self.gram, index)
        corner = columns[index].double()  # (A⁻¹)_SS
        leverages = _leverages(corner, self.gram.ridge)
        inner, info = torch.linalg.cholesky_ex(corner)
        if int(info) or not worth_iterating(3 * steps, self.gram.size):  # three solutions, mostly
            del columns
            return DualLeftOut(self._solve_anew(index, v, ridge), leverages, all_leverages=True)

        def without(b: Tensor) -> Tensor:
            """A₋S,₋S⁻¹ b by forcing the entries of S in A⁻¹b to zero."""
            b = b.clone()
            b[index] = 0
            y = self._solve_gram(b)
            y -= columns @ torch.cholesky_solve(y[index, None].double(), inner)[:, 0].to(y.dtype)
            y[index] = 0
            return y

        def lowered(b: Tensor) -> Tensor:
            solution = lower_ridge(without, without(b), self.gram.ridge - ridge, steps)
            if solution is None:
                raise NotPositiveDefinite("Rounding hides the smaller damping.")
            return solution

        try:
            solved = self._refined(v, lowered, self._product_without(index, ridge), ridge)
        except (NotPositiveDefinite, PrecisionLost):  # what two subtractions lose, a factor of what stays does not
            del columns
            solved = self._solve_anew(index, v, ridge)
        return DualLeftOut(solved, leverages, all_leverages=True)

    def solve_error(self, v: Tensor) -> float:
        return self.gram.solve_error(self.rows.times(v.to(self.gram.dtype)).to(self.gram.dtype))

    def _solve_anew(self, index: Tensor, v: Tensor, ridge: float) -> Refined:
        """(R₋SR₋Sᵀ + ridge·I)⁻¹ by a factor of its own, for this one solution."""
        factor = self.gram.without(index, ridge)
        return self._refined(v, factor.solve, self._product_without(index, ridge), ridge)

    def _product_without(self, index: Tensor, ridge: float) -> Product:
        def product(x: Tensor) -> Tensor:
            u = self.rows.times(x)
            u[index] = 0
            return self.rows.transposed_times(u) + ridge * x

        return product

    def _solve_gram(self, b: Tensor) -> Tensor:
        return self.gram.solve(b[:, None])[:, 0]

    def _refined(self, v: Tensor, dual_solve: Product, product: Product, ridge: float) -> Refined:
        """(v − Rᵀ dual_solve(Rv)) / ridge, refined: the difference loses digits."""

        def once(w: Tensor) -> Tensor:
            return (w - self.rows.transposed_times(dual_solve(self.rows.times(w)))) / ridge

        refined = refine(once, product, v, self.gram.dtype)
        if not refined.lost <= REFINABLE:
            raise PrecisionLost(
                f"The dual form loses {refined.lost:.0%} of its solution in block '{self.gram.name}' to rounding in "
                f"{self.gram.dtype}: the rows are large over the damping. Use dtype=torch.float64 or a larger "
                "damping."
            )
        return refined


def largest_leverage(gram: Factorised, index: Tensor) -> Tensor:
    """Of I − ridge·(A⁻¹)_SS, from below: a few rounds of subspace iteration, since its columns are too many."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(len(index), TRIED, generator=generator, dtype=torch.float64).to(gram.device, gram.dtype)

    def image(x: Tensor) -> Tensor:
        whole = torch.zeros(gram.size, x.shape[1], dtype=x.dtype, device=x.device)
        whole[index] = x
        return x - gram.ridge * gram.solve(whole)[index]

    for _ in range(ROUNDS):
        basis = torch.linalg.qr(image(basis)).Q
    values = torch.linalg.eigvalsh((basis.mT @ image(basis)).double())
    return values[-1:].clamp_max(1.0)


def leverages_of(gram: Factorised, index: Tensor) -> tuple[Tensor, bool]:
    """Of the rows at these places, descending, and whether they are all; else the largest alone, from below."""
    if not _are_few(index, gram):
        return largest_leverage(gram, index), False
    return _leverages(inverse_columns(gram, index)[index].double(), gram.ridge), True


def inverse_columns(gram: Factorised, index: Tensor) -> Tensor:
    """A⁻¹E_S."""
    count = len(index)
    unit = torch.zeros(gram.size, count, dtype=gram.dtype, device=gram.device)
    unit[index, torch.arange(count, device=unit.device)] = 1
    return gram.solve(unit)


def _leverages(corner: Tensor, ridge: float) -> Tensor:
    """The eigenvalues of I − ridge·(A⁻¹)_SS, exactly the leverages."""
    return (1 - ridge * torch.linalg.eigvalsh((corner + corner.mT) / 2)).clamp_max(1.0)


def _are_few(index: Tensor, gram: Factorised) -> bool:
    """Whether a column of the inverse for each is cheaper than a new factor, or cheap in any case."""
    return len(index) <= FEW or SIZE_PER_COLUMN * len(index) <= gram.size
