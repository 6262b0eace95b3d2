"""The copy of a model that a training moves; the model itself is never written to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssse.errors import Diverged, InvalidData, InvalidSetting
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch, join_batches
from ssse.problem.labels import Labels, label_values
from ssse.problem.problem import Problem
from ssse.problem.view import arguments, flat_outputs
from ssse.problem.weighted_loss import unweighted
from ssse.problem.wrappers import copied

SMALLER = "nothing was changed. Use a smaller learning_rate."


@dataclass(frozen=True)
class State:
    """θ and the buffers (running statistics) of a moment."""

    theta: Tensor
    buffers: dict[str, Tensor]


class Student:
    """A copy of the model, its parameters in θ to be moved and the others frozen.

    Attributes:
        model: the copy, as it is worked on. parameters: its tensors in θ, in the order of the layout.
    """

    def __init__(self, problem: Problem, *, train: bool, autocast: bool = False):
        """`train`: in train mode, where BatchNorm normalises by its batch and counts it, and dropout drops."""
        self.problem: Problem = problem
        self.model: nn.Module = copied(problem.model)
        self._train, self._autocast = train, autocast
        named = dict(self.model.named_parameters())
        for name, parameter in named.items():
            parameter.requires_grad_(name in problem.layout.names)
            parameter.grad = None
        self.parameters: list[nn.Parameter] = [named[name] for name in problem.layout.names]
        if train:
            self.model.train()

    def outputs(self, x: Inputs) -> Tensor:
        """z in the mode of the training, shape (n, c)."""
        args, kwargs = arguments(x)
        try:
            with torch.autocast(self.problem.device.type, torch.bfloat16, enabled=self._autocast):
                z = flat_outputs(self.model(*args, **kwargs))
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise InvalidData(
                "BatchNorm in train mode takes its statistics from a batch, and this one is a single sample. Pass "
                'batch_norm="eval", or a larger batch_size.'
            ) from error
        return z.to(self.problem.dtype)

    def loss(self, batch: Batch) -> Tensor:
        """Its mean over a batch."""
        x, y = batch
        return self.problem.loss.values(self.outputs(x), y).mean()

    def losses(self, pair: tuple[Batch, Batch], *, together: bool) -> tuple[Tensor, Tensor]:
        """Mean losses over two batches, which go through the network as one, or the second before the first."""
        one, other = pair
        if not together:
            after = self.loss(other)
            return self.loss(one), after
        x, y = join_batches([one, other])
        values = self.problem.loss.values(self.outputs(x), y)
        return values[: len(one[1])].mean(), values[len(one[1]) :].mean()

    def accuracy(self, batches: Iterable[Batch]) -> float:
        """Of the model as it predicts."""
        right = torch.zeros((), dtype=torch.long, device=self.problem.device)
        count = 0
        for x, y in batches:
            right += (self.predicted(x).argmax(1) == label_values(y)).sum()
            count += len(y)
        return int(right) / count

    @torch.no_grad()
    def predicted(self, x: Inputs) -> Tensor:
        """z in eval mode, shape (n, c)."""
        args, kwargs = arguments(x)
        if not self._train:
            return flat_outputs(self.model(*args, **kwargs))
        self.model.eval()
        try:
            return flat_outputs(self.model(*args, **kwargs))
        finally:
            self.model.train()

    def state(self) -> State:
        named = {name: p.detach() for name, p in zip(self.problem.layout.names, self.parameters, strict=True)}
        held = {name: value.detach().clone() for name, value in self.model.named_buffers()} if self._train else {}
        return State(self.problem.layout.flatten(named), held)

    def check(self, x: Inputs) -> None:
        """Refuse a training that ended in nothing: running statistics may overflow where the loss does not, which is
        taken from those of the batch, and outputs after the last step.
        """
        before = dict(self.problem.model.named_buffers())
        for name, value in self.model.named_buffers():
            if value.is_floating_point() and not bool((value.isfinite() | ~before[name].isfinite()).all()):
                raise Diverged(f"The buffer '{name}' became NaN or infinite in training; {SMALLER}")
        if not bool(self.predicted(x).isfinite().all()):
            raise Diverged(f"After the training the outputs are NaN or infinite; {SMALLER}")


def check_classes(problem: Problem, y: Labels, method: str) -> None:
    """Refuse what is no classification with class indices."""
    values = label_values(y)
    if unweighted(problem.loss).response == "softmax" and values.dim() == 1 and not values.is_floating_point():
        return
    raise InvalidSetting(
        f"{method} is for classes: it needs a loss such as 'cross_entropy' and one class index a sample, not "
        f"{problem.loss.name} with labels of shape {tuple(values.shape)} and {values.dtype}."
    )
