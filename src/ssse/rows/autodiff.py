"""Rows of any model, by automatic differentiation: each way that `problem.derivatives` knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.problem.batch_forms import Inputs
from ssse.problem.cores import BlockCores, Cores, DenseCores, cores_of_parts
from ssse.problem.labels import Labels
from ssse.problem.problem import Problem
from ssse.rows.held import ExplicitRows, HeldRows, Rows


@dataclass
class NetworkRows(Rows):
    """Rows of a batch, never formed unless asked."""

    problem: Problem
    x: Inputs
    cores: Cores

    def __post_init__(self) -> None:
        n, r, _ = self.cores.shape
        self.count: int = n * r
        self.dim: int = self.problem.layout.dim

    @torch.no_grad()
    def times(self, v: Tensor) -> Tensor:
        jv = self.problem.derivatives.times(self.problem, self.x, v.to(self.problem.dtype))
        return self.cores.times(jv.unsqueeze(2)).reshape(-1)

    @torch.no_grad()
    def transposed_times(self, u: Tensor) -> Tensor:
        n, r, _ = self.cores.shape
        cotangent = self.cores.transposed_times(u.to(self.problem.dtype).view(n, r, 1)).squeeze(2)
        return self.problem.derivatives.transposed_times(self.problem, self.x, cotangent)

    @torch.no_grad()
    def explicit(self) -> ExplicitRows:
        cores = self.cores if isinstance(self.cores, BlockCores) else DenseCores(self.cores.dense())
        rows, _ = self.problem.derivatives.rows(self.problem, self.x, lambda _, which: cores.samples(which))
        return ExplicitRows(rows.flatten(0, 1))


def held(rows: Rows) -> HeldRows:
    """The rows in memory, formed if they were not."""
    if isinstance(rows, NetworkRows):
        return rows.explicit()
    assert isinstance(rows, HeldRows)
    return rows


@torch.no_grad()
def gradient_rows(problem: Problem, x: Inputs, y: Labels) -> tuple[ExplicitRows, Tensor]:
    """∇ℓ of every sample, and the outputs z, by one forward and backward pass."""

    def cores(z: Tensor, which: Tensor | slice) -> Cores:
        return DenseCores(problem.loss.gradient(z, y[which]).unsqueeze(1))

    rows, z = problem.derivatives.rows(problem, x, cores)
    return ExplicitRows(rows.flatten(0, 1)), z


@torch.no_grad()
def margin_rows(problem: Problem, x: Inputs, y: Labels) -> tuple[ExplicitRows, Tensor]:
    """∇φ of every margin of every sample, and the outputs z, by one forward and backward pass."""

    def cores(z: Tensor, which: Tensor | slice) -> Cores:
        return cores_of_parts(problem.loss.margin(z, y[which]).direction)

    rows, z = problem.derivatives.rows(problem, x, cores)
    return ExplicitRows(rows.flatten(0, 1)), z
