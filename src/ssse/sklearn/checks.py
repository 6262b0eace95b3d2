"""What must hold of the samples of a request before a step is tried."""

from __future__ import annotations

from typing import Any

import numpy as np

from ssse.errors import InvalidData
from ssse.sklearn.adapters import ClassCounts, ClassifierAdapter
from ssse.sklearn.composition import Composition
from ssse.sklearn.sums import TrainingSums


def check_counts(composition: Composition, sums: TrainingSums, after: list[ClassCounts], k: int) -> None:
    """No class may have fewer samples than go, and something must remain."""
    for adapter, before, remaining in zip(composition.adapters, sums.class_counts, after, strict=True):
        for place in np.flatnonzero(remaining.counts < 0):
            of = f" of class {adapter.classes.tolist()[place]!r}" if isinstance(adapter, ClassifierAdapter) else ""
            there = before.counts[place]
            raise InvalidData(
                f"{there} samples{of} are left, and {there - remaining.counts[place]} are to be erased: these were not "
                "all in the training data."
            )
    if k >= sums.samples:
        raise InvalidData(f"All {sums.samples} samples that are left would be erased; something must remain.")


def too_long(sums: TrainingSums, design: np.ndarray) -> str:
    """Why not, if a sample is longer than any that there was."""
    largest = max(quadratic.loss_sums.largest for quadratic in sums.all_quadratics)
    longer = np.flatnonzero(np.einsum("ij,ij->i", design, design) > largest)
    if not len(longer):
        return ""
    return (
        f"{len(longer)} of the samples (first at place {longer[0]}) are longer than any that the eraser was fitted to: "
        "they were not in the training data, or went through another preprocessing."
    )


def check_weighted(sums: TrainingSums, sample_weight: Any) -> None:
    if sums.weighted != (sample_weight is not None):
        given = "none were" if sums.weighted else "some were"
        raise InvalidData(f"sample_weight must be given as it was for fit; {given} given now.")


def sample_weights(given: Any, samples: int) -> np.ndarray:
    if given is None:
        return np.ones(samples)
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidData("sample_weight must hold numbers.") from None
    if weights.ndim == 0:
        weights = np.full(samples, float(weights))
    if weights.shape != (samples,):
        raise InvalidData(f"sample_weight has the shape {weights.shape}, for {samples} samples.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidData("sample_weight must be finite and not negative.")
    return weights
