"""The training that the baselines of many steps share; each of them says what a step minimises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from ssse.baselines.student import State, Student
from ssse.baselines.update import Request, Updated, check_positive, check_whole, decay_of, read_request
from ssse.curvature.curvature import Curvature
from ssse.errors import Diverged, InvalidSetting
from ssse.problem.batches import Batch, join_batches, shuffled_places, take_samples
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem
from ssse.problem.view import ParameterChoice
from ssse.system.progress import bar

Schedule = Literal["constant", "step", "cosine", "one_cycle"]
Mode = Literal["train", "eval"]
AfterEpoch = Callable[[int, nn.Module], None]

DECAY = 5e-4  # w of the papers' experiments with CIFAR-10
FALL = 0.6  # of the steps are taken before "step" lowers the rate to a tenth


class Options(TypedDict, total=False):
    """What all trainings take alike, by keyword.

    Attributes:
        momentum: μ of SGD. batch_size: samples a step.
        weight_decay: w; that of the curvature if not given, else 5·10⁻⁴. Nothing else of the curvature is used.
        schedule: of the learning rate over all steps: "constant"; "step", a tenth of it after 60 % of them; "cosine",
            down to zero; "one_cycle", up for 30 % and down to nearly zero, as torch's OneCycleLR.
        batch_norm: "train" as the papers train: BatchNorm normalises by the batch and the running statistics of the
            result are those of the training; dropout drops. "eval": the model stays as it predicts, and keeps them.
        autocast: forward passes in bfloat16. θ, the loss and its gradient by θ stay in their dtype.
        seed: of the order of samples, of dropout and of what else is drawn; the same gives the same on one machine.
        parameters, label_key: θ, and where labels are, where no curvature says; the rest of the model is frozen.
        after_epoch: called as after_epoch(epoch, model) after each, counted from 1, with a copy of the model.
    """

    momentum: float
    weight_decay: float | None
    batch_size: int
    schedule: Schedule
    batch_norm: Mode
    autocast: bool
    seed: int
    parameters: ParameterChoice
    label_key: str | None
    progress: bool
    after_epoch: AfterEpoch | None


@dataclass(frozen=True)
class Recipe:
    """Checked settings of a training; `Options` says what they are."""

    epochs: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float | None = None
    batch_size: int = 128
    schedule: Schedule = "constant"
    batch_norm: Mode = "train"
    autocast: bool = False
    seed: int = 0
    parameters: ParameterChoice = "all"
    label_key: str | None = None
    progress: bool = True
    after_epoch: AfterEpoch | None = None

    def __post_init__(self) -> None:
        check_whole(self.epochs, "epochs")
        check_whole(self.batch_size, "batch_size")
        check_positive(self.learning_rate, "learning_rate")
        if not 0 <= self.momentum < 1:
            raise InvalidSetting(f"momentum must be at least 0 and below 1, not {self.momentum}.")
        check_choice(self.schedule, "schedule", get_args(Schedule))
        check_choice(self.batch_norm, "batch_norm", get_args(Mode))
        decay_of(None, self.weight_decay)

    def draw(self, samples: Batch, size: int | None = None) -> Draw:
        """Mini-batches of these samples, anew in each pass."""
        count, size = len(samples[1]), size or self.batch_size
        # BatchNorm in train mode has no statistics of a single sample.
        smallest = 2 if self.batch_norm == "train" else 1
        last = (count - 1) % size + 1
        steps = math.ceil(count / size) - (count > size and last < smallest)
        return Draw(steps, shuffled_places(count, size, self.seed, samples[1].device, smallest), samples)


@dataclass(frozen=True)
class Draw:
    """An endless iterator over mini-batches; `steps` of them are one pass. `places`: of each in the samples."""

    steps: int
    places: Iterator[Tensor]
    samples: Batch

    def __iter__(self) -> Iterator[Batch]:
        return (take_samples(self.samples, some) for some in self.places)


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: `steps` times the next of `draws`, which are endless, and a step down the `loss` of it."""

    steps: int
    draws: Iterator[Any]
    loss: Callable[[Any], Tensor]


@dataclass(frozen=True)
class Trace:
    """How a training went: steps taken, and the loss of the first and of the last."""

    steps: int
    first: float
    last: float

    def note(self, over: str = "") -> str:
        return (
            f"{self.steps} steps{over}; loss of a mini-batch {self.first:.4g} in the first, {self.last:.4g} in the last"
        )


