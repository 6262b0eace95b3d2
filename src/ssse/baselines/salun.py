"""SalUn: random labels on S, and only the weights move that S has most to say about."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from ssse.baselines.random_labels import check_weight, relabelled
from ssse.baselines.sgd import Options, Recipe, Training
from ssse.baselines.student import Student, check_classes
from ssse.baselines.update import Updated
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem

REFERENCE = "Fan et al. 2024, 'SalUn: Empowering Machine Unlearning via Gradient-based Weight Saliency'"


def salun(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    epochs: int = 10,
    learning_rate: float = 0.01,
    share: float = 0.5,
    retain_weight: float | None = None,
    forget_batch_size: int | None = None,
    **options: Unpack[Options],
) -> Updated:
    """`random_labels`, with the entries of θ fixed that are not salient:

        θ̂ = θ + m ⊙ Δθ,    m = 1 where |∇ Σ_{i∈S} ℓᵢ(θ)| is among the largest, for a `share` of all entries of θ

    The gradient is that of the model as it was given, in eval mode. What is not salient stays bit by bit: neither
    weight decay nor momentum moves it. (Running statistics of BatchNorm are no parameters, and move in train mode.)

    From the paper: a share of one half and 10 epochs. The best rate and share depend on the problem: choose them on
    validation data before comparing (`tune`). The paper's objective weighs the mean over D∖S with a factor of its own,
    `retain_weight`; without one every sample of D counts alike.

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        retain_weight, forget_batch_size: as in `random_labels`.
        options: of the training: momentum, weight_decay, batch_size, schedule, batch_norm, autocast, seed, parameters,
            label_key, progress, after_epoch, as `ssse.baselines.sgd.Options` explains them.

    Raises:
        Diverged: the loss became NaN or infinite.
    """
    if not 0 < share <= 1:
        raise InvalidSetting(f"share must be above 0 and at most 1, not {share}.")
    check_weight(retain_weight, forget_batch_size)
    recipe = Recipe(epochs=epochs, learning_rate=learning_rate, **options)
    training = Training("SalUn", recipe, model, curvature, loss_fn, forget)
    check_classes(training.problem, training.forgotten[1], "salun")
    phase = relabelled(training, data, retain_weight, forget_batch_size)
    mask = salient(training.problem, training.request.batches, share)
    trace = training.descend([[phase]] * epochs, mask=list(training.problem.layout.unflatten(mask).values()))
    moved = f"{int(mask.sum())} of {len(mask)} parameters may move"
    return training.answer("salun", REFERENCE, [trace.note(), moved])


def salient(problem: Problem, batches: list[Batch], share: float) -> Tensor:
    """1 where the gradient of the loss of these samples is largest, for so many entries of θ; 0 elsewhere."""
    student = Student(problem, train=False)
    with torch.enable_grad():
        for x, y in batches:
            problem.loss.values(student.outputs(x), y).sum().backward()
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in student.parameters]
    size = torch.cat([slope.flatten().abs() for slope in slopes])
    mask = torch.zeros_like(size)
    mask[size.topk(max(1, round(share * len(size)))).indices] = 1
    return mask
