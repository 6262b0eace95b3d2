"""Rows of any model, by automatic differentiation: J in forward mode, Jᵀ in reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from ssse.problem.batches import Inputs
from ssse.problem.problem import Problem
from ssse.rows.held import ExplicitRows, HeldRows, Rows


@dataclass
class NetworkRows(Rows):
    """Rows of a batch, never formed unless asked."""

    problem: Problem
    x: Inputs
    cores: Tensor  # (n, r, c)

    def __post_init__(self) -> None:
        self.count: int = self.cores.shape[0] * self.cores.shape[1]
        self.dim: int = self.problem.layout.dim

    @torch.no_grad()  # parameters outside θ may ask for gradients of their own
    def times(self, v: Tensor) -> Tensor:
        tangent = self.problem.layout.unflatten(v.to(self.cores.dtype))
        jv = jvp(self._outputs, (self.problem.parameters(),), (tangent,))[1]
        return (self.cores @ jv.unsqueeze(2)).reshape(-1)

    @torch.no_grad()
    def transposed_times(self, u: Tensor) -> Tensor:
        n, r, _ = self.cores.shape
        cotangent = (self.cores.mT @ u.to(self.cores.dtype).view(n, r, 1)).squeeze(2)
        pull = vjp(self._outputs, self.problem.parameters())[1]
        return self.problem.layout.flatten(pull(cotangent)[0])

    @torch.no_grad()
    def explicit(self) -> ExplicitRows:
        """Every row, by one vectorised reverse pass over the batch."""
        problem = self.problem

        def of_one(parameters: dict[str, Tensor], x: Inputs, cores: Tensor) -> dict[str, Tensor]:
            pull = vjp(lambda p: problem.call(p, _batch_of_one(x))[0], parameters)[1]
            return _pull_each(pull, cores)

        rows = vmap(of_one, in_dims=(None, 0, 0))(problem.parameters(), self.x, self.cores)
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

    def of_one(parameters: dict[str, Tensor], x: Inputs, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        z, pull = vjp(lambda p: problem.call(p, _batch_of_one(x))[0], parameters)[:2]
        return _pull_each(pull, problem.loss.margin(z[None], y[None])[1][0]), z

    rows, z = vmap(of_one, in_dims=(None, 0, 0))(problem.parameters(), x, y)
    return ExplicitRows(problem.layout.flatten(rows, lead=2).flatten(0, 1)), z


def _pull_each(pull: Callable[[Tensor], tuple[dict[str, Tensor]]], cores: Tensor) -> dict[str, Tensor]:
    """The vector-Jacobian product with every core of a sample, shape (r, …)."""
    return vmap(pull)(cores)[0] if len(cores) > 1 else {k: v[None] for k, v in pull(cores[0])[0].items()}


def _batch_of_one(x: Inputs) -> Inputs:
    return {key: value[None] for key, value in x.items()} if isinstance(x, dict) else x[None]
