"""One linear model's loss around where it stands: slope, curvature, and the step to the minimum without some samples.

    L(θ) = Σ_g w_g Σ_{i∈g} sᵢ ℓᵢ(θ) + ½ θᵀ diag(ridge) θ

Samples lie in groups where class weights depend on how many there are of each class, since these change with every
request; else there is one group. What is held is the sum of slopes and of curvatures of every group, no samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ssse.errors import NotPositiveDefinite
from ssse.sklearn.bound import Bound, coarse
from ssse.sklearn.coordinates import Coordinates, power_of_two
from ssse.sklearn.linalg import downdate, invert, largest_eigenvalue, largest_generalized_eigenvalue, length
from ssse.sklearn.loss_sums import Labels, LossSums, some_of
from ssse.sklearn.losses import Logistic, Loss, Softmax

DIRECT = 1.0  # rows over parameters, from which on a new factor is cheaper than changing the inverse
NEARLY_ALL = 0.9999  # of leverage, from which on changing the inverse loses too many digits to see what is singular
ROUNDING = 1e-11  # of a sum of squares, that subtracting some of them again may leave
PASSES = 16  # over each matrix that is held, in a request
PLACES = 4  # last places that a sum may be off


@dataclass(frozen=True)
class Quadratic:
    """One linear model: its loss with its parameters, to second order around its anchor.

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
    loss_sums: LossSums
    per_sample: bool = False
    weights: tuple[float, ...] = (1.0,)
    samples: int = 0
    inverse: np.ndarray | None = None
    peak: np.ndarray | None = None
    bound: Bound = field(default_factory=Bound)

    @classmethod
    def empty(
        cls, loss: Loss, theta: np.ndarray, ridge: np.ndarray, groups: int = 1, per_sample: bool = False
    ) -> Quadratic:
        """`theta`: (width, columns); `ridge`: (width,)."""
        size = loss.size(len(theta))
        flat = loss.flat(theta)
        loss_sums = LossSums(
            tuple(np.zeros_like(flat) for _ in range(groups)),
            tuple(np.zeros((size, size)) for _ in range(groups)),
            traces=(0.0,) * groups,
        )
        return cls(loss, flat, flat, np.repeat(ridge, size // len(ridge)), loss_sums, per_sample)

    def emptied(self) -> Quadratic:
        """Where it is, and without any samples yet."""
        slopes, grams = (
            tuple(np.zeros_like(part) for part in parts) for parts in (self.loss_sums.slopes, self.loss_sums.grams)
        )
        loss_sums = LossSums(slopes, grams, traces=(0.0,) * self.groups)
        return replace(self, anchor=self.theta, loss_sums=loss_sums, inverse=None, bound=Bound())

    @property
    def groups(self) -> int:
        return len(self.loss_sums.slopes)

    def scores(self, design: np.ndarray, at: np.ndarray) -> np.ndarray:
        return design @ self.loss.wide(at, design.shape[1])

    def measure(self, design: np.ndarray, labels: Labels, few: bool = False) -> LossSums:
        """The sums of some samples, at the anchor; `few`: as rows."""
        z = self.scores(design, self.anchor)
        slopes, grams, rows, traces, energy = [], [], [], [], 0.0
        for group in range(self.groups):
            mine = labels.of(group)
            x, s = design[mine], labels.weights[mine]
            residuals = self.loss.residuals(z[mine], labels.values[mine])
            slopes.append(self.loss.slope(x, residuals, s))
            energy += float(s @ (residuals**2).sum(axis=1))
            curvatures = self.loss.curvatures(z[mine], labels.values[mine])
            traces.append(self.loss.trace(curvatures, s))
            if few:
                rows.append(self.loss.rows(x, curvatures, s))
            else:
                grams.append(self.loss.gram(x, curvatures, s))
        largest = coarse(float(np.einsum("ij,ij->i", design, design).max(initial=0.0)))
        return LossSums(tuple(slopes), tuple(grams), tuple(rows), largest, energy, tuple(traces))

    def slopes_at(self, design: np.ndarray, labels: Labels, at: np.ndarray) -> list[np.ndarray]:
        """Of each group."""
        residuals = self.loss.residuals(self.scores(design, at), labels.values)
        parts = [labels.of(group) for group in range(self.groups)]
        return [self.loss.slope(design[mine], residuals[mine], labels.weights[mine]) for mine in parts]

    def losses_along(
        self, design: np.ndarray, labels: Labels, step: np.ndarray, lengths: Sequence[float]
    ) -> np.ndarray:
        """Σ w_g sᵢ ℓᵢ at every length of a step from where the model is: scores are a line, computed once."""
        z, change = self.scores(design, self.theta), self.scores(design, step)
        weights = labels.weights
        if self.weights != (1.0,):
            weights = weights * np.asarray(self.weights)[0 if labels.groups is None else labels.groups]
        return np.array([weights @ self.loss.values(z + length * change, labels.values) for length in lengths])

    def penalty_along(self, step: np.ndarray, lengths: Sequence[float]) -> np.ndarray:
        """½ θᵀ ridge θ there."""
        ridge = self.penalty(self.samples)[:, None]
        return np.array([0.5 * float((ridge * (self.theta + length * step) ** 2).sum()) for length in lengths])

    def moved_to(self, theta: np.ndarray, slopes: tuple[np.ndarray, ...], coordinates: Coordinates) -> Quadratic:
        """At a place whose slopes were measured; the curvature is still that of where it was taken."""
        assert self.inverse is not None
        quadratic = replace(self, theta=theta, anchor=theta, loss_sums=replace(self.loss_sums, slopes=slopes))
        gradient, step = quadratic.gradient(), theta - self.theta
        left = length(gradient, quadratic.solve(gradient)) + _rounding(quadratic, theta)
        bound = self.bound.measured(step, length(step, self.times(step)), left, coordinates, self.inverse)
        return replace(quadratic, bound=bound)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """M⁻¹v."""
        assert self.inverse is not None
        return self.inverse @ v

    def is_few(self, samples: int) -> bool:
        return samples * self.loss.rows_per_sample <= DIRECT * len(self.theta)

    def operations(self, samples: int) -> float:
        """Of a request, about."""
        size = float(len(self.theta))
        return size**2 * (2 * min(samples * self.loss.rows_per_sample, size) + PASSES * self.groups)

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
        for weight, gram in zip(self.weights, self.loss_sums.grams, strict=True):
            out += weight * (gram @ v)
        return out

    def gradient(self) -> np.ndarray:
        """∇L at the anchor, as far as it is known."""
        out = self.penalty(self.samples)[:, None] * self.anchor
        for weight, slope in zip(self.weights, self.loss_sums.slopes, strict=True):
            out = out + weight * slope
        return out

    def finished(self, coordinates: Coordinates, weights: Sequence[float], samples: int) -> Quadratic:
        """With M factorised, after the last sample came in."""
        quadratic = replace(self, weights=tuple(weights), samples=samples)
        matrix = quadratic.matrix()
        inverse = invert(matrix)
        bound = Bound.at_fit(quadratic.loss, coordinates, matrix, inverse, quadratic.loss_sums.largest, None)
        loss_sums = replace(quadratic.loss_sums, energy=coarse(quadratic.loss_sums.energy))
        quadratic = replace(
            quadratic, loss_sums=loss_sums, inverse=inverse, peak=power_of_two(np.diagonal(matrix), above=True)
        )
        gradient = quadratic.gradient()
        left = length(gradient, inverse @ gradient) + _rounding(quadratic, quadratic.theta)
        return replace(quadratic, bound=replace(bound, left=left))

    def reaching(self, squared: float) -> Quadratic:
        """With the exact reach of a step, for which the samples were looked at a second time."""
        return replace(self, bound=replace(self.bound, reach=min(self.bound.reach, math.sqrt(coarse(squared)))))

    def without(
        self, taken: LossSums, coordinates: Coordinates, weights: Sequence[float], samples: int, *, joint: bool
    ) -> Erased:
        """At the minimum of the quadratic model over what stays.

        Raises:
            NotPositiveDefinite: what went carries more curvature than all there was.
        """
        assert self.inverse is not None
        after = replace(self, loss_sums=self.loss_sums - taken, weights=tuple(weights), samples=samples)
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
        return Erased(after._settled(coordinates, joint), leverage, self.theta, self.settled, after)

    def compared(self, erased: Erased, taken: LossSums, design: np.ndarray, labels: Labels) -> Erased:
        """With the gradient of what went where the model is now, against what the quadratic model foresaw."""
        if self.loss.exact:
            return erased
        step, off, own = erased.quadratic.theta - self.anchor, np.zeros_like(self.anchor), 0.0
        found = self.slopes_at(design, labels, erased.quadratic.theta)
        for group, weight in enumerate(self.weights):
            image = taken.rows[group].T @ (taken.rows[group] @ step) if taken.rows else taken.grams[group] @ step
            off += weight * (found[group] - taken.slopes[group] - image)
            own += weight * float((step * image).sum())
        return replace(erased, off=self.solve(off), taken=own)

    def without_classes(
        self,
        taken: LossSums,
        stays: np.ndarray,
        coordinates: Coordinates,
        weights: Sequence[float],
        samples: int,
        *,
        joint: bool,
    ) -> Erased:
        """The same where classes have no samples left; `stays`: the places of the others."""
        leverage = self._leverage(taken)
        _check_leverage(leverage)
        after = narrowed(replace(self, loss_sums=self.loss_sums - taken), stays, coordinates.intercept)
        after = replace(after, weights=tuple(weights), samples=samples)
        after = replace(after, inverse=invert(after.matrix()))
        before, settled = (narrowed_parameters(self, at, stays) for at in (self.theta, self.settled))
        return Erased(after._settled(coordinates, joint), leverage, before, settled, after)

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
        curvatures = np.append(np.diag(data), np.einsum("ij,ij->i", directions @ data, directions))
        rounding = ROUNDING * np.append(diagonal, squares @ diagonal)
        whole = np.abs(curvatures + np.append(penalty, squares @ penalty))
        if np.any(curvatures < -rounding - self.bound.drift * whole):
            raise NotPositiveDefinite("what stays would have negative curvature (were they erased before?)")

    @property
    def settled(self) -> np.ndarray:
        """Where the quadratic model has its minimum: a solver stops before, and a request goes there too."""
        return self.anchor - self.solve(self.gradient())

    @property
    def trace(self) -> float | None:
        """Σ w_g sᵢ tr ∂²ℓᵢ/∂z², or None where it is not known."""
        traces = self.loss_sums.traces
        if traces is None:
            return None
        return sum(weight * one for weight, one in zip(self.weights, traces, strict=True))

    def _data(self) -> np.ndarray:
        """The curvature of the samples, without the penalty."""
        if self.weights == (1.0,):
            return self.loss_sums.grams[0]
        out = self.weights[0] * self.loss_sums.grams[0]
        for weight, gram in zip(self.weights[1:], self.loss_sums.grams[1:], strict=True):
            out = out + weight * gram
        return out

    def only_columns(self, columns: np.ndarray) -> Quadratic:
        """Of outputs that share their curvature, some."""
        slopes = tuple(slope[:, columns] for slope in self.loss_sums.slopes)
        loss_sums = replace(self.loss_sums, slopes=slopes)
        return replace(self, theta=self.theta[:, columns], anchor=self.anchor[:, columns], loss_sums=loss_sums)

    def only_groups(self, groups: np.ndarray) -> Quadratic:
        """Without groups that have no samples left."""
        loss_sums = replace(
            self.loss_sums,
            slopes=tuple(self.loss_sums.slopes[g] for g in groups),
            grams=tuple(self.loss_sums.grams[g] for g in groups),
            traces=some_of(self.loss_sums.traces, groups),
        )
        return replace(self, loss_sums=loss_sums, weights=tuple(self.weights[g] for g in groups))

    def _settled(self, coordinates: Coordinates, joint: bool, share: float = 1.0) -> Quadratic:
        """After the step u = −M⁻¹∇L from the anchor, corrected once for rounding; or after a share of it."""
        assert self.inverse is not None
        gradient = self.gradient()
        step = -(self.inverse @ gradient)
        step -= self.inverse @ (gradient + self.times(step))
        step *= share
        data = self.times(step, penalised=False)
        curved = data + self.penalty(self.samples)[:, None] * step
        left, theta = gradient + curved, self.anchor + step
        rounding = length(left, self.inverse @ left) + _rounding(self, theta)
        lengths = (length(step, curved), length(step, data))
        bound = self.bound.moved_by(step, *lengths, rounding, coordinates, self.inverse, joint=joint)
        if joint:
            return replace(self, theta=theta, bound=bound)
        slopes = tuple(
            slope + gram @ step for slope, gram in zip(self.loss_sums.slopes, self.loss_sums.grams, strict=True)
        )
        return replace(self, theta=theta, anchor=theta, loss_sums=replace(self.loss_sums, slopes=slopes), bound=bound)

    def _lightest(self, after: Quadratic) -> float:
        """By what weights and penalty have shrunk at most: M without what went is at least that much of itself."""
        ratios = [new / old for new, old in zip(after.weights, self.weights, strict=True) if new]
        return min([1.0, *ratios, after.samples / self.samples if self.per_sample else 1.0])

    def _weighted(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        if self.weights == (1.0,):
            return rows[0]
        return np.vstack([np.sqrt(weight) * part for weight, part in zip(self.weights, rows, strict=True)])

    def _leverage(self, taken: LossSums) -> float:
        """The largest eigenvalue of M⁻¹ Σ w_g ∇²ℓ over what goes."""
        assert self.inverse is not None
        if taken.rows:
            rows = self._weighted(taken.rows)
            return largest_eigenvalue(rows @ self.inverse @ rows.T)
        gram = self.weights[0] * taken.grams[0]
        for weight, part in zip(self.weights[1:], taken.grams[1:], strict=True):
            gram += weight * part
        return largest_generalized_eigenvalue(gram, self.matrix(), self.inverse)


@dataclass(frozen=True)
class Erased:
    """One linear model without some samples, and what became of it.

    Attributes:
        leverage: the largest of what went.
        before: where it was. settled: where its quadratic model had its minimum with them. Both without what a class
            that has vanished had of its own.
        start: without them, and where it was.
        off: M⁻¹ times what the gradient of what went is off, at the new model, from what the quadratic model foresaw;
            None where that was not looked at. taken: uᵀH_S u, their own curvature along the step.
    """

    quadratic: Quadratic
    leverage: float
    before: np.ndarray
    settled: np.ndarray
    start: Quadratic
    off: np.ndarray | None = None
    taken: float = 0.0

    def shortened(self, share: float, coordinates: Coordinates) -> Erased:
        """After this share of the step; what is left of it stays in the slopes, and in the bound."""
        return replace(self, quadratic=self.start._settled(coordinates, joint=False, share=share))

    @property
    def own(self) -> np.ndarray:
        """The request's own step, without what the solver had left to do."""
        return self.quadratic.theta - self.settled

    @property
    def bounded(self) -> bool:
        return self.quadratic.bound.known

    @property
    def step(self) -> np.ndarray:
        return self.quadratic.theta - self.before

    def curved(self, step: np.ndarray) -> float:
        """uᵀGu, G the curvature of the samples that stay: Σ sᵢ ∂²ℓᵢ/∂z² [change of the scores]²."""
        return max(float((step * self.quadratic.times(step, penalised=False)).sum()), 0.0)

    def ranges(self, design: np.ndarray) -> np.ndarray:
        """Of each of these samples, max − min over the classes of the change of its scores; of one score, |Δz|."""
        change = self.quadratic.scores(design, self.step)
        return np.ptp(change, axis=1) if change.shape[1] > 1 else np.abs(change[:, 0])


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


def _check_leverage(leverage: float) -> None:
    if not leverage < 1:
        raise NotPositiveDefinite(
            f"they carry more curvature than the training data as a whole (largest leverage {leverage:.6g}, must be "
            "below 1)"
        )


def _rounding(quadratic: Quadratic, theta: np.ndarray) -> float:
    """What the sums cannot tell, in the norm of M⁻¹.

    An entry ij of a sum is off by some last places of √(p_i p_j), p the diagonal when it was largest: where samples
    that outweighed all others were subtracted, that may be much of what is left.
    """
    assert quadratic.inverse is not None
    peak = quadratic.peak if quadratic.peak is not None else np.diagonal(quadratic.matrix())
    inside = np.sqrt(max(quadratic.weights) * quadratic.loss_sums.energy + (peak[:, None] * theta**2).sum())
    return float(PLACES * np.finfo(np.float64).eps * inside * np.sqrt(peak * np.diagonal(quadratic.inverse)).sum())