class Training:
    """One call of a method that trains: the request, and the copy of the model that is moved.

    Attributes:
        request, recipe: as given. student: the copy. forgotten: S as one batch, on the device.
    """

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        model: nn.Module,
        curvature: Curvature | None,
        loss_fn: LossLike,
        forget: Data,
        *,
        usual_decay: float = DECAY,
    ):
        """`name`: as messages have it. `usual_decay`: w where neither the recipe nor a curvature says."""
        self.name: str = name
        self.recipe: Recipe = recipe
        self.request: Request = read_request(model, curvature, loss_fn, forget, recipe.parameters, recipe.label_key)
        self.problem: Problem = self.request.problem
        self.decay: float = decay_of(curvature, recipe.weight_decay, usual_decay)
        self.forgotten: Batch = join_batches(self.request.batches)
        self.problem.check_labels(self.forgotten[1])
        self.student: Student = Student(self.problem, train=recipe.batch_norm == "train", autocast=recipe.autocast)

    def retained(self, data: Data) -> Batch:
        """D∖S as one batch, on the device."""
        retained = join_batches(self.request.retained(data)[0])
        self.problem.check_labels(retained[1])
        return retained

    def descend(
        self,
        epochs: Sequence[Sequence[Phase]],
        *,
        mask: Sequence[Tensor] | None = None,
        after_epoch: Callable[[], None] | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Trace:
        """Stochastic gradient descent, phase by phase.

            m ← μm + (∇loss + wθ) ⊙ mask,    θ ← θ − ηm

        Args:
            mask: 1 for the entries of θ that may move and 0 for those that stay bit by bit, weight decay or not.
            after_epoch: of the method itself; the user's comes after it. enough: asked after each step, True ends it.

        Raises:
            Diverged: the loss became NaN or infinite. It is looked at once an epoch: a GPU is not waited for at each
                step.
        """
        recipe, student = self.recipe, self.student
        rate, inner = recipe.learning_rate, 0.0 if mask is not None else self.decay
        optimiser = torch.optim.SGD(student.parameters, lr=rate, momentum=recipe.momentum, weight_decay=inner)
        total = sum(phase.steps for phases in epochs for phase in phases)
        schedule = _schedule(optimiser, recipe, total)
        seen: list[float] = []
        device = self.problem.device
        forked = [device] if device.type == "cuda" else []
        with bar(self.name, total, recipe.progress) as advance, torch.random.fork_rng(forked), torch.enable_grad():
            torch.manual_seed(recipe.seed)
            for epoch, phases in enumerate(epochs, start=1):
                losses: list[Tensor] = []
                ended = False
                for phase in (one for one in phases for _ in range(one.steps)):
                    optimiser.zero_grad()
                    loss = phase.loss(next(phase.draws))
                    loss.backward()
                    if mask is not None:
                        _confine(student.parameters, mask, self.decay)
                    optimiser.step()
                    schedule.step()
                    losses.append(loss.detach())
                    advance(1)
                    ended = enough is not None and enough()
                    if ended:
                        break
                seen += _finite(losses, seen, self.name, rate)
                if after_epoch is not None:
                    after_epoch()
                if recipe.after_epoch is not None:
                    with torch.random.fork_rng(forked):  # what it draws must not move the training
                        state = student.state()
                        recipe.after_epoch(epoch, self.problem.with_theta(state.theta, state.buffers))
                if ended:
                    break
        student.check(self.request.batches[0][0])
        return Trace(len(seen), seen[0], seen[-1])

    def answer(self, method: str, reference: str, notes: Sequence[str], state: State | None = None) -> Updated:
        """The student as it is, or as it was at another moment."""
        state = self.student.state() if state is None else state
        return self.request.answer(state.theta, method, reference, buffers=state.buffers, notes=notes)


def check_size(size: int | None, name: str) -> None:
    if size is not None:
        check_whole(size, name)


def check_choice(value: str, name: str, among: Sequence[str]) -> None:
    if value not in among:
        raise InvalidSetting(f"{name} must be one of {', '.join(among)}, not {value!r}.")


def _finite(losses: list[Tensor], before: list[float], name: str, rate: float) -> list[float]:
    values = torch.stack(losses).tolist()
    for step, value in enumerate(values, start=len(before) + 1):
        if not math.isfinite(value):
            what, first = name[0].upper() + name[1:], (before + values)[0]
            raise Diverged(
                f"{what} diverged: the loss is {value} in step {step}, after {first:.4g} in the first; nothing was "
                f"changed. Use a smaller learning_rate than {rate}."
            )
    return values


@torch.no_grad()
def _confine(parameters: Sequence[nn.Parameter], mask: Sequence[Tensor], decay: float) -> None:
    """The decay is part of what is masked, and so is the momentum that is gathered from it."""
    for parameter, share in zip(parameters, mask, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter, alpha=decay).mul_(share)


def _schedule(optimiser: torch.optim.SGD, recipe: Recipe, total: int) -> LRScheduler:
    if recipe.schedule == "cosine":
        return CosineAnnealingLR(optimiser, total)
    if recipe.schedule == "one_cycle":
        return OneCycleLR(optimiser, recipe.learning_rate, total, cycle_momentum=False)
    fall = math.ceil(FALL * total) if recipe.schedule == "step" else math.inf
    return LambdaLR(optimiser, lambda step: 0.1 if step >= fall else 1.0)
