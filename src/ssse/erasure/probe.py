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
from ssse.errors import InvalidData
from ssse.problem.batches import check_repeatable, read_batch
from ssse.problem.problem import Problem


def look_at(probe: Iterable[Any], before: Problem, after: Problem, samples: Samples, n: int) -> Health:
    """Both models on the probe. `samples`: those to forget, of the n that there were.

    Raises:
        InvalidData: the probe is empty, or cannot be samples of this model.
    """
    check_repeatable(probe)
    name, labels, parts = before.loss.name, [], []
    for raw in probe:
        x, y = read_batch(raw, before.device)
        if not len(y):
            continue
        if not parts:  # as the first samples of a fit are looked at, with the same words
            Problem(before.working, before.loss, before.layout.names, (x, y))
        before.check_labels(y)
        parts.append([_seen(problem, problem.forward(x)[0], y) for problem in (before, after)])
        labels.append(y.cpu().numpy())
    if not parts:
        raise InvalidData("The probe is empty. Leave probe= out, or give it samples that should keep working.")
    targets = np.concatenate(labels)
    count = np.ones(len(targets), dtype=bool)
    if name == "cross_entropy":
        forgotten = torch.cat([y for _, y in samples.batches]).cpu().numpy()
        count = staying(targets, forgotten, n)
    was, now = (_joined([part[place] for part in parts], count) for place in (0, 1))
    if was.losses is None or not np.isfinite(was.losses).all():
        raise InvalidData("The model's loss on a sample of the probe is NaN or infinite, before any step.")
    return Health(was, now, _guessing(name, before.outputs, targets[count]))


def _seen(problem: Problem, z: Tensor, y: Tensor) -> Seen:
    match problem.loss.name:
        case "cross_entropy":
            right = (z.argmax(1) == y).double()
        case "binary_cross_entropy":
            right = ((z > 0) == (y.reshape(z.shape) > 0)).double().mean(1)
        case _:
            right = None
    losses = problem.loss.values(z, y).double()
    return Seen(losses.cpu().numpy(), None if right is None else right.cpu().numpy())


def _joined(parts: list[Seen], count: np.ndarray) -> Seen:
    losses, right = [one.losses for one in parts], [one.right for one in parts]
    return Seen(
        np.concatenate([one for one in losses if one is not None])[count],
        None if right[0] is None else np.concatenate([one for one in right if one is not None])[count],
    )


def _guessing(loss: str, outputs: int, targets: np.ndarray) -> float | None:
    """The mean loss of an answer that does not look at the input; of a loss of the user's own it is not known."""
    match loss:
        case "cross_entropy":
            return math.log(max(outputs, 2))
        case "binary_cross_entropy":
            return math.log(2) * outputs
        case "mse":
            return 0.5 * float(targets.reshape(len(targets), -1).astype(np.float64).var(0).sum())
    return None
