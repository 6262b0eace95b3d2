"""One look at a model on some samples, through its loss: how it does on them, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.metrics.scores import as_labels, confidences, hits
from ssse.problem.batches import Batch, without_weights
from ssse.problem.losses import Loss
from ssse.problem.problem import Problem
from ssse.problem.token_losses import IGNORED, TokenLoss
from ssse.problem.weighted_loss import unweighted


@dataclass(frozen=True)
class Look:
    """Each sample counts once.

    Attributes:
        loss: the mean; of sequences, of a token. accuracy: the share that is right, None where there is no right.
        confidences: φ in the true label, as attacks read it; of sequences the mean log-likelihood, else minus the loss.
    """

    samples: int
    loss: float
    accuracy: float | None
    confidences: np.ndarray


@torch.no_grad()
def look(problem: Problem, parts: Iterable[Batch]) -> Look:
    """The model in eval mode on these samples, of which there is one at least."""
    loss, losses, weights, right, sure = unweighted(problem.loss), [], [], [], []
    for batch in parts:
        x, y = without_weights(batch)
        with problem.reading(x):
            z, _ = problem.forward(x)
        own, count, correct, confident = _tokens(loss, z, y) if isinstance(loss, TokenLoss) else _samples(loss, z, y)
        losses.append(own)
        weights.append(count)
        right.append(correct)
        sure.append(confident)
    correct = None if any(one is None for one in right) else np.concatenate([one for one in right if one is not None])
    total, counts = np.concatenate(losses), np.concatenate(weights)
    return Look(
        samples=len(total),
        loss=float(total.sum() / counts.sum()),
        accuracy=None if correct is None else float(correct.mean()),
        confidences=np.concatenate(sure),
    )


_Numbers = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]


def _samples(loss: Loss, z: Tensor, y: Tensor) -> _Numbers:
    losses = _array(loss.values(z, y))
    once = np.ones(len(losses))
    if loss.name == "mse":
        return losses, once, None, -losses
    logits = _array(z)
    try:
        labels, task = as_labels(y, logits)
    except InvalidData:  # of a loss of the user's own, whose labels may be anything
        return losses, once, None, -losses
    return losses, once, hits(logits, labels, task), confidences(logits, labels, task)


def _tokens(loss: TokenLoss, z: Tensor, y: Tensor) -> _Numbers:
    target = loss.targets(y)
    known = target != IGNORED
    losses, counts = _array(loss.token_values(z, y).sum(1)), _array(known.sum(1))
    first = (z.view(*y.shape, -1).argmax(2) == target) & known
    return losses, counts, _array(first.sum(1)) / counts, -losses / counts


def _array(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
