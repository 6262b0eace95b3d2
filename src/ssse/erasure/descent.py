"""Down to a minimum: steps along directions that somebody proposes, taken only where they go down."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import dot
from ssse.problem.labels import Labels

Ending = Literal["tolerance", "rounding", "steps"]

TRIALS = 30  # of one direction, at most; each is shorter by half at least
SLOPE = 1e-4  # the share of the decrease that the slope promises, below which a trial is too long (Armijo)
NOISE = 2.0  # units in the last place of what an objective is a sum of, within which two of them count as equal


@dataclass(frozen=True)
class LinearBatch:
    """What the last layer of a model saw and said: features (with a column of ones for a bias), outputs, labels."""

    features: Tensor
    outputs: Tensor
    labels: Labels


@dataclass(frozen=True)
class Point:
    """θ, the objective there (infinite where it is NaN), and its gradient, shape (d,).

    Attributes:
        magnitude: of the numbers that the objective is a difference of, for its rounding: outputs, mostly.
        batches: the data as seen at this θ, where the model is linear in θ and they are kept.
    """

    theta: Tensor
    value: float
    gradient: Tensor
    magnitude: float
    batches: Sequence[LinearBatch] = field(default=(), repr=False)


class Directions(ABC):
    """Where to go from a point."""

    @abstractmethod
    def at(self, point: Point) -> Tensor:
        """The step to try first, shape (d,): from the point to where the minimum is thought to be."""

    @abstractmethod
    def learn(self, old: Point, new: Point) -> None:
        """Of a step that was taken."""

    @abstractmethod
    def start_again(self) -> bool:
        """Drop what was learnt, which misleads; False if there is nothing to drop."""


@dataclass(frozen=True)
class Descent:
    """Where it ended, never above where it began.

    Attributes:
        steps: that were taken. ended: "tolerance", the next step would be shorter than asked for; "rounding", no lower
            objective can be told from this one; "steps", as many as were allowed.
    """

    point: Point
    steps: int
    ended: Ending


def descend(
    evaluate: Callable[[Tensor], Point], directions: Directions, start: Point, *, steps: int, tolerance: float
) -> Descent:
    """From `start`, by at most so many steps.

    Args:
        evaluate: the objective and its gradient at a θ, in one pass.
        tolerance: end where the step to take is shorter than this share of ‖θ‖.
    """
    point, lowest, taken = start, start.value, 0
    while True:
        direction = directions.at(point)
        if float(direction.norm()) <= tolerance * float(point.theta.norm()):
            return Descent(point, taken, "tolerance")
        if taken == steps:
            return Descent(point, taken, "steps")
        found = _search(evaluate, point, direction, min(start.value, lowest + _noise(point)))
        if found is not None:
            directions.learn(point, found)
            point, taken, lowest = found, taken + 1, min(lowest, found.value)
        elif not directions.start_again():
            return Descent(point, taken, "rounding")


def _search(evaluate: Callable[[Tensor], Point], point: Point, direction: Tensor, ceiling: float) -> Point | None:
    """The first trial that goes down along the direction, the whole of it first; None if no trial does.

    Where two objectives differ by rounding alone, the slope at the trial decides, as in Hager and Zhang 2005.
    """
    slope, noise, length = float(dot(direction, point.gradient)), _noise(point), 1.0
    if not slope < 0:
        return None
    for _ in range(TRIALS):
        there = point.theta + length * direction
        if torch.equal(there, point.theta):
            return None
        trial = evaluate(there)
        slope_there = float(dot(direction, trial.gradient)) if math.isfinite(trial.value) else math.inf
        enough = trial.value <= point.value + SLOPE * length * slope
        level = trial.value <= point.value + noise and abs(slope_there) <= (2 * SLOPE - 1) * slope
        if trial.value <= ceiling and (enough or level):
            return trial
        if -length * slope <= noise:
            return None  # a shorter one could not be told from this point
        length *= _shorter(trial.value - point.value, slope * length, slope_there * length)
    return None


def _shorter(rise: float, slope: float, slope_there: float) -> float:
    """Where the cubic through both ends, whose values and slopes are known, is lowest; a tenth to a half of the way."""
    bend = slope + slope_there - 3 * rise
    root = bend * bend - slope * slope_there
    if not math.isfinite(root) or root < 0:
        return 0.1
    below = slope_there - slope + 2 * math.sqrt(root)
    lowest = 1 - (slope_there + math.sqrt(root) - bend) / below if below else 0.1
    return min(max(lowest, 0.1), 0.5)


def _noise(point: Point) -> float:
    return NOISE * torch.finfo(point.theta.dtype).eps * point.magnitude
