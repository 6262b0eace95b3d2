"""Coordinates to compute in: features shifted and scaled, so that their squares neither cancel nor overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

LOOKED_AT = 10_000  # samples that choose the coordinates


@dataclass(frozen=True)
class Coordinates:
    """x̃ = ((x − center)/scale, 1), and θ̃ so that x̃ᵀθ̃ = xᵀw + b.

    Which coordinates are chosen changes a result by rounding only. They are coarse on purpose: scales are powers of
    two and centers whole multiples of them, so that they say nothing of a single sample, which exact means would.
    """

    center: np.ndarray
    scale: np.ndarray
    intercept: bool

    @classmethod
    def choose(cls, x: Any, *, intercept: bool, shiftable: bool) -> Coordinates:
        """`shiftable`: whether a shift of the features can be made good by the intercept, that is, at no penalty."""
        step = max(1, x.shape[0] // LOOKED_AT)
        some = x[::step]
        if sparse.issparse(some):
            square = np.asarray(some.multiply(some).mean(axis=0), dtype=np.float64).ravel()
            return cls(np.zeros(x.shape[1]), power_of_two(np.sqrt(square)), intercept)
        some = np.asarray(some, dtype=np.float64)
        mean = some.mean(axis=0)
        if not (intercept and shiftable):
            return cls(np.zeros(x.shape[1]), power_of_two(np.sqrt((some**2).mean(axis=0))), intercept)
        spread = some.std(axis=0)
        scale = power_of_two(np.where(spread > 1e-9 * np.abs(mean), spread, np.abs(mean)))
        return cls(scale * np.round(mean / scale), scale, intercept)

    @property
    def width(self) -> int:
        return len(self.scale) + self.intercept

    def design(self, x: Any) -> np.ndarray:
        """x̃ of every sample, dense, float64, shape (n, width)."""
        out = np.empty((x.shape[0], self.width))
        features = out[:, : len(self.scale)]
        np.subtract(x.toarray() if sparse.issparse(x) else x, self.center, out=features)
        features /= self.scale
        if self.intercept:
            out[:, -1] = 1
        return out

    def from_sklearn(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """θ̃, shape (width, columns), of scikit-learn's (columns, d) and (columns,)."""
        coef = np.asarray(coef, dtype=np.float64)
        weights = (coef * self.scale).T
        if not self.intercept:
            return weights
        return np.vstack([weights, intercept + coef @ self.center])

    def to_sklearn(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Back to scikit-learn's coefficients and intercepts."""
        coef = theta[: len(self.scale)].T / self.scale
        if not self.intercept:
            return coef, np.zeros(theta.shape[1])
        return coef, theta[-1] - coef @ self.center

    def penalty(self, ridge: float, of_intercept: float = 0.0) -> np.ndarray:
        """The diagonal of the penalty's Hessian, shape (width,)."""
        return np.append(ridge / self.scale**2, [of_intercept] * self.intercept)

    def largest_inverse(self, inverse: np.ndarray) -> float:
        """An upper bound of λmax(T M⁻¹ Tᵀ), T: θ̃ ↦ (w, b); of a matrix of several outputs, block by block."""
        size = self.width
        blocks = inverse.reshape(size, -1, size, inverse.shape[0] // size)
        rows = self._parameters_to_sklearn(blocks)
        return eigenvalue_bound(self._parameters_to_sklearn(rows.transpose(2, 3, 0, 1)).reshape(inverse.shape))

    def largest(self, matrix: np.ndarray) -> float:
        """An upper bound of λmax of M as it is in (w, b)."""
        size = self.width
        blocks = matrix.reshape(size, -1, size, matrix.shape[0] // size)
        rows = self._gradients_to_sklearn(blocks)
        return eigenvalue_bound(self._gradients_to_sklearn(rows.transpose(2, 3, 0, 1)).reshape(matrix.shape))

    def _parameters_to_sklearn(self, blocks: np.ndarray) -> np.ndarray:
        out = blocks.copy()
        d = len(self.scale)
        out[:d] /= self.scale[:, None, None, None]
        if self.intercept:
            out[d] -= np.tensordot(self.center, out[:d], 1)
        return out

    def _gradients_to_sklearn(self, blocks: np.ndarray) -> np.ndarray:
        out = blocks.copy()
        d = len(self.scale)
        out[:d] *= self.scale[:, None, None, None]
        if self.intercept:
            out[:d] += self.center[:, None, None, None] * out[d]
        return out


def power_of_two(value: np.ndarray, above: bool = False) -> np.ndarray:
    """The nearest, or the next one `above`; 1 where there is none."""
    known = np.where(np.isfinite(value) & (value > 0), value, 1.0)
    return np.exp2(np.clip((np.ceil if above else np.round)(np.log2(known)), -500, 500))


def eigenvalue_bound(symmetric: np.ndarray) -> float:
    """Not above the smaller of two norms that are cheap to have."""
    return float(min(np.linalg.norm(symmetric), np.abs(symmetric).sum(axis=1).max()))
