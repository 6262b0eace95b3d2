"""The model along a step: θ(ε) = θ* + ε·u."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.errors import InvalidSetting
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch
from ssse.problem.problem import Problem
from ssse.problem.view import ModelView, arguments, flat_outputs
from ssse.problem.wrappers import copied


class StepPath:
    """A model at every scale of a step: logits along θ + ε·u, and derivatives of the loss.

    Where the model is linear in θ its logits are linear in ε: one forward pass gives them for every ε. For a network it
    is one forward pass an ε, on one working copy of the model.
    """

    def __init__(self, problem: Problem, direction: Any):
        direction = check_direction(problem, direction)
        self.problem: Problem = problem
        self.direction: Any = direction.detach().to(problem.device, problem.dtype)
        self.theta: Tensor = problem.theta()
        self.passes: int = 0  # forward passes, in samples

    @cached_property
    def _working(self) -> tuple[nn.Module, Tensor]:
        """The copy that a network is moved in, its θ being one flat tensor; a model linear in θ needs none."""
        model, flat = copied(self.problem.model), self.theta.clone()
        named = dict(model.named_parameters())
        for name, value in self.problem.layout.unflatten(flat).items():
            named[name].data = value  # a view: what is written to the flat tensor is the parameter's value
        return model, flat

    @torch.no_grad()
    def logits(self, x: Inputs, scales: Sequence[float]) -> np.ndarray:
        """At each ε, shape (ε, n, c), in float64."""
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
            with np.errstate(over="ignore", invalid="ignore"):
                return z + np.asarray(scales)[:, None, None] * change
        args, kwargs = arguments(x)
        model, flat = self._working
        outputs = []
        for scale in scales:
            torch.add(self.theta, self.direction, alpha=scale, out=flat)
            outputs.append(flat_outputs(model(*args, **kwargs)))
        self.passes += sum(len(z) for z in outputs)
        return torch.stack(outputs).double().cpu().numpy()  # once: each copy waits for the device

    @torch.no_grad()
    def losses(self, batch: Batch, scale: float = 0.0) -> Tensor:
        """ℓ of every sample at ε = scale, shape (n,)."""
        x, y = batch
        moved = self.problem.layout.unflatten(self.theta + scale * self.direction)
        return self.problem.loss.values(self.problem.call(moved, x), y)

    def derivative(self, batch: Batch, scale: float = 0.0) -> float:
        """d/dε Σ ℓ(θ + εu) over the batch, at ε = scale."""
        return self._derivatives(batch, scale, twice=False)[0]

    def second_derivative(self, batch: Batch) -> float:
        """d²/dε² Σ ℓ(θ + εu) = Σ uᵀ∇²ℓ u over the batch at ε = 0, with the true Hessian."""
        return self._derivatives(batch, 0.0, twice=True)[1]

    def _derivatives(self, batch: Batch, at: float, twice: bool) -> tuple[float, float]:
        x, y = batch
        scale = torch.tensor(at, dtype=self.theta.dtype, device=self.theta.device, requires_grad=True)
        with torch.enable_grad():
            moved = self.problem.layout.unflatten(self.theta + scale * self.direction)
            loss = self.problem.loss.values(self.problem.call(moved, x), y).sum()
            (first,) = torch.autograd.grad(loss, scale, create_graph=twice)
            # Without a graph left, the loss is linear in ε.
            second = torch.autograd.grad(first, scale)[0] if first.requires_grad else torch.zeros_like(first)
        return float(first.detach()), float(second)


def check_direction(view: ModelView, direction: Any) -> Tensor:
    """As a tensor: one finite number a parameter."""
    direction = _vector(direction)
    if direction.shape != (view.layout.dim,):
        raise InvalidSetting(
            f"The direction must have shape ({view.layout.dim},), one number a parameter; got "
            f"{tuple(direction.shape)}. If it is the step of an erasure, pass parameters=curvature.layout.names."
        )
    if not bool(torch.isfinite(direction).all()):
        raise InvalidSetting("The direction holds NaN or infinity, so that there is no model along it.")
    return direction


def _vector(direction: Any) -> Tensor:
    if isinstance(direction, Tensor):
        return direction
    try:
        return torch.from_numpy(np.array(direction, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidSetting(
            f"The direction must be a flat tensor or an array of numbers, for instance erasure.direction; got "
            f"{type(direction).__name__}."
        ) from error
