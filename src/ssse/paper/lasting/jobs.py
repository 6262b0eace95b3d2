"""The study as a list of jobs whose numbers are kept: they may be done in any order, by several processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ssse.calibration import lasting as search
from ssse.curvature.choices import LowRank
from ssse.curvature.curvature import Curvature
from ssse.erasure import repair
from ssse.erasure.erase import erase
from ssse.paper.cache import key_of
from ssse.paper.lasting import case as cases
from ssse.paper.lasting import methods
from ssse.paper.lasting.case import LOSS, Case, Numbers
from ssse.paper.lasting.methods import OPPONENTS, Opponent
from ssse.paper.lasting.networks import Form, Ground, Twins, prepare, train_twins
from ssse.paper.network import exact_arithmetic
from ssse.paper.settings import Settings
from ssse.paper.study import Removal, timed
from ssse.problem import short_training
from ssse.problem.wrappers import copied

PAPER_DAMPING = 1e-4
Rows = Literal["margin", "empirical"]
_SOURCES = (cases, methods, search, repair, short_training)


@dataclass(frozen=True)
class Job:
    """One method's answer to one request of one seed."""

    case: Case
    method: str
    work: Callable[[], Numbers]


@dataclass(frozen=True)
class Study:
    settings: Settings
    form: Form

    @cached_property
    def ground(self) -> Ground:
        return prepare(self.settings, self.form)

    @cached_property
    def twins(self) -> list[Twins]:
        """Of the seeds that everything is measured on, then those of the shadows."""
        seeds = list(range(self.form.seeds + self.form.shadows))
        if self.form.shadows:
            return train_twins(self.ground, seeds)
        return [train_twins(self.ground, [seed])[0] for seed in seeds]

    @cached_property
    def cases(self) -> dict[tuple[int, str], Case]:
        return {(t.seed, r.words): Case(self.ground, t, r) for t in self.twins for r in self.ground.removals}

    def jobs(self) -> list[Job]:
        found = []
        for twins in self.twins:
            for removal in self.ground.removals:
                found += self._jobs_of(twins, removal)
        return found

    def run(self, job: Job) -> Numbers:
        key = key_of(f"lasting-{job.method}", *self._base(job.case), job.method, *_SOURCES)
        return self.settings.cache.numbers(key, job.work)

    def steps(self, twins: Twins, rows: Rows = "margin") -> tuple[dict[str, Tensor], Numbers]:
        """The direction of every request, at ε = 1; and of the fit and each request its seconds and its residual."""
        ground, told = self.ground, {}
        key = key_of(f"steps-{rows}", ground.digest, str(self.form), twins.seed, ground.x.device.type, *self._parts())

        def make() -> dict[str, Tensor]:
            directions, told["numbers"] = self._solve(twins, rows)
            return directions

        directions = self.settings.cache.tensors(key, make)
        numbers = self.settings.cache.numbers(f"{key}-told", lambda: told.get("numbers", {}))
        return {words: value.to(ground.x.device) for words, value in directions.items()}, numbers

    def chosen(self, opponent: Opponent, removal: Removal) -> Numbers:
        """Its settings for this kind of request: tuned on the first request of the kind, with the first seed."""
        alike = next(r for r in self.ground.removals if r.rate == removal.rate)
        first = self.cases[self.twins[0].seed, alike.words]
        return self.run(Job(first, f"tuned {opponent.key}", lambda: methods.tuned(first, opponent)))

    def _jobs_of(self, twins: Twins, removal: Removal) -> list[Job]:
        case = self.cases[twins.seed, removal.words]

        def direction(rows: Rows = "margin") -> Tensor:
            return self.steps(twins, rows)[0][removal.words]

        jobs = [
            Job(case, "nothing", lambda: methods.nothing(case)),
            Job(case, "retrained", lambda: methods.retrained(case)),
            Job(case, "stepped", lambda: methods.stepped(case, direction())),
            Job(case, "lasting", lambda: methods.lasting(case, direction())),
            Job(case, "ascended", lambda: methods.ascended(case)),
        ]
        if twins.seed == 0:
            jobs.append(Job(case, "paper", lambda: methods.paper(case, direction("empirical"))))
        for opponent in OPPONENTS:

            def work(opponent: Opponent = opponent) -> Numbers:
                return methods.opposed(case, opponent, self.chosen(opponent, removal))

            jobs.append(Job(case, opponent.key, work))
        return jobs

    def _solve(self, twins: Twins, rows: Rows) -> tuple[dict[str, Tensor], Numbers]:
        ground, decay = self.ground, self.form.recipe.decay
        batches = self.cases[twins.seed, ground.removals[0].words].data
        original = copied(twins.original).to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        told: dict[str, Any] = {"requests": {}}
        damping = decay if rows == "margin" else PAPER_DAMPING
        with exact_arithmetic():
            curvature, told["fit_seconds"] = timed(
                lambda: Curvature.fit(
                    original, LOSS, batches, weight_decay=decay, damping=damping, rows=rows,
                    structure=LowRank(kernel="float64"), memory_budget=_budget(ground.x.device), progress=False,
                ),
                ground.x.device,
            )  # fmt: skip
            directions = {}
            for removal in ground.removals:
                forget = self.cases[twins.seed, removal.words].forget
                erasure, seconds = timed(
                    lambda forget=forget: erase(
                        original, curvature, LOSS, forget, scale=1.0, leave_out=rows == "margin",
                        override=("step", "leverage"), progress=False,
                    ),
                    ground.x.device,
                )  # fmt: skip
                measured = erasure.diagnostics
                told["requests"][removal.words] = {
                    "seconds": seconds, "residual": measured.solve_residual, "length": erasure.reach,
                    "leverage": measured.leverage_max, "verdict": measured.verdict,
                }  # fmt: skip
                directions[removal.words] = erasure.direction.cpu()
        return directions, told

    def _base(self, case: Case) -> list[Any]:
        form = str(self.form)
        return [self.ground.digest, form, case.twins.seed, self.ground.x.device.type, *case.removal.parts]

    def _parts(self) -> list[Any]:
        return [part for removal in self.ground.removals for part in removal.parts]


def _budget(device: torch.device) -> int | None:
    """The rows and their kernel may take nearly all of a GPU: nothing else is held then."""
    return int(0.92 * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None
