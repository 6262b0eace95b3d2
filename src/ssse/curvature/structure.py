"""What every structure answers: solve, leave out, remove, store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssse.errors import InvalidSetting
from ssse.problem.parameters import Block, LinearShape
from ssse.rows.held import HeldRows


@dataclass(frozen=True)
class LeftOut:
    """M₋S⁻¹ v, and what it rests on.

    Attributes:
        leverages: eigenvalues of K = R_S M⁻¹ R_Sᵀ in the block where the largest is, descending; M with the damping of
            all the data, as it is held. All are below 1 if the rows of S are part of the curvature; the closer to 1,
            the more S alone determines a direction. Where K was never formed, the largest alone, as a lower bound.
        leverage_sum: trace of K over all blocks, the number of parameters that S pays for.
        where: the name of that block.
        indefinite: M₋S has a direction without curvature; the solution is then not one.
        missing: rows of S that a structure which still knows its rows did not find among them.
        converged: False where an iterative solver stopped short of its tolerance.
        note: what the solver has to say about its own accuracy.
        residual: ‖v − M₋Sx‖/‖v‖ of the solution x as it was computed, before it is rounded to the precision of v; None
            where M is not at hand to multiply with.
        rounds, gradient: of a re-weighted solve (`curvature.reweighted`), how many, and what they left of the gradient.
    """

    solution: Tensor
    leverages: Tensor
    leverage_sum: float
    where: str
    indefinite: bool = False
    missing: int = 0
    converged: bool = True
    note: str = ""
    residual: float | None = None
    rounds: int = 0
    gradient: float | None = None


class Structure(ABC):
    """M = RᵀR + ridge·I in some form, ridge = nλ: factorised once, solved many times.

    Attributes:
        kind: its name in files. blocks: what M is cut into, where it is; nothing between them is held.
        reads_data: whether erasing needs the training data. complete: whether all of the curvature inside the blocks is
            held.
    """

    kind: ClassVar[str]
    reads_data: ClassVar[bool] = False
    complete: ClassVar[bool] = True
    blocks: tuple[Block, ...] = ()
    ridge: float
    # What is stored, in words for somebody who has to answer for it: after a fit, and after an erasure. Written into
    # the ledger, so that nobody else has to know.
    holds: ClassVar[str]
    holds_after_erasure: ClassVar[str] = "sums over the samples, from which the forgotten ones were subtracted"
    keeps_remainder: ClassVar[bool] = True  # rows are subtracted as they are at the current model, not as they were

    def solve(self, v: Tensor) -> Tensor:
        """M⁻¹ v, shape (d,)."""
        return self.solve_measured(v)[0]

    @abstractmethod
    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        """M⁻¹ v, and its relative residual as in `LeftOut`."""

    def rough_solve(self, v: Tensor) -> Tensor:
        """M⁻¹ v, or near it where that would read the data again: for lengths that are compared with limits."""
        return self.solve(v)

    @abstractmethod
    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        """M₋S⁻¹ v with M₋S = RᵀR − R_SᵀR_S + ridge·I, from the rows of S alone; M itself stays.

        `ridge` is the damping of what remains, (n−k)λ.
        """

    @abstractmethod
    def remove(self, rows: Iterable[HeldRows], ridge: float) -> Structure:
        """A new structure of RᵀR − R_SᵀR_S + ridge·I, from which the rows of S are gone."""

    @abstractmethod
    def with_ridge(self, ridge: float) -> Structure:
        """The same rows with another damping, without a second pass over the data."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Every tensor that has to be stored, by name."""

    @classmethod
    @abstractmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> Structure:
        """As `state` and `settings` were stored; `linear`: the shape of θ where it is one linear layer."""

    @abstractmethod
    def to(self, device: torch.device) -> Structure: ...

    def settings(self) -> dict[str, Any]:
        """What has to be stored besides tensors."""
        return {}

    def merged(self, other: Any, ridge: float) -> Structure:
        """RᵀR summed over two shards of the data, each with such a structure."""
        raise InvalidSetting(f"Curvatures with structure '{self.kind}' cannot be merged.")

    def solve_error(self, v: Tensor) -> tuple[float, str]:
        """The largest measured relative error of `solve(v)` over the blocks, and the block it is in."""
        return 0.0, ""


class Builder(ABC):
    """Takes rows in, batch by batch, then gives the structure.

    Attributes:
        keeps_rows: whether what it holds grows with the rows; else they are summed.
    """

    keeps_rows: ClassVar[bool] = False

    @abstractmethod
    def add(self, rows: HeldRows) -> None: ...

    @abstractmethod
    def build(self, ridge: float) -> Structure: ...

    @abstractmethod
    def since_last(self) -> dict[str, Tensor]:
        """What it holds, for `take_in` of another one; where it keeps rows, those since the last `mark`."""

    @abstractmethod
    def take_in(self, tensors: dict[str, Tensor]) -> None:
        """What another one held."""

    def mark(self) -> None:  # noqa: B027  # may be nothing
        """What it holds has been kept elsewhere."""


@dataclass(frozen=True)
class Gap:
    """I − K of Woodbury's identity, (M − RᵀR)⁻¹ = M⁻¹ + M⁻¹Rᵀ(I − K)⁻¹RM⁻¹ with K = RM⁻¹Rᵀ, by the eigenvectors of K.

    K is small, so it is done in float64.
    """

    values: Tensor  # of K, ascending
    vectors: Tensor

    @classmethod
    def of(cls, k: Tensor) -> Gap:
        k = k.double()
        return cls(*torch.linalg.eigh((k + k.mT) / 2))

    @property
    def leverages(self) -> Tensor:
        """The eigenvalues of K, descending."""
        return self.values.flip(0)

    def solve(self, right: Tensor) -> Tensor:
        """(I − K)⁻¹ right, shape (k, q).

        An eigenvalue at or above 1 has no meaning here: the solution is then not used, only reported.
        """
        gap = (1 - self.values).clamp_min(torch.finfo(torch.float64).tiny)
        return (self.vectors @ ((self.vectors.mT @ right.double()) / gap[:, None])).to(right.dtype)
