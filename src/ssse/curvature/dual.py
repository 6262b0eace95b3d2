"""The dual form on one block of θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import Product
from ssse.curvature.gram import DampedGram
from ssse.curvature.lowered import lower_ridge, steps_to_lower, worth_iterating
from ssse.errors import PrecisionLost
from ssse.rows.held import Rows

REFINABLE = 0.03  # a correction of this size squared is what remains of the error


@dataclass(frozen=True)
class Dual:
    """M⁻¹ = (I − Rᵀ A⁻¹ R) / ridge with A = RRᵀ + ridge·I, for the columns R of one block.

    Attributes:
        rows: R, a view of the rows that all blocks share. gram: A and its factor.
    """

    rows: Rows
    gram: DampedGram

    def solve(self, v: Tensor) -> Tensor:
        def product(x: Tensor) -> Tensor:
            return self.rows.transposed_times(self.rows.times(x))

        return self._refined(v, self._solve_gram, product, self.gram.ridge)

    def leave_out(self, index: Tensor, v: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """M₋S⁻¹v with the damping `ridge`, and the leverages of S, descending, S given by the places of its rows.

        The leverages are exactly the eigenvalues of I − nλ·(A⁻¹)_SS.
        """
        square, count = self.gram.square, len(index)
        unit = torch.zeros(len(square), count, dtype=square.dtype, device=square.device)
        unit[index, torch.arange(count, device=unit.device)] = 1
        columns = self.gram.solve(unit)  # A⁻¹E_S
        del unit
        corner = columns[index]  # (A⁻¹)_SS
        values = torch.linalg.eigvalsh(((corner + corner.mT) / 2).double())
        leverages = (1 - self.gram.ridge * values).clamp_max(1.0)
        inner = torch.linalg.cholesky(corner.double())

        def without(b: Tensor) -> Tensor:
            """A₋S,₋S⁻¹ b by forcing the entries of S in A⁻¹b to zero."""
            b = b.clone()
            b[index] = 0
            y = self._solve_gram(b)
            y -= columns @ torch.cholesky_solve(y[index, None].double(), inner)[:, 0].to(y.dtype)
            y[index] = 0
            return y

        def product(x: Tensor) -> Tensor:
            u = self.rows.times(x)
            u[index] = 0
            return self.rows.transposed_times(u)

        return self._refined(v, self._lowered(without, index, ridge), product, ridge), leverages

    def _lowered(self, without: Product, index: Tensor, ridge: float) -> Product:
        """(R₋SR₋Sᵀ + ridge·I)⁻¹ b from `without`, which has the damping of the factor; zero at S."""
        steps = steps_to_lower(self.gram.ridge, ridge, self.gram.square.dtype)
        kept = torch.ones(len(self.gram.square), dtype=torch.bool, device=index.device)
        kept[index] = False
        anew = None if worth_iterating(2 * steps, len(kept)) else self._factor_without(kept, ridge)  # two solutions

        def solve(b: Tensor) -> Tensor:
            nonlocal anew
            if anew is None:
                solution = lower_ridge(without, without(b), self.gram.ridge - ridge, steps)
                if solution is not None:
                    return solution
                anew = self._factor_without(kept, ridge)
            y = torch.zeros_like(b)
            y[kept] = anew.solve(b[kept, None])[:, 0]
            return y

        return solve

    def _factor_without(self, kept: Tensor, ridge: float) -> DampedGram:
        return DampedGram.factorise(self.gram.gram()[kept][:, kept], ridge, self.gram.name)

    def solve_error(self, v: Tensor) -> float:
        return self.gram.solve_error(self.rows.times(v).to(self.gram.square.dtype))

    def _solve_gram(self, b: Tensor) -> Tensor:
        return self.gram.solve(b[:, None])[:, 0]

    def _refined(self, v: Tensor, dual_solve: Product, product: Product, ridge: float) -> Tensor:
        """(v − Rᵀ dual_solve(Rv)) / ridge, once more on the residual: the difference loses digits."""

        def once(w: Tensor) -> Tensor:
            return (w - self.rows.transposed_times(dual_solve(self.rows.times(w)))) / ridge

        w = v.to(self.gram.square.dtype)
        x = once(w)
        correction = once(w - product(x) - ridge * x)
        error = float(correction.norm() / x.norm().clamp_min(torch.finfo(x.dtype).tiny))
        if error > REFINABLE:
            raise PrecisionLost(
                f"The dual form loses {error:.0%} of its solution in block '{self.gram.name}' to rounding in "
                f"{x.dtype}: the rows are large over the damping. Use dtype=torch.float64 or a larger damping."
            )
        return (x + correction).to(v.dtype)
