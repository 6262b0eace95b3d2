"""The losses of scikit-learn's linear models: value, slope and curvature as functions of the score z = x̃ᵀθ̃."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import helmert
from scipy.special import expit, logsumexp, softmax


class Loss(ABC):
    """θ̃ of shape (width, columns) becomes a vector of `size(width)` entries for each independent column of it.

    Attributes:
        exact: the loss is quadratic, so that one step is all.
        bounded: its curvature changes by at most the factor e^|δ| where a score changes by δ (self-concordance).
    """

    name: str
    exact = False
    bounded = False
    swing: float = 1.0  # the largest change of scores that counts, over the length of (x̃ᵀΔ) as a vector

    @property
    def rows_per_sample(self) -> int:
        return 1

    def flat(self, theta: np.ndarray) -> np.ndarray:
        """(width, columns) as (size, independent columns)."""
        return theta

    def wide(self, flat: np.ndarray, width: int) -> np.ndarray:
        """The opposite."""
        return flat

    def size(self, width: int) -> int:
        return width

    @abstractmethod
    def values(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Of each sample, shape (n,)."""

    @abstractmethod
    def residuals(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """∂ℓ/∂z, shape (n, columns)."""

    @abstractmethod
    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """∂²ℓ/∂z² of each sample: a number, or what `rows` and `gram` of the same loss make use of."""

    def trace(self, curvatures: np.ndarray, weights: np.ndarray) -> float:
        """Σ wᵢ tr ∂²ℓᵢ/∂z²."""
        return float(weights @ curvatures)

    def slope(self, design: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Σ wᵢ ∇ℓᵢ, shape (size, independent columns)."""
        return self.flat(design.T @ (residuals * weights[:, None]))

    def rows(self, design: np.ndarray, curvatures: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Rows whose squares are Σ wᵢ ∇²ℓᵢ."""
        return design * np.sqrt(weights * curvatures)[:, None]

    def gram(self, design: np.ndarray, curvatures: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Σ wᵢ ∇²ℓᵢ, shape (size, size)."""
        rows = self.rows(design, curvatures, weights)
        return rows.T @ rows  # the same array twice: BLAS computes one half

    def reach(self, design: np.ndarray, inverse: np.ndarray) -> float:
        """max over samples and unit steps (in the norm of M) of the square of what the step does to the scores."""
        return float(np.einsum("ij,ij->i", design @ inverse, design).max())


class Squared(Loss):
    """½(z − y)² of each column; y of shape (n, columns)."""

    name = "squared"
    exact = bounded = True

    def values(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 0.5 * ((z - y) ** 2).sum(axis=1)

    def residuals(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return z - y

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.ones(len(z))


class Logistic(Loss):
    """log(1 + e^z) − yz, y 0 or 1."""

    name = "logistic"
    bounded = True

    def values(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, z[:, 0]) - y * z[:, 0]

    def residuals(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return expit(z) - y[:, None]

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return expit(z[:, 0]) * expit(-z[:, 0])


class SquaredHinge(Loss):
    """max(0, 1 − yz)², y −1 or 1. Its curvature jumps at the margin: the generalised Hessian takes the inner side."""

    name = "squared_hinge"

    def values(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.maximum(0, 1 - y * z[:, 0]) ** 2

    def residuals(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (-2 * y * np.maximum(0, 1 - y * z[:, 0]))[:, None]

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 2.0 * (y * z[:, 0] < 1)


@dataclass(frozen=True)
class Softmax(Loss):
    """log Σ e^z − z_y, y a class's place.

    A shift of all scores changes nothing, so θ̃ lives in the classes − 1 directions without it: θ̃ = ψBᵀ, B
    orthonormal, its columns summing to zero. A penalty keeps its form there.
    """

    classes: int
    name = "softmax"
    bounded = True
    swing: float = float(np.sqrt(2))

    @property
    def rows_per_sample(self) -> int:
        return self.classes

    @property
    def basis(self) -> np.ndarray:
        return basis(self.classes)

    def flat(self, theta: np.ndarray) -> np.ndarray:
        return (theta @ self.basis).reshape(-1, 1)

    def wide(self, flat: np.ndarray, width: int) -> np.ndarray:
        return flat.reshape(width, -1) @ self.basis.T

    def size(self, width: int) -> int:
        return width * (self.classes - 1)

    def values(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return logsumexp(z, axis=1) - z[np.arange(len(z)), y]

    def residuals(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        residuals = softmax(z, axis=1)
        residuals[np.arange(len(z)), y] -= 1
        return residuals

    def curvatures(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return softmax(z, axis=1)

    def trace(self, curvatures: np.ndarray, weights: np.ndarray) -> float:
        return float(weights @ (1 - (curvatures**2).sum(axis=1)))

    def rows(self, design: np.ndarray, curvatures: np.ndarray, weights: np.ndarray) -> np.ndarray:
        p, b = curvatures, self.basis
        factors = np.sqrt(weights[:, None] * p)[:, :, None] * (b - (p @ b)[:, None, :])  # its square: Bᵀ(diag p − ppᵀ)B
        return np.einsum("ija,ib->ijba", factors, design, optimize=True).reshape(-1, self.size(design.shape[1]))

    def gram(self, design: np.ndarray, curvatures: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Block by block: by rows it would be `classes` times the arithmetic."""
        p, b, width = curvatures, self.basis, design.shape[1]
        mean = p @ b
        out = np.empty((width, self.classes - 1, width, self.classes - 1))
        for i in range(self.classes - 1):
            for j in range(i, self.classes - 1):
                both = weights * (p @ (b[:, i] * b[:, j]) - mean[:, i] * mean[:, j])
                out[:, i, :, j] = out[:, j, :, i] = design.T @ (design * both[:, None])
        return out.reshape(self.size(width), -1)

    def reach(self, design: np.ndarray, inverse: np.ndarray) -> float:
        width, b = design.shape[1], self.basis
        inner = self.classes - 1
        blocks = inverse.reshape(width, inner, width, inner).transpose(0, 1, 3, 2).reshape(width, -1)
        largest, step = 0.0, max(1, (1 << 23) // (inner * inner * width))
        for first in range(0, len(design), step):
            some = design[first : first + step]
            half = (some @ blocks).reshape(len(some), inner * inner, width)
            pairs = b @ (half @ some[:, :, None]).reshape(len(some), inner, inner) @ b.T
            own = np.einsum("ijj->ij", pairs)
            largest = max(largest, float((own[:, :, None] + own[:, None, :] - 2 * pairs).max()))
        return largest


@lru_cache
def basis(classes: int) -> np.ndarray:
    """Orthonormal, shape (classes, classes − 1), every column summing to zero."""
    return np.ascontiguousarray(helmert(classes).T)


def loss_named(name: str, classes: int) -> Loss:
    if name == Softmax.name:
        return Softmax(classes)
    return {kind.name: kind for kind in (Squared, Logistic, SquaredHinge)}[name]()
