"""Sums of a loss's slopes and curvatures over samples that lie in groups, and the labels they are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ssse.sklearn.linalg import plus_squares


@dataclass(frozen=True)
class Labels:
    """What one linear model is told of some samples: values as its loss takes them, weights sᵢ, and groups."""

    values: np.ndarray
    weights: np.ndarray
    groups: np.ndarray | None = None

    def of(self, group: int) -> slice | np.ndarray:
        return slice(None) if self.groups is None else np.flatnonzero(self.groups == group)


@dataclass(frozen=True)
class LossSums:
    """Of each group: slopes (size, columns), curvatures (size, size); or, of few samples, rows whose squares those are.

    `traces`: Σ sᵢ tr ∂²ℓᵢ/∂z² of each group; None where it is not known (older versions did not keep it).
    `largest`: max ‖x̃ᵢ‖² of all samples. `energy`: Σ sᵢ‖∂ℓᵢ/∂z‖² of all there ever were.
    """

    slopes: tuple[np.ndarray, ...]
    grams: tuple[np.ndarray, ...] = ()
    rows: tuple[np.ndarray, ...] = ()
    largest: float = 0.0
    energy: float = 0.0
    traces: tuple[float, ...] | None = None

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            tuple(mine + theirs for mine, theirs in zip(self.slopes, other.slopes, strict=True)),
            tuple(mine + theirs for mine, theirs in zip(self.grams, other.grams, strict=True)),
            largest=max(self.largest, other.largest),
            energy=self.energy + other.energy,
            traces=self._traces(other, 1.0),
        )

    def take_in(self, other: LossSums) -> LossSums:
        """The same in place, for sums that nobody else holds."""
        for mine, theirs in zip((*self.slopes, *self.grams), (*other.slopes, *other.grams), strict=True):
            mine += theirs
        largest, energy = max(self.largest, other.largest), self.energy + other.energy
        return replace(self, largest=largest, energy=energy, traces=self._traces(other, 1.0))

    def __sub__(self, other: LossSums) -> LossSums:
        if other.grams:
            grams = tuple(mine - theirs for mine, theirs in zip(self.grams, other.grams, strict=True))
        else:
            grams = tuple(plus_squares(mine, rows, -1.0) for mine, rows in zip(self.grams, other.rows, strict=True))
        slopes = tuple(mine - theirs for mine, theirs in zip(self.slopes, other.slopes, strict=True))
        return LossSums(slopes, grams, largest=self.largest, energy=self.energy, traces=self._traces(other, -1.0))

    def _traces(self, other: LossSums, sign: float) -> tuple[float, ...] | None:
        if self.traces is None or other.traces is None:
            return None
        return tuple(mine + sign * theirs for mine, theirs in zip(self.traces, other.traces, strict=True))


def some_of(traces: tuple[float, ...] | None, groups: Sequence[int] | np.ndarray) -> tuple[float, ...] | None:
    """Those of these groups."""
    return None if traces is None else tuple(traces[g] for g in groups)
