"""The probe of a torch module: its samples read once, each batch under the model before the step and after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssse.erasure.health import Health, Seen, staying
from ssse.erasure.request import Samples
from ssse.erasure.tangent import Tangent
from ssse.errors import InvalidData
from ssse.problem.batches import check_repeatable, read_batch, without_weights
from ssse.problem.labels import label_values
from ssse.problem.losses import Loss
from ssse.problem.problem import Problem
from ssse.problem.soft_labels import SoftCrossEntropy
from ssse.problem.weighted_loss import unweighted


def look_at(
    probe: Iterable[Any], before: Problem, after: Problem, samples: Samples, n: int, tangent: Tangent | None = None
) -> Health:
    """Both models on the probe, whose samples count once each. `samples`: those to forget, of the n that there were.
    `tangent`: shown the same samples.

    Raises:
        InvalidData: the probe is empty, or cannot be samples of this model.
    """
    check_repeatable(probe)
    name, looked, labels, parts = before.loss.name, None, [], []
    for raw in probe:
        x, y = without_weights(read_batch(raw, before.device))
        if not len(y):
            continue
        if looked is None:  # as the first samples of a fit are looked at, with the same words
            looked = Problem(before.working, unweighted(before.loss), before.layout.names, (x, y))
        looked.check_labels(y)
        parts.append([_seen(looked.loss, problem.forward(x)[0], y) for problem in (before, after)])
        labels.append(_classes(looked.loss, y))
        if tangent is not None:
            tangent.look((x, y))
    if looked is None:
        raise InvalidData("The probe is empty. Leave probe= out, or give it samples that should keep working.")
    count: np.ndarray | slice = slice(None)
    if name == "cross_entropy":
        own = unweighted(before.loss)
        forgotten = torch.cat([_classes(own, label_values(y)) for _, y in samples.batches]).cpu().numpy()
        count = staying(torch.cat(labels).cpu().numpy(), forgotten, n)
    was, now = (_joined([part[place] for part in parts], count) for place in (0, 1))
    if was.losses is None or not np.isfinite(was.losses).all():
        raise InvalidData("The model's loss on a sample of the probe is NaN or infinite, before any step.")
    return Health(was, now, _guessing(name, before.outputs, labels))


def _seen(loss: Loss, z: Tensor, y: Tensor) -> Seen:
    match loss.name:
        case "cross_entropy":
            right = (z.argmax(1) == _classes(loss, y)).double()
        case "binary_cross_entropy":
            right = ((z > 0) == (y.reshape(z.shape) > 0)).double().mean(1)
        case _:
            right = None
    losses = loss.values(z, y).double()
    return Seen(losses.cpu().numpy(), None if right is None else right.cpu().numpy())


def _classes(loss: Loss, y: Tensor) -> Tensor:
    """Labels as they are; of class probabilities the likeliest class."""
    return y.argmax(1) if isinstance(loss, SoftCrossEntropy) else y


def _joined(parts: list[Seen], count: np.ndarray | slice) -> Seen:
    losses, right = [one.losses for one in parts], [one.right for one in parts]
    return Seen(
        np.concatenate([one for one in losses if one is not None])[count],
        None if right[0] is None else np.concatenate([one for one in right if one is not None])[count],
    )


def _guessing(loss: str, outputs: int, labels: list[Tensor]) -> float | None:
    """The mean loss of an answer that does not look at the input; of a loss of the user's own it is not known."""
    match loss:
        case "cross_entropy":
            return math.log(max(outputs, 2))
        case "binary_cross_entropy":
            return math.log(2) * outputs
        case "mse":
            targets = torch.cat(labels).cpu().double()
            return 0.5 * float(targets.reshape(len(targets), -1).var(0, correction=0).sum())
    return None
