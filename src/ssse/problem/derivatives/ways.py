"""What a way is: to the rows of samples, or to products with the Jacobian J of their outputs in θ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ssse.errors import InvalidModel
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import named_inputs
from ssse.problem.cores import Cores
from ssse.problem.view import ModelView, flat_outputs

# Output-space vectors of some samples, from their outputs, shape (k, c), and their places.
CoresOf = Callable[[Tensor, Tensor | slice], Cores]


@dataclass(frozen=True)
class Way(ABC):
    """`portable`: with the plainer kernels of `settings.kernels`."""

    portable: bool = False

    words: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.words} with plain kernels" if self.portable else self.words


class RowWay(Way):
    @abstractmethod
    def rows(self, view: ModelView, x: Inputs, cores: CoresOf) -> tuple[Tensor, Tensor]:
        """VJ of every sample, shape (n, r, d), and the outputs z, shape (n, c), by one forward pass."""


class ProductWay(Way):
    @abstractmethod
    def times(self, view: ModelView, x: Inputs, v: Tensor) -> Tensor:
        """Jv of every sample, shape (n, c), for v of shape (d,)."""


class TransposedWay(Way):
    @abstractmethod
    def transposed_times(self, view: ModelView, x: Inputs, u: Tensor) -> Tensor:
        """Jᵀu, summed over the samples, shape (d,), for u of shape (n, c)."""


class Unsuited(Exception):
    """A way is not for this model, and says why."""


def refuse_compiled(view: ModelView) -> None:
    """What is TorchScript runs with its own parameters only, and shows nothing of its layers."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in view.model.modules()):
        raise Unsuited("a part of the model is TorchScript, which runs with its own parameters only")


def own_parameters(view: ModelView) -> list[Tensor]:
    """Those of the model itself that are in θ, in θ's order."""
    named = dict(view.model.named_parameters())
    return [named[name] for name in view.layout.names]


def differentiable_outputs(view: ModelView, x: Inputs) -> Tensor:
    """z with its graph, shape (n, c)."""
    z = flat_outputs(view.outputs_of(x))
    if not z.requires_grad:
        raise InvalidModel(
            f"The outputs of the model ({type(view.model).__name__}) do not depend on its parameters as torch.autograd "
            "sees them: forward() runs under torch.no_grad(), detaches, or uses none of θ. Take that out of forward()."
        )
    return z


def pull_back(z: Tensor, parameters: list[Tensor], cotangent: Tensor, out: Tensor, *, keep: bool = False) -> None:
    """cotangentᵀ ∂z/∂θ into `out`, shape (d,); zero where z does not depend on a parameter. `keep`: the graph."""
    parts = torch.autograd.grad(z, parameters, cotangent, retain_graph=keep, allow_unused=True)
    start = 0
    for parameter, part in zip(parameters, parts, strict=True):
        place = out[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
        if part is None:
            place.zero_()
        else:
            place.copy_(part.to_dense() if part.is_sparse else part)


def count_of(x: Inputs) -> int:
    return len(next(iter(named_inputs(x).values())))
