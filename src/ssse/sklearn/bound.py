"""How far an erased model can be from the retrained one, from sums alone: a gradient-residual bound.

Guo et al. (2020) bound the gradient that is left after the removal step; divided by the strong convexity that is how
far the minimum can be. Their bound takes constants of the logistic loss and the penalty, so an intercept without
penalty has none. Here the loss's self-concordance takes that place: where no score moves by more than D, curvature
changes by factors between e^−D and e^D. With M the curvature at the anchor over what stays, G the same without the
penalty, u a step from there, φ(D) = (e^D − 1)/D − 1, and c² = ‖u‖²_G + drift·‖u‖²_M,

    D ≤ reach · ‖u‖_M,     reach² = max_i x̃ᵢᵀM⁻¹x̃ᵢ,
    ‖∇L(θ)‖_M⁻¹ ≤ what was left before + drift·‖u‖_M + (e^moved − 1)·√(1 + drift)·c
                  + e^moved·φ(D)·min(√(1 + drift)·c, reach·c²/D)                                            (= left)
    ‖θ − θ₋S‖_M ≤ −log(1 − reach·left·e^away/(1 − drift))/reach, if that logarithm exists; else nothing is known.

`moved` (`away` after the step) counts how far scores can have moved since the curvature was taken, and `drift` what it
is off because samples were subtracted at another θ than they were added at; both stay 0 for a first request and under
policy="joint". The proof is in docs/scikit-learn.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ssse.sklearn.coordinates import Coordinates, eigenvalue_bound
from ssse.sklearn.losses import Loss

LOOSE = 1.5  # how much a constant may be overestimated before it is computed again


@dataclass(frozen=True)
class Bound:
    """The constants of one linear model, and what they come to.

    Attributes:
        known: whether there is a bound at all. exact: whether nothing but rounding can be left.
        reach: max of what a step of length 1 in the norm of M does to scores; norm: of one in the Euclidean norm.
        softness: λmax(M⁻¹) in scikit-learn's coordinates; stiffness: λmax(M). Both from above.
        inflation: by how much softness may be overestimated by now.
        residual, moved, drift: at the anchor. left, away: gradient residual and `moved` where the model is.
    """

    known: bool = True
    exact: bool = False
    reach: float = math.inf
    norm: float = math.inf
    softness: float = math.inf
    stiffness: float = math.inf
    inflation: float = 1.0
    residual: float = 0.0
    moved: float = 0.0
    drift: float = 0.0
    left: float = 0.0
    away: float = 0.0

    @classmethod
    def none(cls) -> Bound:
        """Of another problem than the constants were of."""
        return cls(known=False)

    @classmethod
    def at_fit(
        cls,
        loss: Loss,
        coordinates: Coordinates,
        matrix: np.ndarray,
        inverse: np.ndarray,
        largest: float,
        reach: float | None,
    ) -> Bound:
        """`largest`: max ‖x̃ᵢ‖²; `reach`: its square, where the samples could be looked at a second time."""
        norm = loss.swing * math.sqrt(largest)
        best = norm * math.sqrt(eigenvalue_bound(inverse))
        return cls(
            known=loss.bounded,
            exact=loss.exact,
            reach=best if reach is None else min(best, math.sqrt(max(reach, 0.0))),
            norm=norm,
            softness=coordinates.largest_inverse(inverse),
            stiffness=coordinates.largest(matrix),
        )

    @property
    def distance(self) -> float:
        """‖θ − θ₋S‖ in scikit-learn's coordinates is not above it."""
        if not self.known:
            return math.inf
        if self.exact or not self.reach:
            return math.sqrt(self.softness) * self.left
        if self.drift >= 1:
            return math.inf
        share = self.reach * self.left * _exp(self.away) / (1 - self.drift)
        return math.sqrt(self.softness) * -math.log1p(-share) / self.reach if share < 1 else math.inf

    @property
    def gradient(self) -> float:
        """‖∇L₋S(θ)‖ in scikit-learn's coordinates is not above it."""
        return math.sqrt(self.stiffness) * self.left if self.known else math.inf

    def without(self, leverage: float, growth: float, heavier: float, anew: bool) -> Bound:
        """After samples went: M has shrunk to 1/growth at least, and no group's weight grew by more than `heavier`."""
        heavier = max(heavier, 1.0)
        return replace(
            self,
            reach=self.reach * math.sqrt(growth),
            softness=self.softness * growth,
            stiffness=self.stiffness * heavier,
            inflation=math.inf if anew else self.inflation * growth,
            residual=self.residual * math.sqrt(growth) * heavier,
            drift=(self.drift + (_exp(self.moved) - 1) * leverage) * growth * heavier,
        )

    def moved_by(
        self,
        step: np.ndarray,
        length: float,
        curved: float,
        rounding: float,
        coordinates: Coordinates,
        inverse: np.ndarray,
        *,
        joint: bool,
    ) -> Bound:
        """After the step from the anchor, `length` in the norm of M, `curved` in that of M without the penalty.

        `joint`: the next one starts there again.
        """
        if not self.known:
            return self
        now = self._tight(coordinates, inverse)
        if now.exact:
            return replace(now, left=rounding)
        swing = now._swing(step, length)
        moved, root = _exp(now.moved), math.sqrt(1 + now.drift)
        inside = math.sqrt(curved**2 + now.drift * length**2)
        third = min(root * inside, now.reach * inside**2 / swing) if swing else 0.0
        left = now.residual + now.drift * length + (moved - 1) * root * inside + moved * _excess(swing) * third
        left += rounding
        away = now.moved + swing
        now = replace(now, left=left, away=away)
        return now if joint else replace(now, residual=left, moved=away)

    def measured(
        self, step: np.ndarray, length: float, left: float, coordinates: Coordinates, inverse: np.ndarray
    ) -> Bound:
        """After any step from where the model is, with the gradient measured there: nothing of it is only bounded."""
        if not self.known:
            return replace(self, residual=0.0, left=left)
        now = self._tight(coordinates, inverse)
        away = now.away + now._swing(step, length)
        return replace(now, residual=0.0, moved=away, left=left, away=away)

    def _tight(self, coordinates: Coordinates, inverse: np.ndarray) -> Bound:
        """With constants computed again where they became too loose."""
        if self.inflation <= LOOSE:
            return self
        reach = min(self.reach, self.norm * math.sqrt(eigenvalue_bound(inverse)))
        return replace(self, softness=coordinates.largest_inverse(inverse), reach=reach, inflation=1.0)

    def _swing(self, step: np.ndarray, length: float) -> float:
        """By how much a step can change a score, at most."""
        return min(self.reach * length, self.norm * float(np.linalg.norm(step))) if length else 0.0


def coarse(value: float) -> float:
    """Up to the next power of 2^¼: a constant is kept when the one sample that it is of has been erased."""
    return 2.0 ** (math.ceil(4 * math.log2(value) + 1e-9) / 4) if 0 < value < math.inf else max(value, 0.0)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _excess(swing: float) -> float:
    """(e^D − 1)/D − 1: what the mean of e^tD, t from 0 to 1, is above 1."""
    if swing < 1e-4:
        return swing / 2 + swing**2 / 6 + swing**3
    return math.expm1(swing) / swing - 1 if swing < 700 else math.inf
