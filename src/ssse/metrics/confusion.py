"""𝕊 and δ: whether two models mistake the same samples for the same things."""

from __future__ import annotations

from typing import Any

import numpy as np

from ssse.errors import InvalidData
from ssse.metrics.scores import Flagged, as_labels, as_logits, check_alike
from ssse.metrics.similarity import share


def confusions(logits: Any, labels: Any, name: str = "logits") -> np.ndarray:
    """The confusion matrix in counts, true classes × predicted classes, shape (c, c)."""
    logits = as_logits(logits, name)
    truth, task = as_labels(labels, logits)
    if task != "classes":
        raise InvalidData(
            "δ compares classes: it needs a column of logits for each (two at least) and class indices as labels. For "
            "0/1 attributes use similarity_ratio."
        )
    classes = logits.shape[1]
    return np.bincount(truth * classes + logits.argmax(1), minlength=classes**2).reshape(classes, classes)


def confusion_distance(first: Any, second: Any, labels: Any) -> float:
    """𝕊(θ₁, θ₂) = Σ_ij |m_ij(θ₁) − m_ij(θ₂)|, in samples (the paper's Definition 4.3).

    Args: first, second: logits of the two models on the same samples, shape (k, c). labels: class indices, (k,).
    """
    check_alike({"first": as_logits(first, "first"), "second": as_logits(second, "second")})
    return float(np.abs(confusions(first, labels, "first") - confusions(second, labels, "second")).sum())


def normalized_confusion_distance(erased: Any, original: Any, retrained: Any, labels: Any) -> Flagged:
    """δ_S(θ̂; θ*, θ₋S) = 𝕊(θ̂, θ₋S) / (𝕊(θ̂, θ*) + 𝕊(θ̂, θ₋S)), on the forgotten samples (Definition 4.4).

    0: confused as the retrained model; 1: as the original. Below ½ it is nearer to the retrained one. Where the
    erased model's confusions differ from neither, 0.5 and a flag.

    Args: logits of the three models on S, shape (k, c). labels: class indices, shape (k,).
    """
    logits = {"erased": erased, "original": original, "retrained": retrained}
    check_alike({name: as_logits(value, name) for name, value in logits.items()})
    return confusion_ratio(*(confusions(value, labels, name) for name, value in logits.items()))


def confusion_ratio(erased: np.ndarray, original: np.ndarray, retrained: np.ndarray) -> Flagged:
    """δ from the confusion matrices of the three models on S."""
    return share(float(np.abs(erased - retrained).sum()), float(np.abs(erased - original).sum()))
