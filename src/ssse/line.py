"""The model along a step: θ(ε) = θ* + ε·u."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ssse.batches import Batch, Inputs
from ssse.errors import InvalidSetting
from ssse.problem import Problem, arguments, flat_outputs


class Line:
    """Logits along θ + ε·u.

    Where the model is linear in θ its logits are linear in ε: one forward pass gives them for every ε. For a network it
    is one forward pass an ε, on one working copy of the model.
    """

    def __init__(self, problem: Problem, direction: Tensor):
        if direction.shape != (problem.layout.dim,):
            raise InvalidSetting(
                f"The direction must have shape ({problem.layout.dim},), one number a parameter; got "
                f"{tuple(direction.shape)}."
            )
        if not bool(torch.isfinite(direction).all()):
            raise InvalidSetting("The direction holds NaN or infinity, so that there is no model along it.")
        self.problem, self.direction = problem, direction.detach().to(problem.device, problem.dtype)
        self.theta = problem.theta()
        self.passes = 0  # forward passes, in samples

    @cached_property
    def _working(self) -> nn.Module:
        """The copy that a network is moved in; a model linear in θ needs none."""
        return copy.deepcopy(self.problem.model)

    @torch.no_grad()
    def logits(self, x: Inputs, scales: Sequence[float]) -> Iterator[np.ndarray]:
        """One array of shape (n, c) for each ε."""
        shape = self.problem.linear
        if shape is not None:
            z, features = self.problem.forward(x)
            assert features is not None
            weights = self.direction[: shape.outputs * shape.inputs].view(shape.outputs, shape.inputs)
            change = features @ weights.mT
            if shape.bias:
                change += self.direction[shape.outputs * shape.inputs :]
            self.passes += len(z)
            z, change = z.double().cpu().numpy(), change.double().cpu().numpy()
            for scale in scales:
                with np.errstate(over="ignore", invalid="ignore"):
                    moved = z + scale * change
                yield moved
            return
        args, kwargs = arguments(x)
        named = dict(self._working.named_parameters())
        for scale in scales:
            for name, value in self.problem.layout.unflatten(self.theta + scale * self.direction).items():
                named[name].copy_(value)
            z = flat_outputs(self._working(*args, **kwargs))
            self.passes += len(z)
            yield z.double().cpu().numpy()

    def slope(self, batch: Batch) -> float:
        """d/dε Σ ℓ(θ + εu) over the batch at ε = 0."""
        return self._derivatives(batch)[0]

    def bend(self, batch: Batch) -> float:
        """d²/dε² Σ ℓ(θ + εu) = Σ uᵀ∇²ℓ u over the batch at ε = 0, with the true Hessian."""
        return self._derivatives(batch)[1]

    def _derivatives(self, batch: Batch) -> tuple[float, float]:
        x, y = batch
        scale = torch.zeros((), dtype=self.theta.dtype, device=self.theta.device, requires_grad=True)
        with torch.enable_grad():
            moved = self.problem.layout.unflatten(self.theta + scale * self.direction)
            loss = self.problem.loss.values(self.problem.call(moved, x), y).sum()
            (first,) = torch.autograd.grad(loss, scale, create_graph=True)
            # Without a graph left, the loss is linear in ε.
            second = torch.autograd.grad(first, scale)[0] if first.requires_grad else torch.zeros_like(first)
        return float(first.detach()), float(second)
