"""𝔻 and γ: how alike two multi-attribute models perform, attribute by attribute, in AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ssse.errors import InvalidData
from ssse.metrics.scores import Flagged, as_labels, as_logits, check_alike

NOTHING_TO_COMPARE = "no difference to either model: 0/0 counts as 0.5"


@dataclass(frozen=True)
class AttributeAuc:
    """α of one model on one set of samples.

    Attributes:
        values: the AUC of each attribute, shape (a,); by the paper's convention 0 where it is absent.
        absent: attributes without a positive or without a negative sample, whose AUC is not defined.
        constant: attributes whose score is the same for every sample, so that the AUC is a tie, 0.5.
    """

    values: np.ndarray
    absent: tuple[int, ...]
    constant: tuple[int, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(
            f"{len(which)} of {len(self.values)} attributes {what}"
            for which, what in (
                (self.absent, "have samples of one kind only: their AUC counts as 0"),
                (self.constant, "have the same score for every sample: their AUC is 0.5"),
            )
            if which
        )


def attribute_auc(scores: Any, labels: Any, name: str = "scores") -> AttributeAuc:
    """α_i, the area under the ROC curve of every attribute.

    Args: scores: shape (k, a), any monotone function of the probabilities. labels: 0/1, shape (k, a).
    Raises: InvalidData: class indices instead of attributes; no attribute with both kinds of samples; scores
        that do not depend on the sample at all.
    """
    scores = as_logits(scores, name)
    truth, task = as_labels(labels, scores)
    if task != "attributes":
        raise InvalidData(
            "γ compares attributes, with labels of 0 and 1 in the shape of the scores; these are class indices. For "
            "classes use normalized_confusion_distance."
        )
    kinds = truth.min(0) != truth.max(0)
    if not kinds.any():
        raise InvalidData(
            f"Every attribute is the same for all {len(truth)} samples (one class only), so that no AUC is defined. "
            "Measure on more samples."
        )
    varies = scores.min(0) != scores.max(0)
    if not varies[kinds].any():
        raise InvalidData(f"{name}: the scores are constant, the same for every sample; this model says nothing.")
    # Pairs in the right order, a tie counting half: the ranks of the positives, less those among themselves.
    positive, negative = truth.sum(0), (1 - truth).sum(0)
    right = (rankdata(scores, axis=0) * truth).sum(0) - positive * (positive + 1) / 2
    values = np.where(kinds, right / np.maximum(positive * negative, 1), 0.0)
    absent = tuple(np.flatnonzero(~kinds).tolist())
    return AttributeAuc(values, absent, tuple(np.flatnonzero(kinds & ~varies).tolist()))


def performance_similarity(first: Any, second: Any, labels: Any) -> Flagged:
    """𝔻(θ₁, θ₂) = Σ_i |α_i(θ₁) − α_i(θ₂)| over the attributes (the paper's Definition 4.1); 0 is alike.

    Args: first, second: scores of the two models on the same samples, shape (k, a). labels: 0/1, shape (k, a).
    """
    check_alike({"first": as_logits(first, "first"), "second": as_logits(second, "second")})
    one, other = attribute_auc(first, labels, "first"), attribute_auc(second, labels, "second")
    flags = dict.fromkeys(one.flags + other.flags)
    return Flagged(np.abs(one.values - other.values).sum(), *flags)


def similarity_ratio(erased: Any, original: Any, retrained: Any, labels: Any) -> Flagged:
    """γ_S(θ̂; θ*, θ₋S) = 𝔻(θ̂, θ*) / (𝔻(θ̂, θ*) + 𝔻(θ̂, θ₋S)), on the forgotten samples (Definition 4.2).

    0: the erased model ranks the forgotten samples as the original does; 1: as the retrained one does. An absent
    attribute's AUC is 0; where the erased model differs from neither, the ratio is 0.5. Both are flagged (`.flags`).

    Args: scores of the three models on S, shape (k, a). labels: 0/1, shape (k, a).
    """
    scores = {"erased": erased, "original": original, "retrained": retrained}
    check_alike({name: as_logits(value, name) for name, value in scores.items()})
    return similarity_of(*(attribute_auc(value, labels, name) for name, value in scores.items()))


def similarity_of(erased: AttributeAuc, original: AttributeAuc, retrained: AttributeAuc) -> Flagged:
    """γ from the AUCs of the three models on S."""
    flags = dict.fromkeys(erased.flags + original.flags + retrained.flags)
    away = float(np.abs(erased.values - original.values).sum())
    remaining = float(np.abs(erased.values - retrained.values).sum())
    return share(away, remaining, *flags)


def share(part: float, rest: float, *flags: str) -> Flagged:
    """part / (part + rest), in [0, 1]; 0/0 is 0.5 and flagged."""
    if part + rest == 0:
        return Flagged(0.5, *flags, NOTHING_TO_COMPARE)
    return Flagged(part / (part + rest), *flags)
