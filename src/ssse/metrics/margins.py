"""Confidences φ of one model on some samples, shape (k,), or of m models, shape (m, k). Checked once, here."""

from __future__ import annotations

from typing import Any

import numpy as np

from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics.scores import as_array


def as_models(value: Any, name: str, gaps: bool = False) -> np.ndarray:
    """φ of m models on k samples, float64, shape (m, k); NaN only where gaps are allowed."""
    array = _numbers(value, name)
    if array.ndim != 2:
        hint = f" For one model pass {name}[None]." if array.ndim == 1 else ""
        raise InvalidData(f"{name}: confidences have the shape (models, samples); these have {array.shape}.{hint}")
    bad = np.isinf(array) if gaps else ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InvalidData(f"{name}: the confidence of model {row} in sample {column} is {array[row, column]}.")
    return array


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InvalidSetting(
            f"level is the chance of a false alarm, between 0 and 1, for instance 0.05; not {level!r}."
        )


def as_vector(value: Any, name: str) -> np.ndarray:
    """φ of one model on k samples, float64, shape (k,)."""
    array = _numbers(value, name)
    if array.ndim != 1:
        raise InvalidData(f"{name}: one confidence a sample is needed, shape (samples,); these have {array.shape}.")
    if not np.isfinite(array).all():
        raise InvalidData(f"{name}: the confidence in sample {int((~np.isfinite(array)).argmax())} is NaN or infinite.")
    return array


def _numbers(value: Any, name: str) -> np.ndarray:
    array = as_array(value, name).astype(np.float64)
    if not array.size:
        raise InvalidData(f"{name}: there are no samples; an attack needs at least one on each side.")
    return array
