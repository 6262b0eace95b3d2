"""A short training of a copy of a model, on samples that are held: a repair, or a harmless fine-tuning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from ssse.errors import Diverged, InvalidData, InvalidModel, InvalidSetting
from ssse.problem.batch_statistics import even_parts, is_frozen, reestimate, statistics_layers, told_of_one_value
from ssse.problem.batches import Batch, check_repeatable, join_batches, map_inputs, read_batch, regroup, without_weights
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.unusable import refuse_unusable
from ssse.problem.view import ModelView, flat_outputs
from ssse.problem.weighted_loss import unweighted
from ssse.problem.wrappers import copied
from ssse.system.group import Group
from ssse.system.progress import bar

PASS = 512  # samples that a pass without gradients holds activations of
SWING = 0.05  # of the momentum, as of torch's OneCycleLR
FIRST_STEPS = 10  # after which the time that all of them take is estimated

AfterEpoch = Callable[[int, float], None]


@dataclass(frozen=True)
class Training:
    """How a model is trained: SGD with Nesterov's momentum, the rate along one cycle (torch's `OneCycleLR`).

    Attributes:
        epochs: passes over the data. learning_rate: the largest of the cycle. batch_size: samples a step.
        weight_decay: of all parameters that are trained.
        momentum: its mean; along the cycle it falls and rises by 0.05, against the rate. 0: plain SGD.
    """

    epochs: int = 40
    learning_rate: float = 0.4
    batch_size: int = 512
    weight_decay: float = 5e-4
    momentum: float = 0.9

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidSetting(f"{name} must be a whole number from 1 on, not {value!r}.")
        for name in ("learning_rate", "weight_decay", "momentum"):
            if not isinstance(getattr(self, name), Real):
                raise InvalidSetting(f"{name} must be a number, not {getattr(self, name)!r}.")
        if not 0 < self.learning_rate < math.inf:
            raise InvalidSetting(f"learning_rate must be a positive number, not {self.learning_rate!r}.")
        if not 0 <= self.weight_decay < math.inf:
            raise InvalidSetting(f"weight_decay must be zero or positive, not {self.weight_decay!r}.")
        if not 0 <= self.momentum < 1:
            raise InvalidSetting(f"momentum must be at least 0 and below 1, not {self.momentum!r}.")

    def steps(self, samples: int) -> int:
        """Of all epochs. The last, incomplete batch of an epoch is left out, unless it is the only one."""
        return self.epochs * max(1, samples // self.batch_size)

    @property
    def swing(self) -> float:
        """So far the momentum goes from its mean: it stays above 0 and below 1."""
        return min(SWING, self.momentum, (1 - self.momentum) / 2)


@dataclass(frozen=True)
class Trainee:
    """A copy of a model, in eval mode, and the samples that it is to be trained on, both checked.

    Attributes:
        given: the copy as it will be handed back, in its wrappers and dtypes.
        problem: of what is trained: without wrappers, not in half precision. samples: all of them, on its device.
    """

    given: nn.Module
    problem: Problem
    samples: Batch
    label_key: str | None = None

    @classmethod
    def of(cls, model: nn.Module, loss_fn: LossLike, data: Data, label_key: str | None = None) -> Self:
        """Raises InvalidModel, InvalidData, InvalidSetting: before anything is trained."""
        as_loss(loss_fn)  # an unknown one is refused before the samples are read
        refuse_unusable(model)
        view = ModelView(copied(model))
        parts = _read(data, view.device, label_key)
        if not parts:
            raise InvalidData("The retained data is empty; there is nothing to train on.")
        problem = Problem(view.working, loss_fn, "all", parts[0])
        for _, y in parts:
            problem.check_labels(y)
        return cls(view.working.given, problem, join_batches(parts), label_key)

    def beside(self, model: nn.Module, loss_fn: LossLike) -> Trainee:
        """A copy of another model for the same samples, which are not read or held again."""
        refuse_unusable(model)
        view = ModelView(copied(model))
        if view.device != self.problem.device:
            raise InvalidModel(f"One model is on {self.problem.device}, another on {view.device}; move one of them.")
        first = _taken(self.samples, torch.arange(min(PASS, self.count), device=view.device))
        return Trainee(view.working.given, Problem(view.working, loss_fn, "all", first), self.samples, self.label_key)

    @property
    def count(self) -> int:
        return len(self.samples[1])

    def read(self, data: Data, what: str) -> list[Batch]:
        """Other samples to look at, checked, on the same device, each of which counts once. `what`: they are called."""
        parts = [without_weights(part) for part in _read(data, self.problem.device, self.label_key)]
        if not parts:
            raise InvalidData(f"There are no {what}.")
        for _, y in parts:
            unweighted(self.problem.loss).check(y, torch.Size((len(y), self.problem.outputs)))
        return list(parts)

    def inputs(self) -> Iterator[Any]:
        """Of all samples, in parts of much the same size."""
        for part in even_parts(self.count, PASS):
            yield map_inputs(lambda value, part=part: value[part.to(value.device)], self.samples[0])

    def finish(self) -> nn.Module:
        """The copy with statistics estimated on the samples, in eval mode."""
        model, working = self.problem.model, self.problem.working
        layers = [layer for layer in statistics_layers(model).values() if not is_frozen(layer)]
        if layers:
            reestimate(model, layers, self.inputs())
        if working.widened:
            keep_as_given(model, working.inner)
        working.inner.eval()
        return self.given.eval()

    @torch.enable_grad()
    def train(
        self,
        training: Training,
        *,
        seed: int = 0,
        autocast: bool = False,
        after_epoch: AfterEpoch | None = None,
        text: str = "training",
        progress: bool = True,
    ) -> None:
        """In place, in training mode; afterwards in eval mode again.

        Samples are drawn in an order that depends on the seed alone, and so is what the model draws itself. Frozen
        parameters stay as they are, and so do BatchNorm layers whose own parameters are frozen.

        Args:
            autocast: bfloat16 in the layers; parameters and the loss stay in their dtype.
            after_epoch: called with the number of epochs that are over and the mean loss in the last one, the model in
                eval mode.

        Raises:
            Diverged: the loss, or a parameter, is NaN or infinite.
        """
        if not isinstance(seed, Integral):
            raise InvalidSetting(f"seed must be a whole number, not {seed!r}.")
        model, total = self.problem.model, training.steps(self.count)
        size = min(training.batch_size, self.count)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser, cycle = _optimiser(trained, training, total)
        order = torch.Generator().manual_seed(seed)
        clock = _Clock(self.problem.device, total)
        with bar(f"{text}: {total:,} steps of {size:,}", total * size, progress) as advance, _drawing(self, seed):
            for epoch in range(1, training.epochs + 1):
                _training_mode(model)
                places = torch.randperm(self.count, generator=order).to(self.problem.device)
                losses = torch.zeros((), dtype=torch.float64, device=self.problem.device)
                for step in range(total // training.epochs):
                    batch = _taken(self.samples, places[step * size : (step + 1) * size])
                    optimiser.zero_grad(set_to_none=True)
                    loss = self._loss(batch, autocast)
                    loss.backward()
                    optimiser.step()
                    losses += loss.detach()
                    if cycle is not None and cycle.last_epoch + 1 < total:
                        cycle.step()
                    advance(size, clock.told(text))
                mean = float(losses) / (total // training.epochs)  # the one number an epoch that is waited for
                if not math.isfinite(mean):
                    raise Diverged(_diverged(text, f"the loss is {mean} in epoch {epoch}", training))
                model.eval()
                if after_epoch is not None:
                    after_epoch(epoch, mean)
        optimiser.zero_grad(set_to_none=True)
        if not all(bool(torch.isfinite(p).all()) for p in trained):
            raise Diverged(_diverged(text, "parameters are NaN or infinite", training))

    def _loss(self, batch: Batch, autocast: bool) -> Tensor:
        x, y = batch
        with told_of_one_value(), torch.autocast(self.problem.device.type, torch.bfloat16, enabled=autocast):
            outputs = flat_outputs(self.problem.outputs_of(x))
        return self.problem.loss.values(outputs.to(self.problem.dtype), y).mean()


@torch.no_grad()
def keep_as_given(trained: nn.Module, inner: nn.Module) -> None:
    """What was trained in float32, in the model's own dtypes: the values are rounded to them."""
    for one, other in ((trained.parameters(), inner.parameters()), (trained.buffers(), inner.buffers())):
        for value, kept in zip(one, other, strict=True):
            kept.copy_(value)


