"""ε as the minimum of the leave-k-out loss along the step: nothing is retrained, a sample of the data is enough.

With φ(ε) = L₋S(θ* + εu) and θ* stationary, φ′(0) = −g_S·u/(n−k), which is exact from S alone; the rest of φ is measured
on a sample of the data that stays.

    by_curvature   ε = (g_S·u) / ((n−k) φ″(0)): to second order, one second derivative
    by_loss        φ′(ε) = 0 itself, by bisection and secants: a dozen passes over the sample

That is where the retrained model is only if the model is linear in θ. The loss of a network bends upwards along the
step where the retrained network follows another path, and the minimum comes at about half of the ε at which the
predictions on S are a retrained network's. So with rows whose own ε is 1, it is searched for only if 1 does harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from scipy.optimize import brentq
from torch import nn

from ssse.calibration.criteria import Undecided
from ssse.curvature.curvature import Curvature
from ssse.erasure.retained import count_digests, drop_forgotten
from ssse.errors import InvalidData
from ssse.evaluation.step_path import StepPath
from ssse.problem.batches import Batch, check_repeatable, count_samples, read_batch, regroup, take_samples
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem
from ssse.problem.view import ModelView

SAMPLE = 4096  # samples that are looked at
HARM = 0.1  # of the rise on S: by less rises the loss on what stays where the step forgets, by as much where it ruins
ERRORS = 2.0  # standard errors of that rise, below which it is noise
FURTHEST = 64.0  # times the ε of the quadratic model, or 1: how far a minimum is looked for


@dataclass(frozen=True)
class LossAlongStep:
    """The leave-k-out loss along a step.

    Attributes:
        path: θ* + εu. removed: S. retained: a sample of the data that stays, of `count` samples.
        pull: g_S·u. remaining: n − k. decay: w.
    """

    path: StepPath
    removed: list[Batch]
    retained: list[Batch]
    count: int
    pull: float
    remaining: int
    decay: float

    def check_harm(self, rows: str) -> str:
        """What the step does to the loss at ε = 1, in words; Undecided where it does no harm to what stays."""
        stays, gone = self._rises(self.retained), self._rises(self.removed)
        mean, on_s = float(stays.mean()), float(gone.mean())
        error = float(stays.std()) / max(len(stays), 1) ** 0.5 if len(stays) > 1 else 0.0
        found = f"at ε = 1 the mean loss rises by {mean:.2g} on what stays and by {on_s:.2g} on S"
        if mean <= max(HARM * on_s, ERRORS * error):  # NaN is harm
            raise Undecided(
                f"With {rows} rows ε = 1 is the step's own scale, and it does no harm here: {found} ({error:.1g} is "
                "noise). Where the loss along a network's step is least says nothing better: measured against "
                "retrained networks it falls short. Stay with ε = 1, or retrain once and pass retrained=.",
                None,
            )
        return found

    def by_curvature(self) -> tuple[float, str]:
        curvature = self._second_derivative()
        if not curvature > 0 or not self.pull > 0:
            raise Undecided(
                f"Along this step the loss on the data that stays has curvature {curvature:.3g} and the forgotten "
                f"samples pull with {self.pull:.3g}; both must be positive for a line search. The model is "
                "not near a minimum there: train further, or retrain once and pass retrained=.",
                None,
            )
        return self.pull / (
            self.remaining * curvature
        ), f"curvature {curvature:.3g} along the step, {self._measured_on}"

    def by_loss(self) -> tuple[float, str]:
        if not self.pull > 0:
            raise Undecided(
                f"Along this step the forgotten samples pull with {self.pull:.3g}, which must be positive for the loss "
                "to fall at first. The model is not near a minimum there: train further, or retrain once and pass "
                "retrained=.",
                None,
            )
        curvature = self._second_derivative()
        convex = curvature > 0 and isfinite(self.pull / (self.remaining * curvature))
        start = self.pull / (self.remaining * curvature) if convex else 1.0  # a guess alone
        at_zero = self._mean_derivative(0.0)

        def slope(scale: float) -> float:
            """φ′(ε), with φ′(0) as S gives it: the sample's own would add its noise."""
            value = (
                self._mean_derivative(scale) - at_zero + self.decay * scale * self._squared - self.pull / self.remaining
            )
            return value if isfinite(value) else inf  # overflow: much too far

        high = start
        while slope(high) < 0:
            high *= 2
            if high > FURTHEST * start:
                raise Undecided(
                    f"The loss on the data that stays still falls at ε = {high / 2:.3g} along this step; there is no "
                    "minimum to find. Retrain once and pass retrained=, or choose ε by hand.",
                    None,
                )
        scale = float(brentq(slope, 0.0, high, xtol=1e-9 * start, rtol=1e-6))  # pyright: ignore[reportArgumentType]
        guess = f"to second order it would be at {start:.3g}" if convex else "at θ* it does not bend upwards"
        return scale, f"the leave-k-out loss is least there ({guess}), {self._measured_on}"

    def _rises(self, batches: list[Batch]) -> torch.Tensor:
        return torch.cat([self.path.losses(b, 1.0).double() - self.path.losses(b).double() for b in batches])

    def _second_derivative(self) -> float:
        """φ″(0)."""
        return (
            sum(self.path.second_derivative(batch) for batch in self.retained) / self.count + self.decay * self._squared
        )

    def _mean_derivative(self, scale: float) -> float:
        return sum(self.path.derivative(batch, scale) for batch in self.retained) / self.count

    @property
    def _squared(self) -> float:
        u = self.path.direction.double()
        return float(u @ u)

    @property
    def _measured_on(self) -> str:
        return f"measured on {self.count} samples that stay"


