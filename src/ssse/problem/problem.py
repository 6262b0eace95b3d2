"""What the user brings: a trained model, its loss, its data. Checked before the long pass."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting, SSSEError
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch, named_inputs, shapes_of, slice_batch
from ssse.problem.binding import bind_loss
from ssse.problem.derivatives.choice import Derivatives
from ssse.problem.labels import Labels, WeightedLabels, label_values
from ssse.problem.losses import CustomLoss, Loss, LossLike, as_loss, total_loss
from ssse.problem.padding import refuse_read_padding
from ssse.problem.parameters import LinearShape
from ssse.problem.soft_labels import SoftCrossEntropy
from ssse.problem.training_mode import refuse_difference, refuse_training_mode, repeatable
from ssse.problem.unusable import HALF, refuse_inference
from ssse.problem.view import ModelView, ParameterChoice, check_arguments, flat_outputs
from ssse.problem.weighted_loss import WeightedLoss, unweighted
from ssse.problem.working import Working
from ssse.problem.wrappers import copied

PROBE_SAMPLES = 32


@contextmanager
def first_call(x: Inputs) -> Iterator[None]:
    """Where the model fails on the first samples, it is told on which: most often they are not what it was made for."""
    try:
        yield
    except (SSSEError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a layer may raise
        given = ", ".join(f"{name} {tuple(value.shape)} of {value.dtype}" for name, value in named_inputs(x).items())
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InvalidData(f"The model fails on the first samples, {given}: {said}") from error


class Problem(ModelView):
    """A model, its loss, and what a look at a few samples shows.

    Attributes:
        loss: of one sample, in output space. outputs: c, the number of outputs.
        linear: the shape of θ if it is one linear layer that ends the model: everything then has a closed form.
        derivatives: how those of any other model are taken.
    """

    def __init__(
        self, model: nn.Module | Working, loss_fn: LossLike | Loss, parameters: ParameterChoice, samples: Batch
    ):
        """`samples`: a batch of the data; what cannot work on its first few is refused.

        Raises:
            InvalidModel, InvalidData, InvalidSetting: with the repair.
        """
        super().__init__(model, parameters)
        refuse_inference(self.working.given)
        refuse_training_mode(self.model)
        self.loss: Loss = as_loss(loss_fn)
        self.linear: LinearShape | None = None
        self._layer: str | None = None  # the name of that linear layer
        self.derivatives: Derivatives = Derivatives()
        self._shapes = shapes_of(samples[0])  # of the inputs of a sample
        self.outputs: int = self._look(samples, asked_for_head=parameters == "head")

    def moved(self, theta: Tensor) -> Problem:
        """The same problem at another θ, on a copy of the model."""
        return self.on(self.with_theta(theta))

    def confined(self, names: Collection[str], x: Inputs) -> Problem:
        """The same problem with a part of θ alone, and the same ways to its derivatives; x: a few samples."""
        part = copy.copy(self)
        part.layout = self.layout.restricted(names)
        part.linear = part._layer = None
        part._find_linear(x, part._linear_calls(x), part.forward(x)[0])
        return part

    def copied(self) -> Problem:
        """The same problem on a copy of the model, which nobody else can change."""
        return self.on(copied(self.model))

    @torch.no_grad()
    def forward(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        """Outputs z, shape (n, c), and the linear layer's inputs where θ is one."""
        if self._layer is None:
            return flat_outputs(self.outputs_of(x)), None
        seen: list[Tensor] = []
        layer = self.model.get_submodule(self._layer)
        handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            z = flat_outputs(self.outputs_of(x))
        finally:
            handle.remove()
        return z, seen[-1]

    @property
    def weighted(self) -> bool:
        """Whether its samples come with weights."""
        return isinstance(self.loss, WeightedLoss)

    @property
    def soft(self) -> bool:
        """Whether their labels are class probabilities."""
        return isinstance(unweighted(self.loss), SoftCrossEntropy)

    def total_loss(self, z: Tensor, y: Labels) -> float:
        """Σ ℓ over a batch, whose outputs and losses must be finite."""
        return total_loss(self.loss, z, y)

    def check_labels(self, y: Labels) -> None:
        if isinstance(y, WeightedLabels) and not self.weighted:
            raise InvalidData(
                "These samples have weights and those before had none; pass all of them as (x, y, weight), with a "
                "weight of 1 where there is none."
            )
        self.loss.check(y, torch.Size((len(y), self.outputs)))

    @contextmanager
    def reading(self, x: Inputs) -> Iterator[None]:
        """While a batch is computed with: where the model fails on samples of another shape, that is said.

        Sequences may be of several lengths; whether a model takes them, it knows alone.
        """
        try:
            yield
        except SSSEError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if shapes_of(x) == self._shapes:
                raise
            raise InvalidData(
                f"The model cannot take a batch of samples of the shape {dict(shapes_of(x))}, after the shape "
                f"{dict(self._shapes)} before: {' '.join(str(error).split())[:200]}"
            ) from error

    def _look(self, batch: Batch, *, asked_for_head: bool) -> int:
        """Refuse what cannot work, find out whether the model is linear in θ; returns the number of outputs."""
        x, y = slice_batch(batch[0], slice(0, PROBE_SAMPLES)), batch[1][:PROBE_SAMPLES]
        for value in named_inputs(x).values():
            if self.working.widened and value.dtype in HALF:
                continue  # the copy in float32 takes these
            if value.is_floating_point() and value.dtype != self.dtype:
                raise InvalidData(
                    f"The inputs are {value.dtype} and the parameters {self.dtype}; cast one of them, "
                    f"for instance x.to({self.dtype})."
                )
        check_arguments(self.model, x)
        with first_call(x):
            refuse_difference(self.model, x)
            raw = self._first_outputs(x)
        if raw.dim() == 0 or len(raw) != len(y):
            raise InvalidModel(f"{len(y)} samples gave an output of shape {tuple(raw.shape)}; one row each is needed.")
        self.loss = bind_loss(self.loss, raw, y)
        z = flat_outputs(raw)
        self.loss.check(y, z.shape)
        self.total_loss(z, y)
        if isinstance(own := unweighted(self.loss), CustomLoss) and len(y) > 1:
            own.check_batch(z, label_values(y))
        scale = float(z.abs().max()) + torch.finfo(z.dtype).tiny
        again, _ = self.forward(x)
        tolerance = {torch.float64: 1e-9}.get(z.dtype, 5e-3)
        if float((again - z).abs().max()) > repeatable(z.dtype) * scale:
            raise InvalidModel(
                "The model returned different outputs for the same batch twice; one sample's gradient is then not "
                "defined. Look for random layers or noise in forward()."
            )
        alone, _ = self.forward(slice_batch(x, slice(0, 1)))
        if float((alone - z[:1]).abs().max()) > tolerance * scale:
            raise InvalidModel(
                "A sample's output depends on the other samples of its batch (batch statistics in forward()?); its "
                "gradient is then not its own. Use fixed statistics."
            )
        refuse_read_padding(self, x, raw, tolerance * scale)
        calls = self._linear_calls(x)
        if asked_for_head:
            self._check_head(calls)
        self._find_linear(x, calls, z)
        return z.shape[1]

    @torch.no_grad()
    def _first_outputs(self, x: Inputs) -> Tensor:
        """As the model gives them; layers that compute in a coarser dtype than θ has are refused."""
        coarse: list[str] = []

        def note(name: str, module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dtype in HALF and not coarse:
                coarse.append(f"{type(module).__name__} '{name}' gives {output.dtype}")

        modules = [(name, m) for name, m in self.model.named_modules() if not isinstance(m, torch.jit.ScriptModule)]
        handles = [module.register_forward_hook(partial(note, name)) for name, module in modules]
        try:
            raw = self.outputs_of(x)
        except RuntimeError as error:
            if self.working.widened:
                raise InvalidModel(
                    "The model is in half precision and cannot run in float32, in which a curvature is computed: "
                    f"{error}. Take casts to half precision out of its forward()."
                ) from error
            raise
        finally:
            for handle in handles:
                handle.remove()
        if coarse or (raw.is_floating_point() and raw.dtype != self.dtype):
            found = coarse[0] if coarse else f"The model gives {raw.dtype}"
            raise InvalidModel(
                f"{found}, and the parameters in θ are {self.dtype}: gradients would be rounded on the way, or do not "
                "exist. Take the cast or the autocast out of forward() (of accelerate's models with unwrap_model)."
            )
        return raw

    def _linear_calls(self, x: Inputs) -> list[tuple[nn.Linear, Tensor, Tensor]]:
        """Every linear layer that runs, in order, with copies of its input and output."""
        calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(module, nn.Linear):
                calls.append((module, inputs[0].clone(), output.clone()))  # what follows may work in place

        handles = [m.register_forward_hook(note) for m in self.model.modules() if isinstance(m, nn.Linear)]
        try:
            with torch.no_grad():
                self.outputs_of(x)
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
            (product,) = torch.autograd.grad(flat_outputs(self.outputs_of(x)).sum(), layer.weight)
        closed = features.sum(0).expand(layer.out_features, -1)
        error = (product - closed).norm()
        if float(error) <= 1e-3 * float(closed.norm()) + torch.finfo(z.dtype).tiny:
            self.linear = LinearShape(layer.out_features, layer.in_features, with_bias)
            self._layer = next(name for name, module in self.model.named_modules() if module is layer)
