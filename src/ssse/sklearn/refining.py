"""Towards the refit with the samples that remain: quasi-Newton steps, none of which raises the objective.

The direction is that of L-BFGS, with the inverse of the held curvature where it usually has a multiple of the identity.
A step is taken whole if that lowers the objective as it should; else the best of many lengths is, for which the samples
are read once: along a line their scores are linear. So from any place the minimum of a convex objective is reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from ssse.errors import NotPositiveDefinite, PrecisionLost
from ssse.sklearn.composition import Composition
from ssse.sklearn.loss_sums import Labels
from ssse.sklearn.quadratic import Quadratic
from ssse.sklearn.sums import Advance, TrainingSums, designs, shift_of, sums_anew

REMEMBERED = 20  # steps whose effect on the gradient corrects the held curvature
LENGTHS = tuple(2.0**power for power in range(12, -41, -1))  # where the whole step is not good
ENOUGH = 1e-4  # of the decrease that the slope promises
STEEP = 0.9  # of the slope: a step that leaves more of it could have gone on
ROUNDING = 64 * np.finfo(np.float64).eps  # of an objective, which is a sum of what is not negative


@dataclass(frozen=True)
class Remaining:
    """The samples that remain, as the eraser reads them."""

    composition: Composition
    x: Any
    columns: list[np.ndarray]
    weights: np.ndarray
    advance: Advance

    def passes(self, sums: TrainingSums) -> Iterator[tuple[int, np.ndarray, Labels]]:
        """Once over X: for each part of it, each quadratic by its place among all, with X̃ and labels."""
        for part, design in designs(sums, self.x):
            labels = [
                adapter.labels(codes[part], self.weights[part])
                for adapter, codes in zip(self.composition.adapters, self.columns, strict=True)
            ]
            for place, mine in enumerate(chain.from_iterable(labels)):
                yield place, design, mine
            self.advance(len(design))

    def anew(self, sums: TrainingSums) -> TrainingSums:
        return sums_anew(sums, self.composition, self.x, self.columns, self.weights, self.advance)


@dataclass(frozen=True)
class Place:
    """Where one linear model is on the way.

    Attributes:
        quadratic: with slopes that were measured there. objective: of its samples that remain, with the penalty.
        pairs: the last steps, and what they did to the gradient.
        plain: the curvature is no help (where scores are far out there is hardly any): steps are those of the gradient.
    """

    quadratic: Quadratic
    objective: float
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    plain: bool = False

    def direction(self) -> np.ndarray:
        """−H∇L by L-BFGS's two loops."""
        step, shares = -self.quadratic.gradient(), []
        for moved, change in reversed(self.pairs):
            shares.append(_inner(moved, step) / _inner(moved, change))
            step = step - shares[-1] * change
        step = self._solve(step)
        if self.pairs:
            moved, change = self.pairs[-1]
            step = step * (_inner(moved, change) / _inner(change, self._solve(change)))
        for (moved, change), share in zip(self.pairs, reversed(shares), strict=True):
            step = step + (share - _inner(change, step) / _inner(moved, change)) * moved
        return step

    def _solve(self, v: np.ndarray) -> np.ndarray:
        return v / len(v) if self.plain else self.quadratic.solve(v)

    def promises(self, step: np.ndarray) -> bool:
        """Whether the slope along a step is more than the rounding of the objective."""
        return -_inner(self.quadratic.gradient(), step) > ROUNDING * self.objective

    def accepts(self, other: Place) -> bool:
        """Lower; or, where an objective cannot tell any more, with less of a gradient."""
        rounding = ROUNDING * self.objective
        if other.objective < self.objective - rounding:
            return True
        return other.objective <= self.objective + rounding and other.quadratic.bound.left < self.quadratic.bound.left

    def then(self, other: Place) -> Place:
        """That one, with what the step between them tells; or, if it is no better, this one, without its memory."""
        if not self.accepts(other):
            return replace(self, pairs=())
        moved = other.quadratic.theta - self.quadratic.theta
        change = other.quadratic.gradient() - self.quadratic.gradient()
        useful = _inner(moved, change) > ROUNDING * math.sqrt(_inner(moved, moved) * _inner(change, change))
        pairs = (*self.pairs, (moved, change))[-REMEMBERED:] if useful else self.pairs
        return replace(other, pairs=pairs, plain=self.plain)


