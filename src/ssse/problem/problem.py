"""What the user brings: a trained model, its loss, its data. Checked before the long pass."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.problem.batches import Batch, Inputs, slice_batch
from ssse.problem.losses import (
    CustomLoss,
    Loss,
    LossLike,
    as_loss,
)
from ssse.problem.parameters import Layout, LinearShape

ParameterChoice = str | Sequence[str]
PROBE_SAMPLES = 32


class Problem:
    """A model as a function of the flat vector θ, and its loss.

    θ is every parameter with `requires_grad`, or the part of them that `parameters` names; the rest
    of the model stays as it is. The model itself is never changed.

    Attributes:
        layout: the parameters in θ. outputs: c, the number of outputs; and linear: the shape of θ if it
        is one linear layer that ends the model: everything then has a closed form (set by `probe`).
    """

    def __init__(self, model: nn.Module, loss_fn: LossLike | Loss, parameters: ParameterChoice = "all"):
        refuse_training_mode(model)
        self.model = model
        self.loss = as_loss(loss_fn)
        self._asked_for_head = parameters == "head"
        self.layout = choose_parameters(model, parameters)
        self.outputs = 0
        self.linear: LinearShape | None = None
        self._head: nn.Linear | None = None
        tensors = self.parameters()
        kinds = {(p.dtype, p.device) for p in tensors.values()}
        if len(kinds) > 1:
            raise InvalidModel(
                "The parameters in θ must share one dtype and device; found "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
                + "."
            )
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

    def copied(self) -> Problem:
        """The same problem on a copy of the model, which nobody else can change."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        return other

    def call(self, parameters: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """z as a pure function of θ (as named tensors) and x, shape (n, c)."""
        return flat_outputs(functional_call(self.model, dict(parameters), *arguments(x)))

    @torch.no_grad()
    def forward(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        """Outputs z, shape (n, c), and the linear layer's inputs where θ is one."""
        if self._head is None:
            return flat_outputs(self._raw(x)), None
        seen: list[Tensor] = []
        handle = self._head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            z = flat_outputs(self._raw(x))
        finally:
            handle.remove()
        return z, seen[-1]

    def total_loss(self, z: Tensor, y: Tensor) -> float:
        """Σ ℓ over a batch, whose outputs and losses must be finite."""
        if not bool(torch.isfinite(z).all()):
            raise InvalidData("The model's output is NaN or infinite on a sample; check the inputs' scale.")
        total = float(self.loss.values(z, y).sum(dtype=torch.float64))
        if not math.isfinite(total):
            raise InvalidData(f"The loss {self.loss.name} is NaN or infinite on a sample.")
        return total

    def check_labels(self, y: Tensor) -> None:
        self.loss.check(y, torch.Size((len(y), self.outputs)))

    def probe(self, batch: Batch) -> None:
        """Look at the model on a few samples: refuse what cannot work, find out whether it is linear in θ."""
        x, y = slice_batch(batch[0], slice(0, PROBE_SAMPLES)), batch[1][:PROBE_SAMPLES]
        floating = x.values() if isinstance(x, dict) else [x]
        for value in floating:
            if value.is_floating_point() and value.dtype != self.dtype:
                raise InvalidData(
                    f"The inputs are {value.dtype} and the parameters {self.dtype}; cast one of them, "
                    f"for instance x.to({self.dtype})."
                )
        with torch.no_grad():
            raw = tensor_output(self._raw(x))
        if raw.dim() == 0 or len(raw) != len(y):
            raise InvalidModel(f"{len(y)} samples gave an output of shape {tuple(raw.shape)}; one row each is needed.")
        if isinstance(self.loss, CustomLoss):
            self.loss = CustomLoss(self.loss.function, tuple(raw.shape[1:]))
        elif raw.dim() > 2:
            raise InvalidModel(
                f"The named loss '{self.loss.name}' needs outputs of shape (samples, outputs); the model returns "
                f"{tuple(raw.shape)}. Pass a loss function of your own."
            )
        z = flat_outputs(raw)
        self.outputs = z.shape[1]
        self.check_labels(y)
        self.total_loss(z, y)
        if isinstance(self.loss, CustomLoss) and len(y) > 1:
            self.loss.check_batch(z, y)
        scale = float(z.abs().max()) + torch.finfo(z.dtype).tiny
        again, _ = self.forward(x)
        tolerance = {torch.float64: 1e-9}.get(z.dtype, 5e-3)
        if float((again - z).abs().max()) > repeatable(z.dtype) * scale:
            raise InvalidModel(
                "The model returned different outputs for the same batch twice; one sample's gradient is then not "
                "defined. Look for random layers or noise in forward()."
            )
        refuse_difference(self.model, x, raw)
        alone, _ = self.forward(slice_batch(x, slice(0, 1)))
        if float((alone - z[:1]).abs().max()) > tolerance * scale:
            raise InvalidModel(
                "A sample's output depends on the other samples of its batch (batch statistics in forward()?); its "
                "gradient is then not its own. Use fixed statistics."
            )
        calls = self._linear_calls(x)
        if self._asked_for_head:
            self._check_head(calls)
        self._find_linear(x, calls, z)

    def _linear_calls(self, x: Inputs) -> list[tuple[nn.Linear, Tensor, Tensor]]:
        """Every linear layer that runs, in order, with copies of its input and output."""
        calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(module, nn.Linear):
                calls.append((module, inputs[0].clone(), output.clone()))  # what follows may work in place

        handles = [m.register_forward_hook(note) for m in self.model.modules() if isinstance(m, nn.Linear)]
        try:
            with torch.no_grad():
                self._raw(x)
        finally:
            for handle in handles:
                handle.remove()
        return calls

    def _check_head(self, calls: list[tuple[nn.Linear, Tensor, Tensor]]) -> None:
        """The layer registered last must also be the one that runs last."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        last = calls[-1][0] if calls else None
        if last is None or names.get(id(last.weight)) not in self.layout.names:
            runs = "none runs" if last is None else f"'{names.get(id(last.weight))}' runs last"
            raise InvalidSetting(
                f'parameters="head" takes the linear layer registered last, {self.layout.names}, but {runs}. Name the '
                "parameters you mean."
            )

    @torch.no_grad()
    def _find_linear(self, x: Inputs, calls: list[tuple[nn.Linear, Tensor, Tensor]], z: Tensor) -> None:
        """θ is one nn.Linear, used once and nowhere else, and its output is the model's output."""
        named = dict(self.model.named_parameters())
        theta = {id(named[name]) for name in self.layout.names}
        fitting = [call for call in calls if id(call[0].weight) in theta]
        if len(fitting) != 1 or type(fitting[0][0]) is not nn.Linear:
            return
        layer, features, output = fitting[0]
        with_bias = layer.bias is not None and id(layer.bias) in theta
        if len(theta) != 1 + with_bias or features.dim() != 2 or not torch.equal(output, z):
            return
        if named[self.layout.names[0]] is not layer.weight:
            return  # the closed form has the weights first
        # Autodiff has the last word: a weight may be used again by other means than a layer.
        # (Plain autograd: the first call of torch.func in a process takes over a second.)
        with torch.enable_grad():
            (product,) = torch.autograd.grad(flat_outputs(self._raw(x)).sum(), layer.weight)
        closed = features.sum(0).expand(layer.out_features, -1)
        error = (product - closed).norm()
        if float(error) <= 1e-3 * float(closed.norm()) + torch.finfo(z.dtype).tiny:
            self.linear = LinearShape(layer.out_features, layer.in_features, with_bias)
            self._head = layer

    def _raw(self, x: Inputs) -> Any:
        args, kwargs = arguments(x)
        return self.model(*args, **kwargs)


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


def refuse_training_mode(model: nn.Module) -> None:
    """Of torch's own layers, those that do something else in training mode; `refuse_difference` sees the others."""
    for name, module in model.named_modules():
        label = f"{type(module).__name__} '{name}'"
        if isinstance(module, _BatchNorm) and not module.training and not module.track_running_stats:
            raise InvalidModel(
                f"{label} keeps no running statistics, so even in eval mode one sample's gradient depends on "
                "its batch. Train with track_running_stats=True or use another norm."
            )
        if not module.training:
            continue
        if isinstance(module, _BatchNorm):
            raise InvalidModel(
                f"{label} is in training mode, where one sample's gradient depends on its batch. "
                "Call model.eval() first."
            )
        if _drops(module):
            raise InvalidModel(f"{label} is in training mode and drops at random. Call model.eval() first.")


def _drops(module: nn.Module) -> bool:
    """Layers of torch's own whose output is random in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RReLU) or (
        isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    )


@torch.no_grad()
def refuse_difference(model: nn.Module, x: Inputs, output: Tensor) -> None:
    """A model that was left in training mode may stay there if it does the same in eval mode: here that is seen.

    `output`: of the model as it is, on the inputs x.
    """
    if not any(module.training for module in model.modules()):
        return
    args, kwargs = arguments(x)
    calm = tensor_output(copy.deepcopy(model).eval()(*args, **kwargs))
    scale = float(output.abs().max()) + torch.finfo(output.dtype).tiny
    if calm.shape != output.shape or not float((calm - output).abs().max()) <= repeatable(output.dtype) * scale:
        raise InvalidModel(
            f"The model ({type(model).__name__}) is in training mode and gives other outputs there than in eval mode; "
            "curvature and erasure are defined for the model as it predicts. Call model.eval() first."
        )


def repeatable(dtype: torch.dtype) -> float:
    """Relative difference of the same outputs, computed twice."""
    return {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, 5e-3)


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