def as_the_first(model: nn.Module, group: Group) -> None:
    """Processes that work together have all come to one; they go on with the same, to the last bit."""
    if not group.alone:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().copy_(group.spread(tensor.detach().contiguous(), 0))


def _read(data: Data, device: torch.device, label_key: str | None) -> list[Batch]:
    batches = as_batches(data, label_key)
    check_repeatable(batches)
    read = (read_batch(batch, device) for batch in batches)
    return list(regroup((batch for batch in read if len(batch[1])), PASS))


def _taken(samples: Batch, places: Tensor) -> Batch:
    return map_inputs(lambda value: value.index_select(0, places), samples[0]), samples[1][places]


def _optimiser(
    trained: list[nn.Parameter], training: Training, total: int
) -> tuple[torch.optim.Optimizer, OneCycleLR | None]:
    swing = training.swing
    optimiser = torch.optim.SGD(
        trained,
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.momentum > 0,
    )
    if total == 1:  # a cycle of one step would be its end, where the rate is next to nothing
        return optimiser, None
    cycle = OneCycleLR(
        optimiser,
        training.learning_rate,
        total_steps=total,
        cycle_momentum=swing > 0,
        base_momentum=training.momentum - swing,
        max_momentum=training.momentum + swing,
    )
    return optimiser, cycle


def _training_mode(model: nn.Module) -> None:
    model.train()
    for layer in statistics_layers(model).values():
        if is_frozen(layer):
            layer.eval()


@contextmanager
def _drawing(trainee: Trainee, seed: int) -> Iterator[None]:
    """What layers draw (dropout) depends on the seed; torch's random state is left as it was."""
    device = trainee.problem.device
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU as well
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


class _Clock:
    """How long all steps take, from the first few: waited for once."""

    def __init__(self, device: torch.device, total: int):
        self._device, self._total = device, total
        self._after = min(FIRST_STEPS, total)
        self._started, self._steps = time.perf_counter(), 0

    def told(self, text: str) -> str | None:
        self._steps += 1
        if self._steps != self._after:
            return None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = (time.perf_counter() - self._started) * self._total / self._steps
        return f"{text}: {self._total:,} steps, about {seconds:.3g} s"


def _diverged(text: str, how: str, training: Training) -> str:
    return (
        f"The {text} diverged: {how}; nothing was changed. Use a smaller learning_rate than {training.learning_rate:g}."
    )
