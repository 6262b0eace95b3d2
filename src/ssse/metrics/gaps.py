"""Differences to the retrained models: in accuracy per split, and in predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from ssse.errors import InvalidData
from ssse.metrics.scores import Task, as_labels, as_logits, check_alike, hits, log_probabilities


def accuracy(logits: Any, labels: Any) -> float:
    """The share of right predictions, 0 … 1; with attributes the mean over them, as in the paper's Table 1."""
    logits = as_logits(logits)
    truth, task = as_labels(labels, logits)
    return float(hits(logits, truth, task).mean())


def mean_gap(model: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """The mean over the splits of |accuracy − that of the retrained model|, in the unit of the accuracies."""
    if not model or model.keys() != retrained.keys():
        raise InvalidData(
            f"Both models need accuracies on the same splits; found {sorted(model)} and {sorted(retrained)}."
        )
    return float(np.mean([abs(model[split] - retrained[split]) for split in model]))


def tug_of_war(model: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """ToW = Π over forgotten, retained and test of (1 − |accuracy − that of the retrained model|); 1 is retrained.

    Zhao, Kurmanji, Barbulescu, Triantafillou, Triantafillou: What makes unlearning hard and what to do about it
    (NeurIPS 2024). Accuracies in 0 … 1, on "forgotten", "retained" and "test"; the test set is whole, with the
    forgotten class in it.
    """
    splits = ("forgotten", "retained", "test")
    missing = [split for split in splits if split not in model or split not in retrained]
    if missing:
        raise InvalidData(f"ToW needs the accuracies on {', '.join(splits)}; missing: {', '.join(missing)}.")
    if any(not 0 <= accuracies[split] <= 1 for accuracies in (model, retrained) for split in splits):
        raise InvalidData("ToW needs accuracies between 0 and 1, not per cent.")
    return float(np.prod([1 - abs(model[split] - retrained[split]) for split in splits]))


def divergences(logits: Any, references: Sequence[Any], labels: Any) -> np.ndarray:
    """KL(p̄ ‖ p) of every sample, in nats, shape (n,): p̄ is the average prediction of the retrained models.

    With attributes, summed over them. The labels only say which task it is. Predictions that agree in the class may
    differ much in the probabilities: this sees what accuracy cannot.
    """
    scores = as_logits(logits)
    others = [as_logits(reference, "reference") for reference in references]
    if not others:
        raise InvalidData("The divergence needs at least one retrained model to compare with.")
    check_alike({"logits": scores, **{f"reference {i}": other for i, other in enumerate(others)}})
    _, task = as_labels(labels, scores)
    return divergence(log_probabilities(scores, task), average_prediction(others, task))


def average_prediction(logits: Sequence[np.ndarray], task: Task) -> np.ndarray:
    """log p̄ with p̄ the mean of the models' probabilities; shaped as `log_probabilities`."""
    return logsumexp([log_probabilities(one, task) for one in logits], axis=0) - np.log(len(logits))


def divergence(log_p: np.ndarray, log_reference: np.ndarray) -> np.ndarray:
    """Σ p̄ (log p̄ − log p) over all but the first axis, shape (n,)."""
    terms = np.exp(log_reference) * (log_reference - log_p)
    return np.maximum(terms.reshape(len(terms), -1).sum(1), 0.0)  # rounding may leave −1e-17
