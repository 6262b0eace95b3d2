"""KLoM: how far the erased models' margins are distributed from the retrained models', sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics.margins import as_models

EMPTY = 1e-5  # what an empty bin of the reference counts as; the published choice
CHUNK = 2**22  # histogram entries and bin numbers held at a time


@dataclass(frozen=True, eq=False)
class Klom:
    """KLoM of every sample, and what retrained models among themselves give.

    Attributes:
        values: D_KL of erased from retrained models, shape (k,).
        floor_values: the same with other retrained models in the erased models' place, shape (k,).
        models: h, how many models are on each side of every divergence.
    """

    values: np.ndarray
    floor_values: np.ndarray
    models: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def percentile95(self) -> float:
        return float(np.percentile(self.values, 95))

    @property
    def floor_mean(self) -> float:
        return float(self.floor_values.mean())

    @property
    def floor_percentile95(self) -> float:
        return float(np.percentile(self.floor_values, 95))

    def __str__(self) -> str:
        return f"{self.mean:.2f} (floor {self.floor_mean:.2f})"


def klom(erased: Any, retrained: Any, bins: int = 20, clip: float = 100.0, *, seed: int = 0) -> Klom:
    """KL divergence of margins, with the floor that it has between retrained models.

    Georgiev et al. 2024, "Attribute-to-Delete: Machine Unlearning via Datamodel Matching". For each sample, the margins
    φ of h erased and of h retrained models, clipped to ±clip, are counted in equally wide bins between their joint
    minimum and maximum; with the shares p of the erased and q of the retrained models,

        KLoM = D_KL(p ‖ q) = Σ_b p_b log(p_b / q_b),      empty q_b counted as 10⁻⁵.

    *Floor.* From few models a histogram is rough, and two sets of *retrained* models are not 0 apart either: the
    smaller h, the further, 11.5 at most (one set where the other has nothing). So only numbers of one h compare. The
    retrained models are halved at random; one half is the reference, which both the other half (the floor) and as many
    erased models (the value) are held against, h = min(⌊m'/2⌋, m) of each. Read the value against the floor.

    Args:
        erased: φ of m ≥ 2 models that had the samples erased, shape (m, k).
        retrained: φ of m' ≥ 4 models that never saw them, shape (m', k).
        bins, clip: 20 and 100, as published.
        seed: which models make up the halves.
    """
    erased, retrained = as_models(erased, "erased"), as_models(retrained, "retrained")
    if erased.shape[1] != retrained.shape[1]:
        raise InvalidData(
            f"Both sides must hold the same samples, as columns; erased has {erased.shape[1]} and retrained "
            f"{retrained.shape[1]}."
        )
    if len(erased) < 2 or len(retrained) < 4:
        raise InvalidData(
            "klom needs at least 2 erased and 4 retrained models, the latter in halves that give the floor; there are "
            f"{len(erased)} and {len(retrained)}."
        )
    if bins < 2 or bins != int(bins):
        raise InvalidSetting(f"bins must be a whole number, 2 or more, for one bin holds everything; not {bins!r}.")
    if not 0 < clip < np.inf:
        raise InvalidSetting(f"clip is the largest margin told apart, a finite number above 0; not {clip!r}.")
    models = min(len(retrained) // 2, len(erased))
    generator = np.random.default_rng(seed)
    chosen = erased[generator.permutation(len(erased))[:models]]
    order = generator.permutation(len(retrained))
    reference, other = retrained[order[:models]], retrained[order[models : 2 * models]]
    samples, width = erased.shape[1], max(1, CHUNK // (2 * max(bins, models)))
    values, floor = np.empty(samples), np.empty(samples)
    for start in range(0, samples, width):
        part = slice(start, start + width)
        values[part] = _divergence(chosen[:, part], reference[:, part], bins, clip)
        floor[part] = _divergence(other[:, part], reference[:, part], bins, clip)
    return Klom(values, floor, models)


def _divergence(first: np.ndarray, second: np.ndarray, bins: int, clip: float) -> np.ndarray:
    """D_KL of the histogram of `first` from that of `second`, column by column, shape (k,)."""
    first, second = np.clip(first, -clip, clip), np.clip(second, -clip, clip)
    low = np.minimum(first.min(0), second.min(0))
    span = np.maximum(first.max(0), second.max(0)) - low
    p, q = (_shares(side, low, span, bins) for side in (first, second))
    q = np.where(q == 0, EMPTY, q)
    return (p * np.log(np.where(p == 0, q, p) / q)).sum(1)  # 0 log 0 = 0


def _shares(values: np.ndarray, low: np.ndarray, span: np.ndarray, bins: int) -> np.ndarray:
    """Share of each column's values in each bin, shape (k, bins)."""
    models, samples = values.shape
    # a column that is constant has one place only, and any bin may be it
    place = np.minimum((values - low) * (bins / np.where(span > 0, span, 1.0)), bins - 1).astype(np.int64)
    counts = np.bincount((place + bins * np.arange(samples)).ravel(), minlength=bins * samples)
    return counts.reshape(samples, bins) / models