def loss_along_step(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    forget: list[Any],
    direction: torch.Tensor,
    data: Iterable[Any],
    residual: bool,
) -> LossAlongStep:
    """Read S and a sample of the rest."""
    view = ModelView(model, curvature.layout.names)
    removed = list(regroup((read_batch(batch, view.device) for batch in forget), curvature.group))
    problem = Problem(view.working, loss_fn, curvature.layout.names, removed[0])
    path = StepPath(problem, direction)
    k = sum(len(y) for _, y in removed)
    theta, u, decay = path.theta.double(), path.direction.double(), curvature.weight_decay
    pull = sum(path.derivative(batch) for batch in removed) + k * decay * float(theta @ u)
    joint, n = curvature.joint, curvature.n
    if joint is not None:  # the step is away from all that the stream has forgotten so far
        pull, n = pull + float(joint.removed_gradient.double() @ u), joint.n
    if residual and curvature.gradient is not None:
        pull -= n * float(curvature.gradient.double() @ u)
    retained = _sample(problem, curvature, forget, data)
    count = sum(len(y) for _, y in retained)
    if not count:
        raise InvalidData("The data for the line search is empty, or holds the forgotten samples only.")
    return LossAlongStep(path, removed, retained, count, pull, curvature.n - k, decay)


def _sample(problem: Problem, curvature: Curvature, forget: list[Any], data: Iterable[Any]) -> list[Batch]:
    """Up to `SAMPLE` retained samples, evenly spread over the data, which is often sorted."""
    check_repeatable(data)
    length, batches = count_samples(data), (read_batch(batch, problem.device) for batch in data)
    spread = _spread(batches) if length is None else _every(max(1, -(-length // SAMPLE)), batches)
    retained = drop_forgotten(spread, count_digests(forget, problem.device), problem.device)
    sample, count = [], 0
    for batch in regroup(retained, min(SAMPLE, curvature.group)):
        problem.check_labels(batch[1])
        sample.append(batch)
        count += len(batch[1])
        if count >= SAMPLE:
            break
    return sample


def _spread(batches: Iterable[Batch]) -> list[Batch]:
    """Evenly spread samples of data whose length shows at its end: where too many are held, every other one goes."""
    held: list[Batch] = []
    interval, read = 1, 0
    for batch in batches:
        held += _every(interval, [batch], read)
        read += len(batch[1])
        while -(-read // interval) > SAMPLE:
            held, interval = list(_every(2, held)), 2 * interval
    return held


def _every(interval: int, batches: Iterable[Batch], before: int = 0) -> Iterator[Batch]:
    """The samples at multiples of the interval, counted over all batches; `before` samples came before these."""
    for batch in batches:
        first, device = min(-before % interval, len(batch[1])), batch[1].device
        places = torch.arange(first, len(batch[1]), interval, device=device)
        before += len(batch[1])
        if len(places):
            yield batch if interval == 1 else take_samples(batch, places)
