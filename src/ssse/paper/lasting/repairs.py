"""Repairs of many requests side by side, and the searches that ask for them one at a time.

`ssse.erase_and_repair` tries one length after the other, each with what the last one told. Here the searches of all
requests go on together, each until it asks for a repair that is not there yet; then all of those are trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from ssse.calibration.lengths import UNSEEN, Trial, walk_in_turn
from ssse.paper.lasting.case import Case, Numbers
from ssse.paper.lasting.lanes import Look, train_lanes
from ssse.paper.lasting.plans import Plan, repair_plan
from ssse.problem.view import ModelView


@dataclass(frozen=True)
class Direction:
    """Of a network's step."""

    network: nn.Module
    step: Tensor

    def at(self, length: float) -> nn.Module:
        """The network moved by so much of ‖θ‖."""
        return self.scaled(length * float(ModelView(self.network).theta().norm() / self.step.norm()))

    def scaled(self, scale: float) -> nn.Module:
        view = ModelView(self.network)
        return view.with_theta(view.theta() + scale * self.step)


@dataclass(frozen=True)
class Attempt:
    """One length along one direction: the network after the step, after its repair, and S along the repair.

    hindsight: gap, KL and AUC beside the retrained network, which nothing is chosen by; empty, as `repaired` is None,
        where the repair diverged.
    """

    direction: Direction
    stepped: nn.Module
    repaired: nn.Module | None
    along: list[float]
    hindsight: Numbers


@dataclass(frozen=True)
class Decided:
    best: Trial
    attempt: Attempt
    trials: tuple[Trial, ...]

    @property
    def direction(self) -> Direction:
        return self.attempt.direction


Asked = tuple[float, float]  # times the damping, the length


class _Missing(Exception):
    def __init__(self, asked: Asked):
        super().__init__(asked)
        self.asked: Asked = asked


@dataclass
class Walk:
    """The search of one request."""

    case: Case
    ways: Mapping[float, Direction]  # by times the damping, in the order in which they are tried
    lengths: Sequence[float]
    start: float
    found: dict[Asked, tuple[Trial, Attempt]] = field(default_factory=dict)

    def decide(self) -> Decided:
        """Raises _Missing where a repair has to be made first."""
        ways = [partial(self._there, times) for times in self.ways]
        (best, attempt), trials = walk_in_turn(ways, self.lengths, self.start)
        return Decided(best, attempt, trials)

    def _there(self, times: float, length: float) -> tuple[Trial, Attempt]:
        if (times, length) not in self.found:
            raise _Missing((times, length))
        return self.found[times, length]

    def keep(self, asked: Asked, stepped: nn.Module, repaired: nn.Module | None, along: list[float]) -> None:
        (times, length), case = asked, self.case
        damping = times * case.ground.form.recipe.decay
        if repaired is None:
            found, trial = {}, Trial(damping, length, length, UNSEEN, UNSEEN, math.inf, 0.0)
        else:
            seen = case.seen(case.finished(repaired))
            measured = case.measure(repaired)
            found = {name: measured[name] for name in ("gap", "kl", "auc")}
            trial = Trial.of(damping, length, length, seen, seen, case.original_seen)
        self.found[asked] = trial, Attempt(self.ways[times], stepped, repaired, along, found)

    def hindsight(self, trial: Trial) -> Numbers:
        """What this trial came to, beside the retrained network."""
        return next(attempt.hindsight for known, attempt in self.found.values() if known is trial)


def decide(walks: Sequence[Walk]) -> list[Decided]:
    while True:
        decided, missing = [], []
        for walk in walks:
            try:
                decided.append(walk.decide())
            except _Missing as one:
                missing.append((walk, one.asked))
        if not missing:
            return decided
        cases = [walk.case for walk, _ in missing]
        starts = [walk.ways[times].at(length) for walk, (times, length) in missing]
        plans = [repair_plan(case) for case in cases]
        along, look = following(cases, starts)
        done = trained(cases, starts, plans, look)
        for (walk, asked), start, model, line in zip(missing, starts, done, along, strict=True):
            walk.keep(asked, start, model, line)


def following(cases: Sequence[Case], starts: Sequence[nn.Module]) -> tuple[list[list[float]], Look]:
    """The accuracies on S, as they are and after every epoch that a training then looks."""
    along = [[case.on_forgotten(start)] for case, start in zip(cases, starts, strict=True)]

    def look(place: int, _: int, model: nn.Module) -> None:
        along[place].append(cases[place].on_forgotten(model))

    return along, look


def trained(
    cases: Sequence[Case], starts: Sequence[nn.Module], plans: Sequence[Plan], look: Look | None = None
) -> list[nn.Module | None]:
    """None where the training diverged."""
    if not cases:
        return []
    ground = cases[0].ground
    return train_lanes(
        ground.x, starts, plans, autocast=ground.form.recipe.autocast, look=look, keep=True,
        progress=ground.settings.show_progress,
    )  # fmt: skip