def refined(sums: TrainingSums, remaining: Remaining, steps: int, *, curvature: bool) -> TrainingSums:
    """At most so many steps; with a new curvature where the old one is too far away to help."""
    places = _measured(sums, [quadratic.theta for quadratic in sums.all_quadratics], remaining)
    fresh = False
    for _ in range(steps):
        directions = [place.direction() for place in places]
        found = _stepped(sums, places, directions, remaining)
        before, places = places, [place.then(one) for place, one in zip(places, found, strict=True)]
        sums = _with(sums, places)
        lower = any(now.objective < old.objective * (1 - ROUNDING) for now, old in zip(places, before, strict=True))
        slow = _left(places) > _left(before) / 2
        if slow and not lower and (fresh or not curvature):
            hopes = [old.promises(step) and not old.plain for old, step in zip(before, directions, strict=True)]
            if not any(hopes):  # only rounding is left
                break
            places = [replace(place, plain=hope) for place, hope in zip(places, hopes, strict=True)]
            continue
        fresh = False
        if slow and curvature and (new := _anew(sums, remaining)) is not None:
            sums, fresh = new, True
            places = [
                Place(quadratic, place.objective) for place, quadratic in zip(places, new.all_quadratics, strict=True)
            ]
    sums = replace(sums, shift=shift_of(sums))
    anew = sums if fresh else _anew(sums, remaining) if curvature else None
    return replace(sums, doubted=True) if anew is None else anew  # the curvature is that of another place


def _left(places: Sequence[Place]) -> float:
    return math.hypot(*(place.quadratic.bound.left for place in places))


def _anew(sums: TrainingSums, remaining: Remaining) -> TrainingSums | None:
    """None where the curvature at this place does not determine a step: then the held one goes on."""
    try:
        return remaining.anew(sums)
    except (NotPositiveDefinite, PrecisionLost):
        return None


def _stepped(
    sums: TrainingSums, places: Sequence[Place], steps: Sequence[np.ndarray], remaining: Remaining
) -> list[Place]:
    """Each after its step, whether that is good or not."""
    whole = [place.quadratic.theta + step for place, step in zip(places, steps, strict=True)]
    found = _measured(sums, whole, remaining)
    wrong = {
        i: step
        for i, (place, step, one) in enumerate(zip(places, steps, found, strict=True))
        if not _good(place, step, one)
    }
    if not wrong:
        return found
    lengths = _best_lengths(sums, wrong, remaining)
    whole = [
        place.quadratic.theta + lengths.get(i, 1.0) * step
        for i, (place, step) in enumerate(zip(places, steps, strict=True))
    ]
    return _measured(sums, whole, remaining)


def _good(place: Place, step: np.ndarray, after: Place) -> bool:
    """Wolfe's conditions; where the objective cannot tell, the gradient will."""
    if not place.promises(step):
        return True
    slope, then = _inner(place.quadratic.gradient(), step), _inner(after.quadratic.gradient(), step)
    return after.objective <= place.objective + ENOUGH * slope and abs(then) <= STEEP * abs(slope)


def _measured(sums: TrainingSums, thetas: Sequence[np.ndarray], remaining: Remaining) -> list[Place]:
    """The objective and its gradient at these parameters, in one pass."""
    quadratics = sums.all_quadratics
    slopes = [[np.zeros_like(part) for part in one.loss_sums.slopes] for one in quadratics]
    moves = [theta - one.theta for theta, one in zip(thetas, quadratics, strict=True)]
    totals = [float(one.penalty_along(move, (1.0,))[0]) for one, move in zip(quadratics, moves, strict=True)]
    for i, design, labels in remaining.passes(sums):
        totals[i] += float(quadratics[i].losses_along(design, labels, moves[i], (1.0,))[0])
        for total, more in zip(slopes[i], quadratics[i].slopes_at(design, labels, thetas[i]), strict=True):
            total += more
    return [
        Place(one.moved_to(theta, tuple(parts), sums.coordinates), total)
        for one, theta, parts, total in zip(quadratics, thetas, slopes, totals, strict=True)
    ]


def _best_lengths(sums: TrainingSums, steps: dict[int, np.ndarray], remaining: Remaining) -> dict[int, float]:
    """By the objective along each of these steps, in one pass; 0 where nothing on it is lower."""
    quadratics = sums.all_quadratics
    lengths = (0.0, *LENGTHS)
    with np.errstate(over="ignore", invalid="ignore"):
        totals = {i: quadratics[i].penalty_along(step, lengths) for i, step in steps.items()}
        for i, design, labels in remaining.passes(sums):
            if i in steps:
                totals[i] += quadratics[i].losses_along(design, labels, steps[i], lengths)
    return {i: lengths[int(np.nanargmin(np.where(np.isfinite(total), total, np.inf)))] for i, total in totals.items()}


def _with(sums: TrainingSums, places: Sequence[Place]) -> TrainingSums:
    rest = iter(places)
    return sums.with_quadratics([[next(rest).quadratic for _ in group] for group in sums.quadratics])


def _inner(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum())
