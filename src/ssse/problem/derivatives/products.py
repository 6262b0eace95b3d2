"""Products with the Jacobian: Jv in forward mode or by differentiating Jᵀu in u, Jᵀu by an ordinary backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import jvp

from ssse.problem.batch_forms import Inputs
from ssse.problem.derivatives.settings import kernels
from ssse.problem.derivatives.ways import (
    ProductWay,
    TransposedWay,
    Unsuited,
    differentiable_outputs,
    own_parameters,
    pull_back,
    refuse_compiled,
)
from ssse.problem.view import ModelView


@dataclass(frozen=True)
class ForwardMode(ProductWay):
    words: ClassVar[str] = "forward mode"

    @torch.no_grad()  # parameters outside θ may ask for gradients of their own
    def times(self, view: ModelView, x: Inputs, v: Tensor) -> Tensor:
        refuse_compiled(view)
        tangents = view.layout.unflatten(v)
        for name, entry in _paddings(view):
            tangents[name] = tangents[name].index_fill(0, torch.tensor([entry], device=v.device), 0)
        with kernels(view.model, self.portable):
            return jvp(lambda p: view.call(p, x), (view.parameters(),), (tangents,))[1]


def _paddings(view: ModelView) -> Iterator[tuple[str, int]]:
    """Entries of embeddings that no backward pass moves, and forward mode does not know of."""
    names = {id(parameter): name for name, parameter in zip(view.layout.names, own_parameters(view), strict=True)}
    users = Counter(id(p) for module in view.model.modules() for p in module.parameters(recurse=False))
    for module in view.model.modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or module.padding_idx is None:
            continue
        if users[id(module.weight)] > 1:
            raise Unsuited("an embedding with a padding entry is shared with another layer, which moves that entry")
        if id(module.weight) in names:
            yield names[id(module.weight)], module.padding_idx


@dataclass(frozen=True)
class DoubleBackward(ProductWay):
    """Jᵀu is linear in u, and its derivative in u along v is Jv: two backward passes, on the model's own parameters."""

    words: ClassVar[str] = "double backward"

    @torch.enable_grad()
    def times(self, view: ModelView, x: Inputs, v: Tensor) -> Tensor:
        parameters = own_parameters(view)
        with kernels(view.model, self.portable):
            z = differentiable_outputs(view, x)
            u = torch.zeros_like(z, requires_grad=True)
            pulled = torch.autograd.grad(z, parameters, u, create_graph=True, allow_unused=True)
            tangents = view.layout.unflatten(v).values()
            used = [(part, tangent) for part, tangent in zip(pulled, tangents, strict=True) if part is not None]
            parts, along = zip(*used, strict=True)
            return torch.autograd.grad(parts, u, along)[0]


@dataclass(frozen=True)
class Backward(TransposedWay):
    words: ClassVar[str] = "an ordinary backward pass"

    @torch.enable_grad()
    def transposed_times(self, view: ModelView, x: Inputs, u: Tensor) -> Tensor:
        with kernels(view.model, self.portable):
            z = differentiable_outputs(view, x)
            out = z.new_empty(view.layout.dim)
            pull_back(z, own_parameters(view), u, out)
        return out
