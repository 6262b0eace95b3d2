"""One linear model's loss around where it stands: slope, curvature, and the step to the minimum without some samples.

    L(θ) = Σ_g w_g Σ_{i∈g} sᵢ ℓᵢ(θ) + ½ θᵀ diag(ridge) θ

Samples lie in groups where class weights depend on how many there are of each class, for these change with every
request; else there is one group. What is held is the sum of slopes and of curvatures of every group, no samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ssse.errors import NotPositiveDefinite
from ssse.sklearn.bound import Bound, coarse
from ssse.sklearn.coordinates import Frame, power_of_two
from ssse.sklearn.linalg import (
    downdate,
    invert,
    length,
    plus_squares,
    top,
    top_pencil,
)
from ssse.sklearn.losses import Logistic, Loss, Softmax

DIRECT = 1.0  # rows over parameters, from which on a new factor is cheaper than changing the inverse
NEARLY_ALL = 0.9999  # of leverage, from which on changing the inverse loses too many digits to see what is singular
ROUNDING = 1e-11  # of a sum of squares, that subtracting some of them again may leave
PLACES = 4  # last places that a sum may be off


@dataclass(frozen=True)
class Labels:
    """What one head is told of some samples: values as its loss takes them, weights sᵢ, and groups."""

    values: np.ndarray
    weights: np.ndarray
    groups: np.ndarray | None = None

    def of(self, group: int) -> slice | np.ndarray:
        return slice(None) if self.groups is None else np.flatnonzero(self.groups == group)


@dataclass(frozen=True)
class Sums:
    """Of each group: slopes (size, columns), curvatures (size, size); or, of few samples, rows whose squares those are.

    `largest`: max ‖x̃ᵢ‖² of all samples. `energy`: Σ sᵢ‖∂ℓᵢ/∂z‖² of all there ever were.
    """

    slopes: tuple[np.ndarray, ...]
    grams: tuple[np.ndarray, ...] = ()
    rows: tuple[np.ndarray, ...] = ()
    largest: float = 0.0
    energy: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            tuple(mine + theirs for mine, theirs in zip(self.slopes, other.slopes, strict=True)),
            tuple(mine + theirs for mine, theirs in zip(self.grams, other.grams, strict=True)),
            largest=max(self.largest, other.largest),
            energy=self.energy + other.energy,
        )

    def take_in(self, other: Sums) -> Sums:
        """The same in place, for sums that nobody else holds."""
        for mine, theirs in zip((*self.slopes, *self.grams), (*other.slopes, *other.grams), strict=True):
            mine += theirs
        return replace(self, largest=max(self.largest, other.largest), energy=self.energy + other.energy)

    def __sub__(self, other: Sums) -> Sums:
        if other.grams:
            grams = tuple(mine - theirs for mine, theirs in zip(self.grams, other.grams, strict=True))
        else:
            grams = tuple(plus_squares(mine, rows, -1.0) for mine, rows in zip(self.grams, other.rows, strict=True))
        slopes = tuple(mine - theirs for mine, theirs in zip(self.slopes, other.slopes, strict=True))
        return Sums(slopes, grams, largest=self.largest, energy=self.energy)


@dataclass(frozen=True)
class Head:
    """One loss with its parameters.

    Attributes:
        theta: where the model is, shape (size, columns). anchor: where slopes and curvatures are taken.
        ridge: the penalty's diagonal, of one sample if `per_sample` (it then grows with their number).
        weights: w_g in force. inverse: M⁻¹, of M = Σ w_g grams + ridge; None while samples are still coming in.
        peak: of M's diagonal, the largest there ever was; what the sums lost by rounding goes by it.
        bound: how far all this can be from the truth.
    """

    loss: Loss
    theta: np.ndarray
    anchor: np.ndarray
    ridge: np.ndarray
    sums: Sums
    per_sample: bool = False
    weights: tuple[float, ...] = (1.0,)
    samples: int = 0
    inverse: np.ndarray | None = None
    peak: np.ndarray | None = None
    bound: Bound = field(default_factory=Bound)

    @classmethod
    def empty(cls, loss: Loss, theta: np.ndarray, ridge: np.ndarray, groups: int = 1, per_sample: bool = False) -> Head:
        """`theta`: (width, columns); `ridge`: (width,)."""
        size = loss.size(len(theta))
        flat = loss.flat(theta)
        sums = Sums(
            tuple(np.zeros_like(flat) for _ in range(groups)), tuple(np.zeros((size, size)) for _ in range(groups))
        )
        return cls(loss, flat, flat, np.repeat(ridge, size // len(ridge)), sums, per_sample)

    def emptied(self) -> Head:
        """Where it is, and without any samples yet."""
        slopes, grams = (tuple(np.zeros_like(part) for part in parts) for parts in (self.sums.slopes, self.sums.grams))
        return replace(self, anchor=self.theta, sums=Sums(slopes, grams), inverse=None, bound=Bound())

    @property
    def groups(self) -> int:
        return len(self.sums.slopes)

    def scores(self, design: np.ndarray, at: np.ndarray) -> np.ndarray:
        return design @ self.loss.wide(at, design.shape[1])

    def measure(self, design: np.ndarray, labels: Labels, few: bool = False) -> Sums:
        """The sums of some samples, at the anchor; `few`: as rows."""
        z = self.scores(design, self.anchor)
        slopes, grams, rows, energy = [], [], [], 0.0
        for group in range(self.groups):
            mine = labels.of(group)
            x, s = design[mine], labels.weights[mine]
            residuals = self.loss.residuals(z[mine], labels.values[mine])
            slopes.append(self.loss.slope(x, residuals, s))
            energy += float(s @ (residuals**2).sum(axis=1))
            curvatures = self.loss.curvatures(z[mine], labels.values[mine])
            if few:
                rows.append(self.loss.rows(x, curvatures, s))
            else:
                grams.append(self.loss.gram(x, curvatures, s))
        largest = coarse(float(np.einsum("ij,ij->i", design, design).max(initial=0.0)))
        return Sums(tuple(slopes), tuple(grams), tuple(rows), largest, energy)

    def slopes_at(self, design: np.ndarray, labels: Labels) -> list[np.ndarray]:
        """Of each group, where the model is."""
        residuals = self.loss.residuals(self.scores(design, self.theta), labels.values)
        parts = [labels.of(group) for group in range(self.groups)]
        return [self.loss.slope(design[mine], residuals[mine], labels.weights[mine]) for mine in parts]

    def anchored(self, slopes: tuple[np.ndarray, ...]) -> Head:
        """Where the model is, with slopes that were measured there; the curvature is still that of the old anchor."""
        head = replace(self, anchor=self.theta, sums=replace(self.sums, slopes=slopes))
        gradient = head.gradient()
        left = length(gradient, head.solve(gradient)) + _rounding(head, head.theta)
        return replace(head, bound=replace(self.bound, residual=0.0, moved=self.bound.away, left=left))

    def stepped(self, frame: Frame) -> Head:
        """One more step from the anchor, by a gradient that is known there."""
        return self._settled(frame, joint=False)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """M⁻¹v."""
        assert self.inverse is not None
        return self.inverse @ v

    def is_few(self, samples: int) -> bool:
        return samples * self.loss.rows_per_sample <= DIRECT * len(self.theta)

    def mean_loss(self, design: np.ndarray, labels: Labels, at: np.ndarray) -> float:
        return float(self.loss.values(self.scores(design, at), labels.values).mean())

    def penalty(self, samples: int) -> np.ndarray:
        return self.ridge * samples if self.per_sample else self.ridge

    def matrix(self) -> np.ndarray:
        """M = Σ w_g grams + ridge."""
        out = self._data().copy()
        out[np.diag_indices_from(out)] += self.penalty(self.samples)
        return out

    def times(self, v: np.ndarray, penalised: bool = True) -> np.ndarray:
        """M v, or that of the samples alone, without forming M."""
        out = self.penalty(self.samples)[:, None] * v if penalised else np.zeros_like(v)
        for weight, gram in zip(self.weights, self.sums.grams, strict=True):
            out += weight * (gram @ v)
        return out

    def gradient(self) -> np.ndarray:
        """∇L at the anchor, as far as it is known."""
        out = self.penalty(self.samples)[:, None] * self.anchor
        for weight, slope in zip(self.weights, self.sums.slopes, strict=True):
            out = out + weight * slope
        return out

    def finished(self, frame: Frame, weights: Sequence[float], samples: int) -> Head:
        """With M factorised, after the last sample came in."""
        head = replace(self, weights=tuple(weights), samples=samples)
        matrix = head.matrix()
        inverse = invert(matrix)
        bound = Bound.at_fit(head.loss, frame, matrix, inverse, head.sums.largest, None)
        sums = replace(head.sums, energy=coarse(head.sums.energy))
        head = replace(head, sums=sums, inverse=inverse, peak=power_of_two(np.diagonal(matrix), above=True))
        gradient = head.gradient()
        left = length(gradient, inverse @ gradient) + _rounding(head, head.theta)
        return replace(head, bound=replace(bound, left=left))

    def reaching(self, squared: float) -> Head:
        """With the exact reach of a step, for which the samples were looked at a second time."""
        return replace(self, bound=replace(self.bound, reach=min(self.bound.reach, math.sqrt(coarse(squared)))))

    def without(
        self, taken: Sums, frame: Frame, weights: Sequence[float], samples: int, *, joint: bool
    ) -> tuple[Head, float]:
        """At the minimum of the quadratic model over what stays; and the largest leverage of what went.

        Raises:
            NotPositiveDefinite: what went carries more curvature than all there was.
        """
        assert self.inverse is not None
        after = replace(self, sums=self.sums - taken, weights=tuple(weights), samples=samples)
        same = after.weights == self.weights and not self.per_sample
        rows = self._weighted(taken.rows) if taken.rows else None
        if same and rows is not None:
            inverse, leverage = downdate(self.inverse, rows)
            _check_leverage(leverage)
            if leverage > NEARLY_ALL:
                inverse = invert(after.matrix(), self.peak)
        else:
            leverage = self._leverage(taken)
            _check_leverage(leverage)
            inverse = invert(after.matrix(), self.peak)
        growth = 1 / (1 - leverage) / self._lightest(after)
        heavier = max(new / old for new, old in zip(after.weights, self.weights, strict=True))
        bound = self.bound.without(leverage, growth, heavier, anew=not (same and taken.rows))
        peak = None if self.peak is None else self.peak * max(heavier, 1.0)
        after = replace(after, inverse=inverse, bound=bound, peak=peak)
        after._check_curvature(self._data(), inverse if rows is None else rows @ inverse)
        return after._settled(frame, joint), leverage

    def without_classes(
        self, taken: Sums, stays: np.ndarray, frame: Frame, weights: Sequence[float], samples: int, *, joint: bool
    ) -> tuple[Head, float]:
        """The same where classes have no samples left; `stays`: the places of the others."""
        leverage = self._leverage(taken)
        _check_leverage(leverage)
        after = narrowed(replace(self, sums=self.sums - taken), stays, frame.intercept)
        after = replace(after, weights=tuple(weights), samples=samples)
        after = replace(after, inverse=invert(after.matrix()))
        return after._settled(frame, joint), leverage

    def _check_curvature(self, before: np.ndarray, directions: np.ndarray) -> None:
        """What stays must have no negative curvature, which the penalty would hide: along every feature and these.

        A sample that is taken out twice, or never was there, leaves one where no other sample has its kind. Where
        samples were subtracted at another θ than they were added at, `drift` says how much may be due to that.
        """
        if not self.bound.known or self.bound.drift >= 1:  # nothing is known of it
            return
        diagonal = np.abs(np.diag(before)) if self.peak is None else self.peak
        data, penalty = self._data(), self.penalty(self.samples)
        squares = directions**2
        found = np.append(np.diag(data), np.einsum("ij,ij->i", directions @ data, directions))
        rounding = ROUNDING * np.append(diagonal, squares @ diagonal)
        whole = np.abs(found + np.append(penalty, squares @ penalty))
        if np.any(found < -rounding - self.bound.drift * whole):
            raise NotPositiveDefinite("what stays would have negative curvature (were they erased before?)")

    def _data(self) -> np.ndarray:
        """The curvature of the samples, without the penalty."""
        if self.weights == (1.0,):
            return self.sums.grams[0]
        out = self.weights[0] * self.sums.grams[0]
        for weight, gram in zip(self.weights[1:], self.sums.grams[1:], strict=True):
            out = out + weight * gram
        return out

    def only_columns(self, columns: np.ndarray) -> Head:
        """Of outputs that share their curvature, some."""
        slopes = tuple(slope[:, columns] for slope in self.sums.slopes)
        sums = replace(self.sums, slopes=slopes)
        return replace(self, theta=self.theta[:, columns], anchor=self.anchor[:, columns], sums=sums)

    def only_groups(self, groups: np.ndarray) -> Head:
        """Without groups that have no samples left."""
        sums = replace(
            self.sums,
            slopes=tuple(self.sums.slopes[g] for g in groups),
            grams=tuple(self.sums.grams[g] for g in groups),
        )
        return replace(self, sums=sums, weights=tuple(self.weights[g] for g in groups))

    def _settled(self, frame: Frame, joint: bool) -> Head:
        """After the step u = −M⁻¹∇L from the anchor, corrected once for rounding."""
        assert self.inverse is not None
        gradient = self.gradient()
        step = -(self.inverse @ gradient)
        step -= self.inverse @ (gradient + self.times(step))
        data = self.times(step, penalised=False)
        curved = data + self.penalty(self.samples)[:, None] * step
        left, theta = gradient + curved, self.anchor + step
        rounding = length(left, self.inverse @ left) + _rounding(self, theta)
        lengths = (length(step, curved), length(step, data))
        bound = self.bound.moved_by(step, *lengths, rounding, frame, self.inverse, joint=joint)
        if joint:
            return replace(self, theta=theta, bound=bound)
        slopes = tuple(slope + gram @ step for slope, gram in zip(self.sums.slopes, self.sums.grams, strict=True))
        return replace(self, theta=theta, anchor=theta, sums=replace(self.sums, slopes=slopes), bound=bound)

    def _lightest(self, after: Head) -> float:
        """By what weights and penalty have shrunk at most: M without what went is at least that much of itself."""
        ratios = [new / old for new, old in zip(after.weights, self.weights, strict=True) if new]
        return min([1.0, *ratios, after.samples / self.samples if self.per_sample else 1.0])

    def _weighted(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        if self.weights == (1.0,):
            return rows[0]
        return np.vstack([np.sqrt(weight) * part for weight, part in zip(self.weights, rows, strict=True)])

    def _leverage(self, taken: Sums) -> float:
        """The largest eigenvalue of M⁻¹ Σ w_g ∇²ℓ over what goes."""
        assert self.inverse is not None
        if taken.rows:
            rows = self._weighted(taken.rows)
            return top(rows @ self.inverse @ rows.T)
        gram = self.weights[0] * taken.grams[0]
        for weight, part in zip(self.weights[1:], taken.grams[1:], strict=True):
            gram += weight * part
        return top_pencil(gram, self.matrix(), self.inverse)


def narrowed(head: Head, stays: np.ndarray, intercept: bool) -> Head:
    """Of a softmax head whose other classes have no samples left: what it is over the classes that stay.

    Without class v the probabilities of the others grow to p_j/(1 − p_v) ≈ p_j + p_j p_v, which changes the slope by
    Σ s p_j p_v x̃: that sum is in the curvature, between v's intercept and class j. Second orders of p_v are left out,
    and without an intercept the first order too.
    With two classes left, scikit-learn fits one logistic model of the difference, whose penalty counts twice.
    """
    loss = head.loss
    assert isinstance(loss, Softmax)
    old, new = loss.basis, Softmax(len(stays)).basis
    gone = np.setdiff1d(np.arange(loss.classes), stays)
    width = len(head.theta) // (loss.classes - 1)
    slopes, grams = [], []
    for slope, gram in zip(head.sums.slopes, head.sums.grams, strict=True):
        blocks = old @ gram.reshape(width, loss.classes - 1, width, loss.classes - 1).transpose(0, 2, 1, 3) @ old.T
        full = slope.reshape(width, -1) @ old.T
        if intercept:
            full -= blocks[:, -1, :, gone].sum(axis=0)
        full = full[:, stays]
        slopes.append((full @ new).reshape(-1, 1))
        inner = new.T @ blocks[:, :, stays][:, :, :, stays] @ new
        grams.append(inner.transpose(0, 2, 1, 3).reshape(width * new.shape[1], -1))
    anchor, theta = (
        (loss.wide(at, width)[:, stays] @ new).reshape(-1, 1) for at in (head.anchor, head.theta)
    )  # fmt: skip
    ridge = head.ridge.reshape(width, -1)[:, : new.shape[1]].ravel()
    kept = [group for group in range(head.groups) if head.groups == 1 or group in set(stays.tolist())]
    sums = replace(head.sums, slopes=tuple(slopes[g] for g in kept), grams=tuple(grams[g] for g in kept))
    weights = tuple(head.weights[g] for g in kept)
    narrow = replace(
        head, loss=Softmax(len(stays)), theta=theta, anchor=anchor, ridge=ridge, sums=sums, weights=weights,
        inverse=None, peak=None, bound=Bound.none(),
    )  # fmt: skip
    return _as_difference(narrow) if len(stays) == 2 else narrow


def _as_difference(head: Head) -> Head:
    """Two classes: ψ = ∓(θ₁ − θ₀)/√2, and scikit-learn's parameter is θ₁ − θ₀."""
    b = float(np.asarray(head.loss.basis)[1, 0]) if isinstance(head.loss, Softmax) else 1.0
    factor = 1 / (2 * b)  # ψ = factor · (θ₁ − θ₀)
    sums = Sums(
        tuple(factor * slope for slope in head.sums.slopes),
        tuple(factor**2 * gram for gram in head.sums.grams),
        largest=head.sums.largest,
        energy=head.sums.energy,
    )
    return replace(head, loss=Logistic(), theta=head.theta / factor, anchor=head.anchor / factor, sums=sums)


def _check_leverage(leverage: float) -> None:
    if not leverage < 1:
        raise NotPositiveDefinite(
            f"they carry more curvature than the training data as a whole (largest leverage {leverage:.6g}, must be "
            "below 1)"
        )


def _rounding(head: Head, theta: np.ndarray) -> float:
    """What the sums cannot tell, in the norm of M⁻¹.

    An entry ij of a sum is off by some last places of √(p_i p_j), p the diagonal when it was largest: where samples
    that outweighed all others were subtracted, that may be much of what is left.
    """
    assert head.inverse is not None
    peak = head.peak if head.peak is not None else np.diagonal(head.matrix())
    inside = np.sqrt(max(head.weights) * head.sums.energy + (peak[:, None] * theta**2).sum())
    return float(PLACES * np.finfo(np.float64).eps * inside * np.sqrt(peak * np.diagonal(head.inverse)).sum())
