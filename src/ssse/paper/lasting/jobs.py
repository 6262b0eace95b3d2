"""The study as blocks of numbers that are kept: one method's answers to all requests of one seed.

Blocks may be computed in any order, and by several processes: what one of them has, the others read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ssse.calibration.lengths import DAMPINGS, LOOKED_AT, START, Splits, Trial, losses_of, shortfall, walk, walk_in_turn
from ssse.curvature.choices import LowRank
from ssse.curvature.curvature import Curvature
from ssse.erasure.erase import erase
from ssse.errors import InvalidSetting
from ssse.paper.cache import engine, key_of
from ssse.paper.lasting import case as cases
from ssse.paper.lasting import lanes, methods, plans, projected, repairs
from ssse.paper.lasting.case import PASS, Case, Numbers
from ssse.paper.lasting.lanes import TOGETHER
from ssse.paper.lasting.methods import pushed
from ssse.paper.lasting.networks import LOSS, OTHER_PUSH, Form, Ground, Twins, prepare, train_twins, twins_key
from ssse.paper.lasting.plans import OPPONENTS, Opponent
from ssse.paper.lasting.projected import ProjectedKernel, Projection
from ssse.paper.network import exact_arithmetic
from ssse.paper.settings import Settings
from ssse.paper.study import Removal, timed
from ssse.problem.view import ModelView
from ssse.problem.wrappers import copied
from ssse.verdict import BOUNDS

PAPER_DAMPING = 1e-4
OURS, ALONE, NOTHING, RETRAINED, PAPER, ASCENT = "lasting", "stepped", "nothing", "retrained", "paper", "ascended"
PUSHED = "lasting, pushed otherwise"
OWN = (OURS, NOTHING, ALONE, RETRAINED)  # without these there is nothing to be told

Rows = Literal["margin", "empirical"]
# Times the damping, and whether margins are pushed: the one step, and the directions that ours may take.
WAYS = ((1.0, False), *((times, True) for times in DAMPINGS))


@dataclass(frozen=True)
class Block:
    """One method, one seed."""

    method: str
    seed: int


@dataclass(frozen=True)
class Study:
    settings: Settings
    form: Form
    _twins: dict[int, Twins] = field(default_factory=dict, repr=False, compare=False)
    _cases: dict[int, list[Case]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def ground(self) -> Ground:
        return prepare(self.settings, self.form)

    @cached_property
    def otherwise(self) -> Study:
        """The same networks and requests, our step along the other push."""
        found = replace(self, form=replace(self.form, push=OTHER_PUSH))
        found.__dict__["ground"] = self.ground  # its images are held once
        return found

    @property
    def shadows(self) -> range:
        """Seeds beyond those that everything is measured on."""
        return range(self.form.seeds, self.form.seeds + self.form.shadows)

    def removals(self, seed: int) -> list[Removal]:
        """The requests to this seed's network."""
        few = self.form.shadowed if seed in self.shadows else None
        return [removal for removal in self.ground.removals if few is None or removal.rate in few]

    def twins(self, seed: int) -> Twins:
        """Trained when they are first asked for: on a GPU with those of as many further seeds as it can hold."""
        if seed not in self._twins:
            found = train_twins(self.ground, self._together(seed), self.removals(seed))
            self._twins.update((twins.seed, twins) for twins in found)
        return self._twins[seed]

    def _together(self, seed: int) -> list[int]:
        """The seeds that are trained with this one, itself among them."""
        seeds = self.shadows if seed in self.shadows else range(self.form.seeds)
        most = max(1, TOGETHER // (1 + len(self.removals(seed)))) if self.ground.x.is_cuda else 1
        first = seeds.start + (seed - seeds.start) // most * most
        return list(range(first, min(first + most, seeds.stop)))

    def cases(self, seed: int) -> list[Case]:
        """In the order of the requests."""
        if seed not in self._cases:
            twins = self.twins(seed)
            self._cases[seed] = [Case(self.ground, twins, removal) for removal in self.removals(seed)]
        return self._cases[seed]

    def blocks(self) -> list[Block]:
        """What matters most first. The paper's step and gradient ascent: with the first seed alone."""
        others = [opponent.key for opponent in OPPONENTS]
        seeds = range(self.form.seeds)
        found = [Block(name, seed) for seed in seeds for name in OWN]
        if not self.form.opponents:
            return found
        found += [Block(name, 0) for name in [*others, ASCENT, *([] if self.form.projected else [PAPER])]]
        found += [Block(PUSHED, 0)] if self.form.both_pushes else []
        found += [Block(name, seed) for seed in seeds[1:] if self.form.opponents_of_all_seeds for name in others]
        return found + [Block(name, seed) for seed in self.shadows for name in (OURS, NOTHING, RETRAINED, *SHADOWED)]

    def numbers(self, block: Block) -> dict[str, Numbers]:
        """By the words of the request; computed or read."""
        if block.method == PUSHED:
            return self.otherwise.numbers(Block(OURS, block.seed))
        found = self.settings.cache.numbers(self.key(block), lambda: self._compute(block))
        return dict(zip([case.words for case in self.cases(block.seed)], found, strict=True))

    def has(self, block: Block) -> bool:
        """Nothing is trained to know it."""
        seed, cache = block.seed, self.settings.cache
        trained = seed in self._twins or cache.has(twins_key(self.ground, self._together(seed), self.removals(seed)))
        return trained and cache.has(self.key(block))

    def key(self, block: Block) -> str:
        if block.method == PUSHED:
            return self.otherwise.key(Block(OURS, block.seed))
        judging = {OURS: (walk, walk_in_turn, shortfall, losses_of, Trial, Splits), ASCENT: (Splits,)}.get(
            block.method, ()
        )
        rule: list[Any] = [inspect.getsource(part) for part in judging]
        rule += [case.followed for case in self.cases(block.seed)]
        rule += [DAMPINGS, self.form.lengths, self.form.push] if block.method == OURS else []
        training = [str(case.repairing) for case in self.cases(block.seed)]
        sources = (cases, methods, repairs, lanes, plans)
        return key_of(f"lasting-{block.method}", *self.base(block.seed), block.method, START, rule, training, *sources)

    def asked(self, seed: int) -> list[Case]:
        """The requests that the others answer: all, or the first of each share; shadows all that they have."""
        every = self.form.opponents_of_all_requests or seed in self.shadows
        return [case for case in self.cases(seed) if every or case.followed]

    def directed(self, seed: int, push: bool) -> list[Case]:
        """Ours goes along a push of the margins, for every request; the exact step of shadows is not looked at."""
        return self.cases(seed) if push else [] if seed in self.shadows else self.asked(seed)

    def steps(self, seed: int, rows: Rows = "margin") -> tuple[dict[str, Tensor], Numbers]:
        """The direction of the requests that are `asked`, at ε = 1; and of the fit and each request its seconds and its
        residual.

        Of margin rows also the directions that ours may take, of every request, as `methods.pushed` names them.
        """
        key, cache = self.step_key(seed, rows), self.settings.cache
        solver = self._solve_projected if self.form.projected else self._solve
        solved: dict[str, Tensor] = {}

        def solve() -> Numbers:
            directions, told = solver(self.twins(seed), rows)
            solved.update(cache.tensors(key, lambda: directions))
            return told

        # The directions are there before what is told of them: another process, or the next run, never has half of it.
        numbers = cache.numbers(f"{key}-told", solve)
        directions = solved or cache.tensors(key, lambda: solver(self.twins(seed), rows)[0])
        return {words: value.to(self.ground.x.device) for words, value in directions.items()}, numbers

    def step_key(self, seed: int, rows: Rows = "margin") -> str:
        how = (*((projected,) if self.form.projected else ()), *((self.form.push, *WAYS) if rows == "margin" else ()))
        return key_of(f"steps-{rows}", *self.base(seed), *how, self.form.opponents_of_all_requests)

    def chosen(self, opponent: Opponent, cases: Sequence[Case]) -> list[Numbers]:
        """Its settings for these requests: tuned with the first seed, on the first of each share."""
        tuned = [case for case in self.cases(0) if case.followed]
        key = self.key(Block(f"tuned {opponent.key}", 0)).replace(" ", "-")
        found = self.settings.cache.numbers(key, lambda: methods.tuned(tuned, opponent))
        by_rate = {case.removal.rate: (case, one) for case, one in zip(tuned, found, strict=True)}

        def settings(case: Case) -> Numbers:
            first, one = by_rate[case.removal.rate]
            return one if case is first else {key: value for key, value in one.items() if key != "answer"}

        return [settings(case) for case in cases]

    def _compute(self, block: Block) -> list[Numbers]:
        cases = self.cases(block.seed)
        some = cases if block.method in (OURS, NOTHING, RETRAINED) else self.asked(block.seed)
        ways: dict[str, Callable[[], list[Numbers]]] = {
            NOTHING: lambda: methods.nothing(some),
            RETRAINED: lambda: methods.retrained(some),
            ALONE: lambda: methods.stepped(some, self.steps(block.seed)[0]),
            OURS: lambda: methods.lasting(some, self.steps(block.seed)[0], follow=block.seed == 0),
            ASCENT: lambda: methods.ascended(some),
            PAPER: lambda: methods.paper(some, self.steps(block.seed, "empirical")[0]),
        }
        for opponent in OPPONENTS:
            ways[opponent.key] = lambda one=opponent: methods.answered(some, one, self.chosen(one, some))
        found = dict(zip((case.words for case in some), ways[block.method](), strict=True))
        return [found.get(case.words, {}) for case in cases]

    def _solve(self, twins: Twins, rows: Rows) -> tuple[dict[str, Tensor], Numbers]:
        ground, decay, device = self.ground, self.form.recipe.decay, self.ground.x.device
        original = copied(twins.original).to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        batches = list(zip(ground.x.split(PASS), ground.y.split(PASS), strict=True))
        told: Numbers = {"requests": {}}
        with exact_arithmetic():
            curvature, told["fit_seconds"] = timed(
                lambda: Curvature.fit(
                    original,
                    LOSS,
                    batches,
                    weight_decay=decay,
                    damping=decay if rows == "margin" else PAPER_DAMPING,
                    rows=rows,
                    structure=LowRank(kernel="float64"),
                    memory_budget=_budget(device),
                    progress=self.settings.show_progress,
                ),
                device,
            )
            directions = {}
            for times, push in WAYS if rows == "margin" else WAYS[:1]:
                damped = curvature if times == 1 else curvature.with_damping(times * curvature.damping)
                for case in self.directed(twins.seed, push):
                    erasure, seconds = timed(
                        lambda case=case, damped=damped, push=push: erase(
                            original,
                            damped,
                            LOSS,
                            case.forget,
                            scale=LOOKED_AT,
                            leave_out=rows == "margin",
                            push=self.form.push if push else None,
                            override=BOUNDS,  # its direction alone: how far to go is what is studied
                            progress=False,
                        ),
                        device,
                    )
                    measured, name = erasure.diagnostics, pushed(case.words, times) if push else case.words
                    told["requests"][name] = {
                        "seconds": seconds,
                        "residual": measured.solve_residual,
                        "length": erasure.reach,
                        "verdict": measured.verdict,
                    }
                    directions[name] = erasure.direction.cpu()
        return directions, told

    def _solve_projected(self, twins: Twins, rows: Rows) -> tuple[dict[str, Tensor], Numbers]:
        if rows != "margin":
            raise InvalidSetting("Only margin rows have a projected kernel.")
        ground, decay, device = self.ground, self.form.recipe.decay, self.ground.x.device
        original = copied(twins.original).to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        told: Numbers = {"requests": {}}
        directions, norm = {}, float(ModelView(original).theta().norm())
        with exact_arithmetic():
            kernel, told["fit_seconds"] = timed(
                lambda: ProjectedKernel.fit(
                    original, ground.x, ground.y, Projection.of(original), self.settings.show_progress
                ),
                device,
            )
            for times, push, case in ((*way, case) for way in WAYS for case in self.directed(twins.seed, way[1])):
                direction, seconds = timed(
                    lambda times=times, push=push, case=case: kernel.direction(
                        case.removal.forget.to(device), decay, times * decay, self.form.push if push else 1.0
                    ),
                    device,
                )
                name = pushed(case.words, times) if push else case.words
                told["requests"][name] = {
                    "seconds": seconds,
                    "residual": None,  # of the system with the true kernel, which nobody has
                    "length": float(direction.norm()) / norm,
                    "verdict": None,
                }
                directions[name] = direction.to(ground.x.dtype).cpu()
        return directions, told

    def base(self, seed: int) -> Sequence[Any]:
        """What every number depends on: its networks, and those that they were trained with, among it."""
        removals = self.removals(seed)
        networks = twins_key(self.ground, self._together(seed), removals)
        return [networks, seed, self.ground.x.device.type, engine(), *(part for one in removals for part in one.parts)]


SHADOWED = ("labels", "salun")  # opponents that U-LiRA looks at as well


def _budget(device: torch.device) -> int | None:
    """The rows and their kernel may take nearly all of a GPU: nothing else is held then."""
    return int(0.92 * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None
