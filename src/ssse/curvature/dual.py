"""The dual form on one block of θ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.errors import PrecisionLost
from ssse.rows.held import Rows

Product = Callable[[Tensor], Tensor]
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
        return self._refined(v, self._solve_gram, lambda x: self.rows.transposed_times(self.rows.times(x)))

    def leave_out(self, index: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """M₋S⁻¹v and the leverages of S, descending, S given by the places of its rows.

        The leverages are exactly the eigenvalues of I − ridge·(A⁻¹)_SS.
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

        return self._refined(v, without, product), leverages

    def solve_error(self, v: Tensor) -> float:
        return self.gram.solve_error(self.rows.times(v).to(self.gram.square.dtype))

    def _solve_gram(self, b: Tensor) -> Tensor:
        return self.gram.solve(b[:, None])[:, 0]

    def _refined(self, v: Tensor, dual_solve: Product, product: Product) -> Tensor:
        """(v − Rᵀ dual_solve(Rv)) / ridge, once more on the residual: the difference loses digits."""
        ridge = self.gram.ridge

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
