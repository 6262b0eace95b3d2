"""Symmetric matrices: inverses, their change by a few rows, largest eigenvalues."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from scipy.linalg import eigh, get_lapack_funcs
from scipy.sparse.linalg import ArpackError, eigsh

from ssse.errors import NotPositiveDefinite, PrecisionLost
from ssse.sklearn.coordinates import power_of_two

SMALL = 100  # parameters up to which eigenvalues are computed at once
COARSE = 1e-3  # relative, of an eigenvalue that is far from where it matters
CLEARLY_BELOW = 0.9
LEAST_CONDITION = 1e-14  # reciprocal; below, the data does not determine the parameters


def invert(matrix: np.ndarray, peak: np.ndarray | None = None) -> np.ndarray:
    """By Cholesky; refuses what the data does not determine.

    Which is judged where the diagonal is 1, or once was 1 (`peak`): a feature that is small beside its penalty is well
    determined, and one whose samples all went is not.
    """
    root = power_of_two(np.sqrt(np.diagonal(matrix).clip(0) if peak is None else peak))
    matrix = matrix / root
    matrix /= root[:, None]
    potrf, pocon, potri = get_lapack_funcs(("potrf", "pocon", "potri"), (matrix,))
    factor, info = potrf(matrix, lower=1)
    if info > 0:
        raise NotPositiveDefinite("the samples do not determine the coefficients (features that depend on each other?)")
    condition, _ = pocon(factor, float(np.abs(matrix).sum(axis=0).max()), uplo="L")
    if condition < LEAST_CONDITION:
        raise PrecisionLost(
            f"the samples hardly determine the coefficients: the reciprocal condition number is {condition:.1e}"
        )
    inverse, _ = potri(factor, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    inverse /= root
    inverse /= root[:, None]
    return inverse


def plus_squares(matrix: np.ndarray, rows: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """matrix + factor·RᵀR. By numpy alone: scipy brings threads of its own, and both wait for each other's."""
    out = rows.T @ rows
    out *= factor
    out += matrix
    return out


def downdate(inverse: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """(M − RᵀR)⁻¹ = M⁻¹ + M⁻¹Rᵀ(I − K)⁻¹RM⁻¹ and the largest eigenvalue of K = RM⁻¹Rᵀ."""
    if not len(rows):
        return inverse, 0.0
    half = rows @ inverse
    values, vectors = np.linalg.eigh(half @ rows.T)
    largest = float(values[-1])
    if not largest < 1:
        return inverse, largest
    turned = (vectors / np.sqrt(1 - values)).T @ half
    return plus_squares(inverse, turned), max(largest, 0.0)


def largest_eigenvalue(symmetric: np.ndarray) -> float:
    """The largest eigenvalue, 0 at least."""
    size = len(symmetric)
    if not size:
        return 0.0
    return max(0.0, float(eigh(symmetric, eigvals_only=True, subset_by_index=[size - 1, size - 1])[0]))


def largest_generalized_eigenvalue(a: np.ndarray, b: np.ndarray, inverse: np.ndarray) -> float:
    """λmax(b⁻¹ a), not below it: by Lanczos, which may stop short, checked by Cholesky; else by all eigenvalues.

    To three digits, which cost a sixth of all of them; where they would leave open whether it is below 1, to all.
    """
    size = len(a)
    if not a.any():
        return 0.0
    if size > SMALL:
        (potrf,) = get_lapack_funcs(("potrf",), (a,))
        start = np.random.default_rng(0).normal(size=size)  # fixed: the same request must give the same numbers
        for tolerance, most in ((COARSE, CLEARLY_BELOW), (0.0, np.inf)):
            with suppress(ArpackError):
                options = {"v0": start, "Minv": inverse, "tol": tolerance}  # its stubs say that tol is whole
                found = float(eigsh(a, 1, b, **options, return_eigenvectors=False)[0])  # type: ignore[arg-type]
                largest = found * (1 + max(2 * tolerance, 1e-9)) + 1e-13
                if largest < most and potrf(largest * b - a, lower=1)[1] == 0:
                    return largest
    return max(0.0, float(eigh(a, b, eigvals_only=True, subset_by_index=[size - 1, size - 1])[0]))


def length(vector: np.ndarray, image: np.ndarray) -> float:
    """√(v·Mv), of a vector and what a matrix makes of it."""
    return float(np.sqrt(max(float((vector * image).sum()), 0.0)))
