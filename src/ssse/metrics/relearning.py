"""Relearn time: how fast the forgotten samples come back, a trace that predictions alone do not show."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.metrics.scores import Flagged
from ssse.problem.batches import Batch, join_batches, read_batch, regroup, shuffled
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.view import ModelView
from ssse.problem.wrappers import copied

PASS = 512  # samples a pass holds activations of


@dataclass(frozen=True)
class Relearn:
    """The road back to the target loss.

    Attributes:
        steps: steps until the mean loss on S was at or below the target; None if `max_steps` were not enough.
        losses: mean loss on S before the first step and after each.
        target, learning_rate, batch_size: the settings, which two models must share to be compared.
    """

    steps: int | None
    losses: tuple[float, ...]
    target: float
    learning_rate: float
    batch_size: int | None

    def __str__(self) -> str:
        taken = f"{self.steps} steps" if self.steps is not None else f"more than {len(self.losses) - 1} steps"
        return f"{taken} to a loss of {self.target:.3g} (from {self.losses[0]:.3g})"


def relearn_time(
    model: nn.Module,
    loss_fn: LossLike,
    forget: Data,
    *,
    target: float,
    learning_rate: float = 0.01,
    max_steps: int = 1000,
    batch_size: int | None = None,
    seed: int = 0,
    label_key: str | None = None,
) -> Relearn:
    """Count the steps θ ← θ − η ∇(1/b) Σ ℓᵢ(θ) on the forget set until its mean loss is back at the target.

    Golatkar et al. 2020, "Eternal sunshine of the spotless net": a model that only hides what it knew relearns it
    sooner than one that never knew it. Compare with a retrained model (`anamnesis`); a usual target is the original
    model's loss on S times 1.05. It works on a copy in eval mode, so that BatchNorm statistics stay and dropout is off,
    with plain SGD and no weight decay; the same seed gives the same steps.

    Args:
        forget: batches of S, which is held in memory.
        target: the mean loss on S to come back to.
        batch_size: samples a step; None takes all of S, which needs no seed. The loss is that of all of S either way.
        seed: the order of mini-batches. label_key: as in `ssse.Curvature.fit`.
    """
    _check(target, learning_rate, max_steps, batch_size)
    as_loss(loss_fn)  # an unknown one is refused before the samples are read
    view = ModelView(copied(model).eval())
    parts = list(regroup((read_batch(batch, view.device) for batch in as_batches(forget, label_key)), PASS))
    if not parts:
        raise InvalidData("The forget set is empty; there is nothing to relearn.")
    problem = Problem(view.working, loss_fn, "all", parts[0])
    for _, y in parts:
        problem.check_labels(y)
    order = None if batch_size is None else shuffled(join_batches(parts), batch_size, seed)
    theta = {name: value.clone().requires_grad_() for name, value in problem.parameters().items()}
    losses = [_mean_loss(problem, theta, parts, with_gradient=order is None)]
    if not math.isfinite(losses[0]):
        raise InvalidData(f"The mean loss {problem.loss.name} on the forget set is {losses[0]} before the first step.")
    while losses[-1] > target and len(losses) <= max_steps:
        if order is not None:
            _mean_loss(problem, theta, [next(order)], with_gradient=True)
        _descend(theta, learning_rate)
        losses.append(_mean_loss(problem, theta, parts, with_gradient=order is None))
        if not math.isfinite(losses[-1]):
            raise InvalidSetting(
                f"Relearning diverged: the loss went from {losses[0]:.3g} to {losses[-1]} in {len(losses) - 1} steps "
                f"at learning_rate={learning_rate:g}. Take a smaller one, for every model compared."
            )
    steps = len(losses) - 1 if losses[-1] <= target else None
    return Relearn(steps, tuple(losses), float(target), float(learning_rate), batch_size)


def anamnesis(erased: Relearn, retrained: Relearn) -> Flagged:
    """Relearn time of the erased model over that of the retrained one: 1 is ideal.

    The anamnesis index of Chundawat, Tarun, Mandal and Kankanhalli 2023, "Zero-shot machine unlearning", on the loss.
    Below 1 the erased model still knew something; far above 1 it was damaged so that it learns badly (or hides the
    samples so hard that this is a trace itself).
    """
    for setting in ("target", "learning_rate", "batch_size"):
        one, other = getattr(erased, setting), getattr(retrained, setting)
        if one != other:
            raise InvalidSetting(
                f"Relearn times compare only under the same settings: {setting} is {one} for the erased and {other} "
                "for the retrained model. Run both alike."
            )
    if retrained.steps is None:
        raise InvalidData(
            f"The retrained model did not reach the target within {len(retrained.losses) - 1} steps, so there is "
            "nothing to divide by. Raise max_steps or learning_rate for both."
        )
    if retrained.steps == 0:
        reason = "The retrained model starts at the target already; relearning shows nothing. Choose a lower target."
        return Flagged(1.0 if erased.steps == 0 else math.inf, reason)
    if erased.steps is None:
        taken = len(erased.losses) - 1
        return Flagged(
            (taken + 1) / retrained.steps,
            f"A lower bound: the erased model did not reach the target within {taken} steps. Raise max_steps.",
        )
    return Flagged(erased.steps / retrained.steps)


def _check(target: float, learning_rate: float, max_steps: int, batch_size: int | None) -> None:
    if not math.isfinite(target):
        raise InvalidSetting(f"target is a mean loss, such as 1.05 times the original model's on S; not {target!r}.")
    if not 0 < learning_rate < math.inf:
        raise InvalidSetting(f"learning_rate must be a finite number above 0; not {learning_rate!r}.")
    if max_steps < 1:
        raise InvalidSetting(f"max_steps must be 1 or more; not {max_steps!r}.")
    if batch_size is not None and batch_size < 1:
        raise InvalidSetting(f"batch_size must be 1 or more, or None for all of S at once; not {batch_size!r}.")


def _mean_loss(problem: Problem, theta: dict[str, Tensor], parts: list[Batch], with_gradient: bool) -> float:
    """(1/k) Σ ℓᵢ(θ); with_gradient also leaves its gradient in each tensor's .grad."""
    count, total = sum(len(y) for _, y in parts), 0.0
    for x, y in parts:
        with torch.set_grad_enabled(with_gradient):
            loss = problem.loss.values(problem.call(theta, x), y).sum() / count
        if with_gradient:
            if not loss.requires_grad:
                raise InvalidModel("The loss does not depend on the parameters, so no step can change it.")
            loss.backward()
        total += float(loss.detach())
    return total


@torch.no_grad()
def _descend(theta: dict[str, Tensor], learning_rate: float) -> None:
    for value in theta.values():
        if value.grad is not None:  # a parameter that the output does not use
            value -= learning_rate * value.grad
            value.grad = None
