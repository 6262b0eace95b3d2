"""Training on, without the forgotten samples: the usual practice."""

from __future__ import annotations

import math
from itertools import islice

import torch
from torch import nn

from ssse.baselines.update import Updated, check_positive, check_whole, decay_of, read_request
from ssse.curvature.curvature import Curvature
from ssse.errors import InvalidSetting
from ssse.problem.batches import join_batches, shuffled
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.view import ParameterChoice
from ssse.system.progress import track

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
    seed: int = 0,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
    progress: bool = True,
) -> Updated:
    """Stochastic gradient descent on D∖S from θ, in the hope that what is not repeated is forgotten.

        m ← μm + ∇((1/b) Σ_{i∈B} ℓᵢ(θ) + (w/2)‖θ‖²),    θ ← θ − ηm,    B ⊂ D∖S of b samples

    The model stays in eval mode, as all methods here see it: BatchNorm keeps the running statistics it
    has (which still know S) and dropout is off. The order of samples depends on the seed alone, so
    that two calls give the same model on the same machine.

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        weight_decay: w; that of the curvature if not given, else 0. Nothing else of the curvature is used.
        parameters, label_key: θ, and where labels are, where no curvature says; the rest of the model is frozen.

    Raises:
        InvalidSetting: the loss became NaN or infinite.
    """
    check_whole(epochs, "epochs")
    check_whole(batch_size, "batch_size")
    check_positive(learning_rate, "learning_rate")
    if not 0 <= momentum < 1:
        raise InvalidSetting(f"momentum must be at least 0 and below 1, not {momentum}.")
    decay = decay_of(curvature, weight_decay)
    request = read_request(model, curvature, loss_fn, forget, parameters, label_key)
    problem = request.problem
    whole = join_batches(request.retained(data)[0])
    count = len(whole[1])
    problem.check_labels(whole[1])

    # θ as tensors of their own, put into the model for each call: neither it nor its .grad is written to.
    leaves = {name: value.clone().requires_grad_() for name, value in problem.parameters().items()}
    inputs = list(leaves.values())
    optimiser = torch.optim.SGD(inputs, lr=learning_rate, momentum=momentum, weight_decay=decay)
    steps = epochs * math.ceil(count / batch_size)
    batches = track(islice(shuffled(whole, batch_size, seed), steps), epochs * count, "fine-tuning", progress)
    first = last = math.nan
    step = 0
    for step, (x, y) in enumerate(batches, start=1):
        optimiser.zero_grad()
        with torch.enable_grad():
            loss = problem.loss.values(problem.call(leaves, x), y).mean()
        last = float(loss.detach())
        first = last if step == 1 else first
        if not math.isfinite(last):
            raise InvalidSetting(
                f"Fine-tuning diverged: the loss is {last} in step {step}, after {first:.4g} in the first; nothing was "
                f"changed. Use a smaller learning_rate than {learning_rate}."
            )
        loss.backward(inputs=inputs)
        optimiser.step()
    theta = problem.layout.flatten({name: value.detach() for name, value in leaves.items()})
    note = f"{step} steps over {count} samples; loss of a mini-batch {first:.4g} in the first, {last:.4g} in the last"
    return request.answer(theta, "fine_tuning", REFERENCE, notes=(note,))
