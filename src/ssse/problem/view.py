"""A model as a function of the flat vector θ."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssse.errors import InvalidData, InvalidModel
from ssse.problem.batch_forms import Inputs
from ssse.problem.choice import ParameterChoice, choose_parameters
from ssse.problem.parameters import Layout
from ssse.problem.unusable import refuse_autocast
from ssse.problem.working import Working
from ssse.problem.wrappers import aliases, copied, unwrapped

__all__ = ["ModelView", "ParameterChoice", "arguments", "choose_parameters", "flat_outputs", "tensor_output"]


class ModelView:
    """θ is every parameter with `requires_grad`, or the part of them that `parameters` names.

    The rest of the model stays as it is, and the model itself is never changed.

    Attributes:
        working: the model as it was given and as it is worked on; a view of the same may be made from it.
        model: that is worked on: without wrappers, and not in half precision.
        layout: the parameters in θ, by their names without wrappers. dtype, device: that they share in `model`.
    """

    def __init__(self, model: nn.Module | Working, parameters: ParameterChoice = "all"):
        self.working: Working = model if isinstance(model, Working) else Working.of(model)
        self.model: nn.Module = self.working.model
        inner = self.working.inner
        self.layout: Layout = choose_parameters(inner, parameters, aliases(self.working.given, inner))
        tensors = self.parameters()
        kinds = {(p.dtype, p.device) for p in tensors.values()}
        if len(kinds) > 1:
            raise InvalidModel(
                "The parameters in θ must share one dtype and device; found "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
                + "."
            )
        self.dtype: torch.dtype
        self.device: torch.device
        self.dtype, self.device = next(iter(kinds))
        refuse_autocast(self.device)
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise InvalidModel(f"Parameter '{name}' holds NaN or infinity; the model did not train properly.")

    def parameters(self) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters())
        return {name: named[name].detach() for name in self.layout.names}

    def stored_parameters(self) -> dict[str, Tensor]:
        """As the model was given, in its own dtypes."""
        named = dict(self.working.inner.named_parameters())
        return {name: named[name].detach() for name in self.layout.names}

    def theta(self) -> Tensor:
        return self.layout.flatten(self.parameters())

    @property
    def rounds(self) -> bool:
        """Whether parameters in θ are kept in half precision: what is handed back is not quite what was computed."""
        return any(value.dtype != self.dtype for value in self.stored_parameters().values())

    def rounded(self, theta: Tensor) -> Tensor:
        """θ as a model handed back holds it: in half precision another, otherwise the same."""
        if not self.rounds:
            return theta
        own, parts = self.stored_parameters(), self.layout.unflatten(theta)
        return self.layout.flatten({name: value.to(own[name].dtype).to(theta.dtype) for name, value in parts.items()})

    def with_theta(self, theta: Tensor, buffers: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A copy of the model with θ replaced, and the buffers named: in its wrappers and its own dtypes."""
        model = copied(self.working.given)
        inner = unwrapped(model)
        named, held = dict(inner.named_parameters()), dict(inner.named_buffers())
        with torch.no_grad():
            for name, value in self.layout.unflatten(theta).items():
                named[name].copy_(value)
            for name, value in (buffers or {}).items():
                held[name].copy_(value)
        return model

    def on(self, model: nn.Module) -> Self:
        """The same view of another model of the same form."""
        other = copy.copy(self)
        other.working = Working.of(model)
        other.model = other.working.model
        return other

    def unrounded(self) -> Self:
        """The same view of the model that is worked on, as if it had been given: nothing is rounded."""
        return self.on(self.model)

    def call(self, parameters: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """z as a pure function of θ (as named tensors) and x, shape (n, c)."""
        args, kwargs = arguments(x)
        return flat_outputs(functional_call(self.model, dict(parameters), args, kwargs))

    def outputs_of(self, x: Inputs) -> Tensor:
        """As the model gives them."""
        args, kwargs = arguments(x)
        return tensor_output(self.model(*args, **kwargs))


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of the model's call: one input, several in order, or several by name."""
    if isinstance(x, tuple):
        return x, {}
    return ((), dict(x)) if isinstance(x, dict) else ((x,), {})


def check_arguments(model: nn.Module, x: Inputs) -> None:
    """Refuse inputs that the model's forward() does not take, of which a column too many is the usual reason."""
    args, kwargs = arguments(x)
    try:
        form = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of compiled code it may not be known
        return
    try:
        form.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(kwargs) if kwargs else f"{len(args)} in order"
        raise InvalidData(
            f"The model's forward() does not take the inputs of a batch ({names}): {error}. Leave out what is no "
            "input, or name the labels with label_key=."
        ) from error


def tensor_output(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InvalidModel(f"The model must return a tensor or an object with .logits, not a {type(output).__name__}.")


def flat_outputs(output: Any) -> Tensor:
    z = tensor_output(output)
    return z.reshape(len(z), -1)
