"""The diagonal of the curvature: d numbers, for scrubbing and for comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.refinement import relative_residual
from ssse.curvature.structure import Builder, LeftOut, Structure
from ssse.errors import NotPositiveDefinite
from ssse.problem.parameters import LinearShape
from ssse.rows.held import HeldRows


class DiagonalBuilder(Builder):
    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device):
        self.squares: Tensor = torch.zeros(dim, dtype=dtype, device=device)

    def add(self, rows: HeldRows) -> None:
        self.squares += rows.to(self.squares.dtype).squares()

    def build(self, ridge: float) -> DiagonalStructure:
        return DiagonalStructure(self.squares, ridge)

    def since_last(self) -> dict[str, Tensor]:
        return {"squares": self.squares}

    def take_in(self, tensors: dict[str, Tensor]) -> None:
        self.squares += tensors["squares"]


class DiagonalStructure(Structure):
    """diag(RᵀR) + ridge. Rows are left out by subtracting their squares."""

    kind = "diagonal"
    complete = False
    holds = "one number for each weight: only a part of the curvature, meant for comparison"

    def __init__(self, squares: Tensor, ridge: float):
        self.squares = squares
        self.ridge = ridge

    def solve_measured(self, v: Tensor) -> tuple[Tensor, float | None]:
        x = v.to(self.squares.dtype) / (self.squares + self.ridge)
        return x.to(v.dtype), _residual(self.squares, self.ridge, x, v)

    def leave_out(self, rows: HeldRows, v: Tensor, ridge: float) -> LeftOut:
        removed = rows.to(self.squares.dtype).squares()
        shares = (removed / (self.squares + self.ridge)).double()
        remaining = self.squares - removed
        solution = v.to(self.squares.dtype) / (remaining.clamp_min(0) + ridge)  # rounding may leave −0
        indefinite = bool((remaining + ridge <= 0).any())
        return LeftOut(
            solution.to(v.dtype), shares.max().reshape(1), float(shares.sum()), "diagonal", indefinite,
            residual=_residual(remaining.clamp_min(0), ridge, solution, v),
        )  # fmt: skip

    def remove(self, rows: Iterable[HeldRows], ridge: float) -> DiagonalStructure:
        squares = self.squares.clone()
        for part in rows:
            squares -= part.to(squares.dtype).squares()
        if bool((squares + ridge <= 0).any()):
            raise NotPositiveDefinite("The rows to remove carry more curvature than the diagonal holds.")
        return DiagonalStructure(squares.clamp_min(0), ridge)  # rounding may leave −0

    def with_ridge(self, ridge: float) -> DiagonalStructure:
        return DiagonalStructure(self.squares, ridge)

    def merged(self, other: DiagonalStructure, ridge: float) -> DiagonalStructure:
        return DiagonalStructure(self.squares + other.squares, ridge)

    def state(self) -> dict[str, Tensor]:
        return {"squares": self.squares}

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], settings: dict[str, Any], ridge: float, linear: LinearShape | None = None
    ) -> DiagonalStructure:
        return cls(state["squares"], ridge)

    def to(self, device: torch.device) -> DiagonalStructure:
        return DiagonalStructure(self.squares.to(device), self.ridge)


def _residual(squares: Tensor, ridge: float, x: Tensor, v: Tensor) -> float:
    left = v.double() - (squares.double() + ridge) * x.double()
    return relative_residual(float(left.norm()), v)
