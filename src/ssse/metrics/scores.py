"""What every measure starts from: a model's logits on some samples, and the true labels. Checked once, here.

Two tasks, told apart by the labels:

    classes      logits (n, c), labels (n,) with class indices 0 … c−1     softmax
                 or (n, c) with class probabilities, the likeliest counts
    attributes   logits (n, a), labels (n, a) of 0 and 1                   one logistic output each
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.special import log_expit, log_softmax
from torch import Tensor

from ssse.errors import InvalidData

Task = Literal["classes", "attributes"]

SOFT = 1e-3  # within which class probabilities must add up to one


class Flagged(float):
    """A number that may carry a warning about itself; it is a float everywhere else."""

    flags: tuple[str, ...]

    def __new__(cls, value: float, *flags: str) -> Flagged:
        number = super().__new__(cls, value)
        number.flags = flags
        return number


def as_logits(value: Any, name: str = "logits") -> np.ndarray:
    """Logits of some samples as float64, shape (n, c); a vector is one column."""
    logits = as_array(value, name).astype(np.float64)
    if logits.ndim == 1:
        logits = logits[:, None]
    if logits.ndim != 2:
        language = " Of a language model: pass loss_fn='causal_lm'." if logits.ndim == 3 else ""
        raise InvalidData(f"{name}: logits have the shape (samples, outputs); these have {logits.shape}.{language}")
    if not logits.size:
        raise InvalidData(f"{name}: there are no samples; a measure of an empty split has no meaning.")
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(1))[0])
        raise InvalidData(f"{name}: the logits of sample {row} hold NaN or infinity.")
    return logits


def as_labels(value: Any, logits: np.ndarray) -> tuple[np.ndarray, Task]:
    """Labels that fit the logits, and which task they say this is."""
    labels = as_array(value, "labels")
    n, outputs = logits.shape
    if len(labels) != n:
        raise InvalidData(f"There are {n} samples of logits and {len(labels)} labels.")
    if labels.ndim == 1 and outputs > 1:
        return _class_indices(labels, outputs), "classes"
    if labels.shape not in ((n, outputs), (n,)):
        raise InvalidData(
            f"Labels are class indices of shape ({n},) or 0/1 attributes of the logits' shape {logits.shape}; these "
            f"have {labels.shape}."
        )
    if not np.isin(labels, (0, 1)).all():
        if outputs > 1 and labels.ndim == 2 and labels.min() >= 0 and np.abs(labels.sum(1) - 1).max() <= SOFT:
            return labels.argmax(1), "classes"  # probabilities: the likeliest one is the right one
        several = outputs == 1 and labels.max() > 1
        why = " One column of logits cannot tell more than two classes apart." if several else ""
        raise InvalidData(f"Attributes must be 0 or 1; found {labels.min():g} … {labels.max():g}.{why}")
    return labels.reshape(n, outputs).astype(np.int64), "attributes"


def check_alike(logits: Mapping[str, np.ndarray]) -> None:
    """Every model must speak of the same samples and the same classes."""
    (first, one), *rest = logits.items()
    for name, other in rest:
        if other.shape[1] != one.shape[1]:
            raise InvalidData(
                f"The models disagree on the classes: '{first}' has {one.shape[1]} outputs, '{name}' has "
                f"{other.shape[1]}. Compare models with the same outputs: one that is retrained without a class still "
                "has an output for it."
            )
        if len(other) != len(one):
            raise InvalidData(f"'{first}' has logits of {len(one)} samples and '{name}' of {len(other)}.")


def log_probabilities(logits: np.ndarray, task: Task) -> np.ndarray:
    """log p: of every class, shape (n, c); of each attribute being 0 and being 1, shape (n, a, 2)."""
    if task == "classes":
        return log_softmax(logits, axis=1)
    return np.stack([log_expit(-logits), log_expit(logits)], axis=-1)


def confidences(logits: Any, labels: Any, task: Task | None = None) -> np.ndarray:
    """φ = log p_y − log(1 − p_y), the model's confidence in the true label, shape (n,).

    With classes it is z_y − log Σ_{j≠y} exp z_j, which does not round p to 1 first. Attributes are independent: φ is
    that of all of them together, log p − log(1 − p) with log p = Σ_a log p(y_a).

    Args:
        task: None lets the labels tell; those who have checked both already name it.
    """
    if task is None:
        logits = as_logits(logits)
        labels, task = as_labels(labels, logits)
    if task == "classes":
        rows = np.arange(len(logits))
        others = logits.copy()
        others[rows, labels] = -np.inf
        top = others.max(1)
        return logits[rows, labels] - top - np.log(np.exp(others - top[:, None]).sum(1))
    if logits.shape[1] == 1:
        return np.where(labels[:, 0] == 1, logits[:, 0], -logits[:, 0])
    # log(1 − Π_a p_a), by −expm1: Σ log p_a is near 0 where the model is sure of everything
    joint = log_expit(np.where(labels == 1, logits, -logits)).sum(1)
    return joint - np.log(-np.expm1(np.minimum(joint, -np.finfo(np.float64).tiny)))


def hits(logits: np.ndarray, labels: np.ndarray, task: Task) -> np.ndarray:
    """Which predictions are right: 1 or 0 a sample, with attributes the share of them, shape (n,)."""
    if task == "classes":
        return (logits.argmax(1) == labels).astype(np.float64)
    return ((logits > 0) == (labels == 1)).mean(1)


def _class_indices(labels: np.ndarray, outputs: int) -> np.ndarray:
    if labels.dtype.kind == "f" and (broken := labels != np.round(labels)).any():
        raise InvalidData(f"Class indices are whole numbers 0 … {outputs - 1}; one of these is {labels[broken][0]:g}.")
    low, high = labels.min(), labels.max()
    if low < 0 or high >= outputs:
        raise InvalidData(
            f"The logits have {outputs} columns, so labels lie in 0 … {outputs - 1}; found {low:g} … {high:g}. Logits "
            "of the wrong width, or of a model without the forgotten class?"
        )
    return labels.astype(np.int64)


def as_array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value  # numpy knows no bfloat16
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidData(f"{name}: an array of numbers is needed, with rows of one length ({error}).") from error
    if array.dtype.kind not in "biuf":
        raise InvalidData(f"{name}: numbers are needed, not {array.dtype}.")
    if not array.ndim:
        raise InvalidData(f"{name}: one entry a sample is needed, not a single number.")
    return array
