"""Training on, without the forgotten samples: the usual practice."""

from __future__ import annotations

from torch import nn

from ssse.baselines.sgd import AfterEpoch, Mode, Phase, Recipe, Schedule, Training
from ssse.baselines.update import Updated
from ssse.curvature.curvature import Curvature
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.view import ParameterChoice

REFERENCE = "Golatkar et al. 2020, 'Eternal Sunshine of the Spotless Net' (the fine-tuning baseline)"


def fine_tuning(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    epochs: int = 1,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float | None = None,
    batch_size: int = 128,
    schedule: Schedule = "constant",
    batch_norm: Mode = "eval",
    autocast: bool = False,
    seed: int = 0,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
    progress: bool = True,
    after_epoch: AfterEpoch | None = None,
) -> Updated:
    """Stochastic gradient descent on D∖S from θ, in the hope that what is not repeated is forgotten.

        m ← μm + ∇((1/b) Σ_{i∈B} ℓᵢ(θ) + (w/2)‖θ‖²),    θ ← θ − ηm,    B ⊂ D∖S of b samples

    By default the model stays in eval mode, as all methods here see it: BatchNorm keeps the running statistics it
    has (which still know S) and dropout is off. The order of samples depends on the seed alone, so
    that two calls give the same model on the same machine.

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        weight_decay: w; that of the curvature if not given, else 0. Nothing else of the curvature is used.
        schedule, batch_norm, autocast, after_epoch: as in `ssse.baselines.sgd.Options`.
        parameters, label_key: θ, and where labels are, where no curvature says; the rest of the model is frozen.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    recipe = Recipe(
        epochs=epochs,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        batch_size=batch_size,
        schedule=schedule,
        batch_norm=batch_norm,
        autocast=autocast,
        seed=seed,
        parameters=parameters,
        label_key=label_key,
        progress=progress,
        after_epoch=after_epoch,
    )
    training = Training("fine-tuning", recipe, model, curvature, loss_fn, forget, usual_decay=0.0)
    retained = training.retained(data)
    draw = recipe.draw(retained)
    trace = training.descend([[Phase(draw.steps, iter(draw), training.student.loss)]] * epochs)
    return training.answer("fine_tuning", REFERENCE, [trace.note(f" over {len(retained[1])} samples")])
