"""NegGrad+: down the loss of what stays and up that of S, at once."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from ssse.baselines.sgd import Options, Phase, Recipe, Training, check_size
from ssse.baselines.update import Updated
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = "Kurmanji et al. 2023, 'Towards Unbounded Machine Unlearning' (NegGrad+)"


def neggrad_plus(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    epochs: int = 5,
    learning_rate: float = 0.01,
    beta: float = 0.95,
    forget_batch_size: int | None = None,
    together: bool = True,
    **options: Unpack[Options],
) -> Updated:
    """Stochastic gradient descent from θ on

        β · (1/(n−k)) Σ_{i∈D∖S} ℓᵢ(θ) − (1−β) · (1/k) Σ_{i∈S} ℓᵢ(θ)

    An epoch is one pass over D∖S; each of its steps has a mini-batch of D∖S and one of S beside it, which is passed
    over as often as that takes. The best β and rate depend on the problem: choose them on validation data before
    comparing (`tune`).

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        forget_batch_size: samples of S a step; as many as of D∖S if not given.
        together: both mini-batches go through the network as one. BatchNorm in train mode then normalises both by the
            same statistics; apart it has those of S alone for S, which are not those that the model predicts with.
            The paper does not say.
        options: of the training: momentum, weight_decay, batch_size, schedule, batch_norm, autocast, seed, parameters,
            label_key, progress, after_epoch, as `ssse.baselines.sgd.Options` explains them.

    Raises:
        Diverged: the loss became NaN or infinite, which the second term, bounded by nothing, may lead to.
    """
    if not 0 < beta <= 1:
        raise InvalidSetting(f"beta must be above 0 and at most 1, not {beta}.")
    check_size(forget_batch_size, "forget_batch_size")
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, **options)
    training = Training("NegGrad+", recipe, model, curvature, loss_fn, forget)
    retained = training.retained(data)
    draw, other = recipe.draw(retained), recipe.draw(training.forgotten, forget_batch_size)

    def loss(pair: tuple[Batch, Batch]) -> Tensor:
        down, up = training.student.losses(pair, together=together)
        return beta * down - (1 - beta) * up

    phase = Phase(draw.steps, zip(draw, other, strict=True), loss)
    trace = training.descend([[phase]] * epochs)
    return training.answer("neggrad_plus", REFERENCE, [trace.note()])
