"""Many steps up the loss of S, until so little of it is recognised."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from ssse.baselines.sgd import Options, Phase, Recipe, Training
from ssse.baselines.student import check_classes
from ssse.baselines.update import Updated
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = "Golatkar et al. 2020, 'Eternal Sunshine of the Spotless Net' (negative gradient); Thudi et al. 2022"


def gradient_ascent_until(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    stop_accuracy: float = 0.5,
    epochs: int = 100,
    learning_rate: float = 1e-4,
    **options: Unpack[Options],
) -> Updated:
    """Stochastic gradient ascent on S from θ, ended by the first step after which S is right in at most so many cases.

        m ← μm − ∇((1/b) Σ_{i∈B} ℓᵢ(θ)) + wθ,    θ ← θ − ηm,    B ⊂ S of b samples

    The accuracy is that of all of S in eval mode, measured after each step. Nothing is known of D∖S. Ascent speeds up
    as it goes: with a large rate the last step alone may lead far below `stop_accuracy`; a note says where it ended.

    Args:
        stop_accuracy: a share of S. epochs: passes over S at most.
        options: of the training, as `ssse.baselines.sgd.Options` explains them; here weight_decay is 0, where no
            curvature says otherwise, and batch_norm "eval", since batches of S alone have other statistics.

    Raises:
        InvalidSetting: all epochs were not enough.
        Diverged: the loss became NaN or infinite before.
    """
    if not 0 <= stop_accuracy < 1:
        raise InvalidSetting(f"stop_accuracy must be at least 0 and below 1, not {stop_accuracy}.")
    defaults: Options = {"batch_norm": "eval"}
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, **{**defaults, **options})
    training = Training("gradient ascent", recipe, model, curvature, loss_fn, forget, usual_decay=0.0)
    check_classes(training.problem, training.forgotten[1], "gradient_ascent_until")
    draw = recipe.draw(training.forgotten)

    def loss(batch: Batch) -> Tensor:
        return -training.student.loss(batch)

    def accuracy() -> float:
        return training.student.accuracy(training.request.batches)

    phase = Phase(draw.steps, iter(draw), loss)
    trace = training.descend([[phase]] * epochs, enough=lambda: accuracy() <= stop_accuracy)
    left = accuracy()
    if left > stop_accuracy:
        raise InvalidSetting(
            f"After {trace.steps} steps {left:.1%} of S are still right, more than stop_accuracy={stop_accuracy:g}; "
            "nothing was changed. Use more epochs or a larger learning_rate."
        )
    return training.answer("gradient_ascent_until", REFERENCE, [trace.note(), f"{left:.1%} of S are right"])
