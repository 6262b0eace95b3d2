"""A softmax model whose classes vanish: its sums over the classes that stay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ssse.sklearn.bound import Bound
from ssse.sklearn.loss_sums import LossSums, some_of
from ssse.sklearn.losses import Logistic, Softmax

if TYPE_CHECKING:
    from ssse.sklearn.quadratic import Quadratic


def narrowed_parameters(quadratic: Quadratic, at: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """θ over the classes that stay; of two, their difference."""
    loss = quadratic.loss
    assert isinstance(loss, Softmax)
    wide = loss.wide(at, len(at) // (loss.classes - 1))[:, stays]
    return wide[:, [1]] - wide[:, [0]] if len(stays) == 2 else Softmax(len(stays)).flat(wide)


def narrowed(quadratic: Quadratic, stays: np.ndarray, intercept: bool) -> Quadratic:
    """Of a softmax model whose other classes have no samples left: what it is over the classes that stay.

    Without class v the probabilities of the others grow to p_j/(1 − p_v) ≈ p_j + p_j p_v, which changes the slope by
    Σ s p_j p_v x̃: that sum is in the curvature, between v's intercept and class j. Second orders of p_v are left out,
    and without an intercept the first order too.
    With two classes left, scikit-learn fits one logistic model of the difference, whose penalty counts twice.
    """
    loss = quadratic.loss
    assert isinstance(loss, Softmax)
    old, new = loss.basis, Softmax(len(stays)).basis
    gone = np.setdiff1d(np.arange(loss.classes), stays)
    width = len(quadratic.theta) // (loss.classes - 1)
    slopes, grams = [], []
    for slope, gram in zip(quadratic.loss_sums.slopes, quadratic.loss_sums.grams, strict=True):
        blocks = old @ gram.reshape(width, loss.classes - 1, width, loss.classes - 1).transpose(0, 2, 1, 3) @ old.T
        full = slope.reshape(width, -1) @ old.T
        if intercept:
            full -= blocks[:, -1, :, gone].sum(axis=0)
        full = full[:, stays]
        slopes.append((full @ new).reshape(-1, 1))
        inner = new.T @ blocks[:, :, stays][:, :, :, stays] @ new
        grams.append(inner.transpose(0, 2, 1, 3).reshape(width * new.shape[1], -1))
    anchor, theta = (narrowed_parameters(quadratic, at, stays) for at in (quadratic.anchor, quadratic.theta))
    ridge = quadratic.ridge.reshape(width, -1)[:, : new.shape[1]].ravel()
    kept = [group for group in range(quadratic.groups) if quadratic.groups == 1 or group in set(stays.tolist())]
    traces = tuple(float(np.trace(gram[-new.shape[1] :, -new.shape[1] :])) for gram in grams) if intercept else None
    loss_sums = replace(
        quadratic.loss_sums,
        slopes=tuple(slopes[g] for g in kept),
        grams=tuple(grams[g] for g in kept),
        traces=some_of(traces, kept),  # x̃ ends with 1, so that its corner of the curvature has them
    )
    weights = tuple(quadratic.weights[g] for g in kept)
    narrow = replace(
        quadratic,
        loss=Softmax(len(stays)),
        theta=theta,
        anchor=anchor,
        ridge=ridge,
        loss_sums=loss_sums,
        weights=weights,
        inverse=None,
        peak=None,
        bound=Bound.none(),
    )
    return _as_difference(narrow) if len(stays) == 2 else narrow


def _as_difference(quadratic: Quadratic) -> Quadratic:
    """Two classes: ψ = ∓(θ₁ − θ₀)/√2, and scikit-learn's parameter, which θ and the anchor are already, is θ₁ − θ₀."""
    b = float(np.asarray(quadratic.loss.basis)[1, 0]) if isinstance(quadratic.loss, Softmax) else 1.0
    factor = 1 / (2 * b)  # ψ = factor · (θ₁ − θ₀)
    traces = quadratic.loss_sums.traces
    loss_sums = LossSums(
        tuple(factor * slope for slope in quadratic.loss_sums.slopes),
        tuple(factor**2 * gram for gram in quadratic.loss_sums.grams),
        largest=quadratic.loss_sums.largest,
        energy=quadratic.loss_sums.energy,
        traces=None if traces is None else tuple(factor**2 * trace for trace in traces),
    )
    return replace(quadratic, loss=Logistic(), loss_sums=loss_sums)
