"""Training on with wrong labels on S: the network is to be as ignorant of it as of noise."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from ssse.baselines.sgd import Options, Phase, Recipe, Training, check_size
from ssse.baselines.student import check_classes
from ssse.baselines.update import Updated, check_positive
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.problem.batches import Batch, join_batches
from ssse.problem.labels import label_values, with_values
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = (
    "Golatkar et al. 2020, 'Eternal Sunshine of the Spotless Net' (random labels); "
    "Graves et al. 2021, 'Amnesiac machine learning'"
)


def random_labels(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    epochs: int = 10,
    learning_rate: float = 0.01,
    retain_weight: float | None = None,
    forget_batch_size: int | None = None,
    **options: Unpack[Options],
) -> Updated:
    """Stochastic gradient descent from θ on D, each sample of S with another label than its own.

    It is drawn once, by the seed, and all others are equally likely. Without `retain_weight` every sample of D counts
    alike: one shuffled pass over all of D an epoch. With it, ρ, an epoch is one pass over D∖S, and each step has a
    mini-batch of S beside its own:

        (1/k) Σ_{i∈S} ℓ(xᵢ, random label) + ρ · (1/(n−k)) Σ_{i∈D∖S} ℓᵢ

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        retain_weight: ρ. forget_batch_size: samples of S a step then; as many as of D∖S if not given.
        options: of the training: momentum, weight_decay, batch_size, schedule, batch_norm, autocast, seed, parameters,
            label_key, progress, after_epoch, as `ssse.baselines.sgd.Options` explains them.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    check_weight(retain_weight, forget_batch_size)
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, **options)
    training = Training("random labels", recipe, model, curvature, loss_fn, forget)
    check_classes(training.problem, training.forgotten[1], "random_labels")
    phase = relabelled(training, data, retain_weight, forget_batch_size)
    trace = training.descend([[phase]] * epochs)
    return training.answer("random_labels", REFERENCE, [trace.note()])


def check_weight(retain_weight: float | None, forget_batch_size: int | None) -> None:
    check_size(forget_batch_size, "forget_batch_size")
    if retain_weight is not None:
        check_positive(retain_weight, "retain_weight")
    elif forget_batch_size is not None:
        raise InvalidSetting("forget_batch_size needs retain_weight; without it S is shuffled among the others.")


def relabelled(training: Training, data: Data, retain_weight: float | None, forget_batch_size: int | None) -> Phase:
    """One epoch of it."""
    recipe, student, (x, y) = training.recipe, training.student, training.forgotten
    wrong: Batch = x, with_values(y, other_labels(label_values(y), training.problem.outputs, recipe.seed))
    retained = training.retained(data)
    if retain_weight is None:
        draw = recipe.draw(join_batches([retained, wrong]))
        return Phase(draw.steps, iter(draw), student.loss)
    draw, beside = recipe.draw(retained), recipe.draw(wrong, forget_batch_size)

    def loss(pair: tuple[Batch, Batch]) -> Tensor:
        own, wronged = student.losses(pair, together=True)
        return wronged + retain_weight * own

    return Phase(draw.steps, zip(draw, beside, strict=True), loss)


def other_labels(y: Tensor, classes: int, seed: int) -> Tensor:
    """For each label one of the others, all equally likely; drawn on the CPU, the same on every device."""
    if classes < 2:
        raise InvalidSetting("With one class there is no other label to draw.")
    shift = torch.randint(1, classes, y.shape, generator=torch.Generator().manual_seed(seed))
    return (y + shift.to(y)) % classes
