"""A model as a function of the flat vector θ."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssse.errors import InvalidModel, InvalidSetting
from ssse.problem.batches import Inputs
from ssse.problem.parameters import Layout

ParameterChoice = str | Sequence[str]


class ModelView:
    """θ is every parameter with `requires_grad`, or the part of them that `parameters` names.

    The rest of the model stays as it is, and the model itself is never changed.

    Attributes:
        layout: the parameters in θ. dtype, device: that they share.
    """

    def __init__(self, model: nn.Module, parameters: ParameterChoice = "all"):
        self.model = model
        self.layout: Layout = choose_parameters(model, parameters)
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
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise InvalidModel(f"Parameter '{name}' holds NaN or infinity; the model did not train properly.")

    def parameters(self) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters())
        return {name: named[name].detach() for name in self.layout.names}

    def theta(self) -> Tensor:
        return self.layout.flatten(self.parameters())

    def with_theta(self, theta: Tensor) -> nn.Module:
        """A copy of the model with θ replaced."""
        model = copy.deepcopy(self.model)
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.layout.unflatten(theta).items():
                named[name].copy_(value)
        return model

    def on(self, model: nn.Module) -> Self:
        """The same view of another model of the same form."""
        other = copy.copy(self)
        other.model = model
        return other

    def call(self, parameters: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """z as a pure function of θ (as named tensors) and x, shape (n, c)."""
        return flat_outputs(functional_call(self.model, dict(parameters), *arguments(x)))

    def outputs_of(self, x: Inputs) -> Tensor:
        """As the model gives them."""
        args, kwargs = arguments(x)
        return tensor_output(self.model(*args, **kwargs))


def choose_parameters(model: nn.Module, choice: ParameterChoice) -> Layout:
    """Names → layout, in `named_parameters()` order; frozen parameters stay out."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InvalidModel("No parameter of the model has requires_grad=True, so there is nothing to change.")
    if choice == "all":
        names = list(trainable)
    elif choice == "head":
        linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if not linears:
            raise InvalidSetting('parameters="head" needs a linear layer; the model has none. Name parameters instead.')
        label, layer = linears[-1]
        names = [name for name, p in trainable.items() if p is layer.weight or p is layer.bias]
        if not names:
            raise InvalidModel(f"The last linear layer, '{label}', is frozen (requires_grad=False).")
    elif isinstance(choice, str):
        raise InvalidSetting(f'parameters must be "all", "head" or a list of names, not {choice!r}.')
    else:
        known = dict(model.named_parameters())
        for name in choice:
            if name not in trainable:
                near = difflib.get_close_matches(name, trainable, 1)
                hint = f" Did you mean '{near[0]}'?" if near else ""
                raise InvalidSetting(
                    f"Parameter '{name}' is frozen (requires_grad=False)."
                    if name in known
                    else f"The model has no parameter '{name}'.{hint}"
                )
        names = [name for name in trainable if name in set(choice)]
        if not names:
            raise InvalidSetting("parameters is an empty list; name at least one.")
    return Layout(tuple(names), tuple(tuple(trainable[name].shape) for name in names))


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), dict(x)) if isinstance(x, dict) else ((x,), {})


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
