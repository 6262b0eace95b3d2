"""SCRUB: a student that disobeys its teacher, the original model, on S alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse.baselines.sgd import Draw, Options, Phase, Recipe, Training, check_size
from ssse.baselines.student import State, check_classes
from ssse.baselines.update import GROUP, Updated, check_positive
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.batches import Batch, read_batch, regroup, take_samples
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem

REFERENCE = "Kurmanji et al. 2023, 'Towards Unbounded Machine Unlearning' (SCRUB, SCRUB+R)"

Taught = tuple[Batch, Tensor]  # a mini-batch and the teacher's logits on it


def scrub(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    epochs: int = 5,
    max_epochs: int | None = None,
    learning_rate: float = 5e-4,
    alpha: float = 1e-3,
    gamma: float = 0.99,
    temperature: float = 4.0,
    forget_batch_size: int | None = None,
    held_out: Data | None = None,
    **options: Unpack[Options],
) -> Updated:
    """Epochs of stochastic gradient descent on a copy of the model, the student, in two parts:

        max-steps, a pass over S in the first `max_epochs`:      maximise  (1/k) Σ_{i∈S} dᵢ
        min-steps, a pass over D∖S in all epochs, after them:    minimise  (1/(n−k)) Σ_{i∈D∖S} (α·dᵢ + γ·ℓᵢ)

    dᵢ = T²·KL(teacher ‖ student) on sample i, of the softmax of logits over T. The teacher is the model as it was
    given, in eval mode; it is never trained, so that its logits are computed once. The last epochs have min-steps
    alone, to repair what the others damaged.

    **SCRUB+R**, where S shall not be worse known than samples that were never seen: with `held_out`, the result is the
    student after the epoch in which its error on S was nearest to the final student's error on the held-out samples.

    From the paper: the order of the steps, rate 5·10⁻⁴ and its fall to a tenth (schedule="step"), weight decay 5·10⁻⁴
    at the size of CIFAR-10, and another batch size for S, which controls how many max-steps there are. Its formula has
    T = 1. The defaults of α, γ, T, the epochs and the moment of that fall are usual values, and no more: choose them on
    validation data before comparing (`tune`).

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        max_epochs: the first 3 of the epochs if not given.
        forget_batch_size: samples of S in a max-step; as many as in others if not given.
        held_out: samples that the model was not trained on, of the same kind as S (for a class: of that class).
        options: of the training: momentum, weight_decay, batch_size, schedule, batch_norm, autocast, seed, parameters,
            label_key, progress, after_epoch, as `ssse.baselines.sgd.Options` explains them.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    most = min(3, epochs) if max_epochs is None else max_epochs
    if not 0 <= most <= epochs:
        raise InvalidSetting(f"max_epochs must lie in 0 … {epochs}, the number of epochs, not {most}.")
    if alpha < 0 or gamma < 0 or alpha + gamma == 0:
        raise InvalidSetting(f"alpha and gamma must be zero or positive, and one of them positive: {alpha}, {gamma}.")
    check_positive(temperature, "temperature")
    check_size(forget_batch_size, "forget_batch_size")
    defaults: Options = {"schedule": "step"}
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, **{**defaults, **options})
    training = Training("SCRUB", recipe, model, curvature, loss_fn, forget)
    problem, student = training.problem, training.student
    check_classes(problem, training.forgotten[1], "scrub")
    fresh = [] if held_out is None else _read(held_out, problem, training.request.label_key)
    retained = training.retained(data)

    def disagreement(z: Tensor, teacher: Tensor) -> Tensor:
        t = temperature
        teaching, learning = (teacher / t).log_softmax(1), (z / t).log_softmax(1)
        return t**2 * F.kl_div(learning, teaching, reduction="batchmean", log_target=True)

    def disobey(taught: Taught) -> Tensor:
        (x, _), teacher = taught
        return -disagreement(student.outputs(x), teacher)

    def obey(taught: Taught) -> Tensor:
        (x, y), teacher = taught
        z = student.outputs(x)
        return alpha * disagreement(z, teacher) + gamma * problem.loss.values(z, y).mean()

    up, down = recipe.draw(training.forgotten, forget_batch_size), recipe.draw(retained)
    maximise = Phase(up.steps, _taught(problem, up), disobey)
    minimise = Phase(down.steps, _taught(problem, down), obey)
    schedule = [[maximise, minimise]] * most + [[minimise]] * (epochs - most)

    states: list[tuple[float, State]] = []

    def keep() -> None:
        states.append((1 - student.accuracy(training.request.batches), student.state()))

    trace = training.descend(schedule, after_epoch=None if held_out is None else keep)
    notes = [trace.note()]
    if held_out is None:
        return training.answer("scrub", REFERENCE, notes)
    target = 1 - student.accuracy(fresh)
    # Of several that are equally near, the last: the most min-steps have repaired it.
    epoch = min(range(epochs), key=lambda e: (abs(states[e][0] - target), -e))
    notes.append(
        f"rewound to epoch {epoch + 1} of {epochs}: error {states[epoch][0]:.3f} on S, for {target:.3f} on held-out "
        "samples at the end"
    )
    return training.answer("scrub", REFERENCE, notes, states[epoch][1])


def _read(held_out: Data, problem: Problem, label_key: str | None) -> list[Batch]:
    batches = list(regroup((read_batch(batch, problem.device) for batch in as_batches(held_out, label_key)), GROUP))
    if not batches:
        raise InvalidData("There are no held-out samples to rewind by.")
    for _, y in batches:
        problem.check_labels(y)
        check_classes(problem, y, "scrub")
    return batches


def _taught(problem: Problem, draw: Draw) -> Iterator[Taught]:
    with torch.no_grad():
        teacher = torch.cat([problem.forward(x)[0] for x, _ in regroup([draw.samples], GROUP)])
    return ((take_samples(draw.samples, places), teacher[places]) for places in draw.places)
