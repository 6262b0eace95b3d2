"""ε as the minimum of the leave-k-out loss along the step: nothing is retrained, a sample of the data is enough.

With φ(ε) = L₋S(θ* + εu) and θ* stationary, φ′(0) = −g_S·u/(n−k), which is exact from S alone; the rest of φ is measured
on a sample of the data that stays.

    by_curvature   ε = (g_S·u) / ((n−k) φ″(0)): to second order, one second derivative
    by_loss        φ′(ε) = 0 itself, by bisection and secants: a dozen passes over the sample
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from scipy.optimize import brentq
from torch import nn

from ssse.calibration.scan import Undecided
from ssse.calibration.step_path import Line
from ssse.curvature.curvature import Curvature
from ssse.erasure.retained import count_digests, drop_forgotten
from ssse.errors import InvalidData
from ssse.problem.batches import (
    Batch,
    check_repeatable,
    count_samples,
    read_batch,
    regroup,
    take_samples,
)
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem

SAMPLE = 4096  # samples that are looked at
FAR = 64.0  # how many times further than the quadratic model says, or than 1, a minimum is looked for


@dataclass(frozen=True)
class Descent:
    """The leave-k-out loss along a step.

    Attributes:
        line: θ* + εu. stays: a sample of the data that stays, of `count` samples.
        pull: g_S·u. left: n − k. decay: w.
    """

    line: Line
    stays: list[Batch]
    count: int
    pull: float
    left: int
    decay: float

    def by_curvature(self) -> tuple[float, str]:
        bend = self._bend()
        if not bend > 0 or not self.pull > 0:
            raise Undecided(
                f"Along this step the loss on the data that stays has curvature {bend:.3g} and the forgotten samples "
                f"pull with {self.pull:.3g}; both must be positive for a line search. The model is not near a minimum "
                "there: train further, or retrain once and pass retrained=.",
                None,
            )
        return self.pull / (self.left * bend), f"curvature {bend:.3g} along the step, {self._seen}"

    def by_loss(self) -> tuple[float, str]:
        if not self.pull > 0:
            raise Undecided(
                f"Along this step the forgotten samples pull with {self.pull:.3g}, which must be positive for the loss "
                "to fall at first. The model is not near a minimum there: train further, or retrain once and pass "
                "retrained=.",
                None,
            )
        bend = self._bend()
        bends = bend > 0 and isfinite(self.pull / (self.left * bend))
        start = self.pull / (self.left * bend) if bends else 1.0  # a guess alone
        at_zero = self._mean_slope(0.0)

        def slope(scale: float) -> float:
            """φ′(ε), with φ′(0) as S gives it: the sample's own would add its noise."""
            value = self._mean_slope(scale) - at_zero + self.decay * scale * self._squared - self.pull / self.left
            return value if isfinite(value) else inf  # overflow: much too far

        high = start
        while slope(high) < 0:
            high *= 2
            if high > FAR * start:
                raise Undecided(
                    f"The loss on the data that stays still falls at ε = {high / 2:.3g} along this step; there is no "
                    "minimum to find. Retrain once and pass retrained=, or choose ε by hand.",
                    None,
                )
        scale = float(brentq(slope, 0.0, high, xtol=1e-9 * start, rtol=1e-6))  # pyright: ignore[reportArgumentType]
        guess = f"to second order it would be at {start:.3g}" if bends else "at θ* it does not bend upwards"
        return scale, f"the leave-k-out loss is least there ({guess}), {self._seen}"

    def _bend(self) -> float:
        """φ″(0)."""
        return sum(self.line.bend(batch) for batch in self.stays) / self.count + self.decay * self._squared

    def _mean_slope(self, scale: float) -> float:
        return sum(self.line.slope(batch, scale) for batch in self.stays) / self.count

    @property
    def _squared(self) -> float:
        u = self.line.direction.double()
        return float(u @ u)

    @property
    def _seen(self) -> str:
        return f"measured on {self.count} samples that stay"


def descent(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    forget: list[Any],
    direction: torch.Tensor,
    data: Iterable[Any],
    residual: bool,
) -> Descent:
    """Read S and a sample of the rest."""
    problem = Problem(model, loss_fn, curvature.layout.names)
    line = Line(problem, direction)
    removed = list(regroup((read_batch(batch, problem.device) for batch in forget), curvature.group))
    problem.probe(removed[0])
    k = sum(len(y) for _, y in removed)
    theta, u, decay = line.theta.double(), line.direction.double(), curvature.weight_decay
    pull = sum(line.slope(batch) for batch in removed) + k * decay * float(theta @ u)
    joint, n = curvature.joint, curvature.n
    if joint is not None:  # the step is away from all that the stream has forgotten so far
        pull, n = pull + float(joint.removed_gradient.double() @ u), joint.n
    if residual and curvature.gradient is not None:
        pull -= n * float(curvature.gradient.double() @ u)
    stays = _sample(problem, curvature, forget, data)
    count = sum(len(y) for _, y in stays)
    if not count:
        raise InvalidData("The data for the line search is empty, or holds the forgotten samples only.")
    return Descent(line, stays, count, pull, curvature.n - k, decay)


def _sample(problem: Problem, curvature: Curvature, forget: list[Any], data: Iterable[Any]) -> list[Batch]:
    check_repeatable(data)
    length, batches = count_samples(data), (read_batch(batch, problem.device) for batch in data)
    thinned = _spread(batches) if length is None else _thin(batches, max(1, -(-length // SAMPLE)))
    stays = drop_forgotten(thinned, count_digests(forget, problem.device), problem.device)
    found, count = [], 0
    for batch in regroup(stays, min(SAMPLE, curvature.group)):
        found.append(batch)
        count += len(batch[1])
        if count >= SAMPLE:
            break
    return found


def _spread(batches: Iterable[Batch]) -> list[Batch]:
    """Every so manieth sample of data whose length shows at its end: where too many are held, every other one goes."""
    held: list[Batch] = []
    every, seen = 1, 0
    for batch in batches:
        held += _thin([batch], every, seen)
        seen += len(batch[1])
        while -(-seen // every) > SAMPLE:
            held, every = list(_thin(held, 2)), 2 * every
    return held


def _thin(batches: Iterable[Batch], every: int, seen: int = 0) -> Iterator[Batch]:
    """Every so manieth sample, for data is often sorted; `seen` came before these."""
    for batch in batches:
        first, device = min(-seen % every, len(batch[1])), batch[1].device
        places = torch.arange(first, len(batch[1]), every, device=device)
        seen += len(batch[1])
        if len(places):
            yield batch if every == 1 else take_samples(batch, places)
