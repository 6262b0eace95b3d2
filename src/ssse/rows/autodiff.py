"""Rows of any model, by automatic differentiation: J in forward mode, Jᵀ in reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from ssse.problem.batches import Inputs
from ssse.problem.cores import BlockCores, Cores
from ssse.problem.problem import Problem
from ssse.rows.held import ExplicitRows, HeldRows, Rows

AT_A_TIME = 2**24  # numbers of the output space, where a sample's rows come one after another


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

    @torch.no_grad()  # parameters outside θ may ask for gradients of their own
    def times(self, v: Tensor) -> Tensor:
        tangent = self.problem.layout.unflatten(v.to(self.problem.dtype))
        jv = jvp(self._outputs, (self.problem.parameters(),), (tangent,))[1]
        return self.cores.times(jv.unsqueeze(2)).reshape(-1)

    @torch.no_grad()
    def transposed_times(self, u: Tensor) -> Tensor:
        n, r, _ = self.cores.shape
        cotangent = self.cores.transposed_times(u.to(self.problem.dtype).view(n, r, 1)).squeeze(2)
        pull = vjp(self._outputs, self.problem.parameters())[1]
        return self.problem.layout.flatten(pull(cotangent)[0])

    @torch.no_grad()
    def explicit(self) -> ExplicitRows:
        """Every row, by one vectorised reverse pass over the batch."""
        problem, blocks = self.problem, isinstance(self.cores, BlockCores)
        values = self.cores.values if isinstance(self.cores, BlockCores) else self.cores.dense()

        def of_one(parameters: dict[str, Tensor], x: Inputs, cores: Tensor) -> dict[str, Tensor]:
            pull = vjp(lambda p: problem.call(p, _batch_of_one(x))[0], parameters)[1]
            return _pull_blocks(pull, cores, len(values)) if blocks else _pull_each(pull, cores)

        rows = vmap(of_one, in_dims=(None, 0, 0))(problem.parameters(), self.x, values)
        return ExplicitRows(problem.layout.flatten(rows, lead=2).flatten(0, 1))

    def _outputs(self, parameters: dict[str, Tensor]) -> Tensor:
        return self.problem.call(parameters, self.x)


def held(rows: Rows) -> HeldRows:
    """The rows in memory, formed if they were not."""
    if isinstance(rows, NetworkRows):
        return rows.explicit()
    assert isinstance(rows, HeldRows)
    return rows


@torch.no_grad()
def gradient_rows(problem: Problem, x: Inputs, y: Tensor) -> tuple[ExplicitRows, Tensor]:
    """∇ℓ of every sample, and the outputs z, by one vectorised forward and backward pass."""

    def of_one(parameters: dict[str, Tensor], x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        z = problem.call(parameters, _batch_of_one(x))
        return problem.loss.values(z, y[None]).sum(), z[0].detach()

    rows, z = vmap(grad(of_one, has_aux=True), in_dims=(None, 0, 0))(problem.parameters(), x, y)
    return ExplicitRows(problem.layout.flatten(rows, lead=1)), z


@torch.no_grad()
def margin_rows(problem: Problem, x: Inputs, y: Tensor) -> tuple[ExplicitRows, Tensor]:
    """∇φ of every margin of every sample, and the outputs z, by one vectorised forward and backward pass."""
    labels = y

    def of_one(parameters: dict[str, Tensor], x: Inputs, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        z, pull = vjp(lambda p: problem.call(p, _batch_of_one(x))[0], parameters)[:2]
        return _pull_blocks(pull, problem.loss.margin(z[None], y[None]).direction[0], len(labels)), z

    rows, z = vmap(of_one, in_dims=(None, 0, 0))(problem.parameters(), x, y)
    return ExplicitRows(problem.layout.flatten(rows, lead=2).flatten(0, 1)), z


def _pull_each(pull: Callable[[Tensor], tuple[dict[str, Tensor]]], cores: Tensor) -> dict[str, Tensor]:
    """The vector-Jacobian product with every core of a sample, shape (r, …)."""
    return vmap(pull)(cores)[0] if len(cores) > 1 else {k: v[None] for k, v in pull(cores[0])[0].items()}


def _pull_blocks(pull: Callable[[Tensor], tuple[dict[str, Tensor]]], blocks: Tensor, n: int) -> dict[str, Tensor]:
    """The same for vectors that touch their own part of the outputs alone, shape (r, b), in one of n samples.

    Each is made whole when its turn comes, as many at a time as are AT_A_TIME numbers over all samples.
    """
    parts = torch.arange(len(blocks), device=blocks.device)
    if len(blocks) == 1:
        return _pull_each(pull, blocks)

    def of_part(part: Tensor) -> dict[str, Tensor]:
        return pull((blocks * (parts == part)[:, None]).flatten())[0]

    return vmap(of_part, chunk_size=max(1, AT_A_TIME // (n * blocks.numel())))(parts)


def _batch_of_one(x: Inputs) -> Inputs:
    return {key: value[None] for key, value in x.items()} if isinstance(x, dict) else x[None]
