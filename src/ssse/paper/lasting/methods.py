"""Every method's answers to some requests, alone and with the repair that all of them share, trained side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from ssse import baselines
from ssse.calibration.lengths import DAMPINGS, START, Trial
from ssse.errors import Diverged, InvalidSetting
from ssse.paper.lasting.case import Case, Numbers
from ssse.paper.lasting.lanes import train_lanes
from ssse.paper.lasting.networks import LOSS
from ssse.paper.lasting.plans import Opponent, Settings, cycle_plan, repair_plan
from ssse.paper.lasting.repairs import Direction, Walk, decide, following, trained

SCALES = np.geomspace(1e-2, 1e1, 10)  # of the paper's step: it is shown at the best of them
MOMENTS = (1, 3, 8)
ASCENDING = (1e-4, 1e-3, 1e-2, 1e-1)  # rates of ascent, of which the first is taken that gets there

Directions = Mapping[str, Tensor]
Repaired = tuple[nn.Module | None, list[float]]


def pushed(words: str, times: float) -> str:
    """The name of a request's direction that pushes its margins, with so many times the training's damping."""
    return f"{words}, pushed" if times == 1 else f"{words}, pushed, λ × {times:g}"


def nothing(cases: Sequence[Case]) -> list[Numbers]:
    """The originals; repaired, they are the usual fine-tuning."""
    alone = [{"alone": case.measure(case.original)} for case in cases]
    return joined(alone, mended(cases, [case.original for case in cases]))


def retrained(cases: Sequence[Case]) -> list[Numbers]:
    alone, models = [{"alone": case.measure(case.retrained)} for case in cases], [case.retrained for case in cases]
    return joined(alone, resurfaced(cases, models), pressed(cases, models))


def paper(cases: Sequence[Case], directions: Directions) -> list[Numbers]:
    """The paper's step at the ε that is best in hindsight, by the gap, which nobody knows without retraining."""
    answers = []
    for case in cases:
        way = Direction(case.original, directions[case.words])
        found = [case.measure(way.scaled(float(scale))) | {"scale": float(scale)} for scale in SCALES]
        answers.append({"alone": min(found, key=lambda one: one["gap"])})
    return answers


def stepped(cases: Sequence[Case], directions: Directions) -> list[Numbers]:
    """Ours from S alone: the exact step at ε = 1."""
    return [{"alone": case.measure(Direction(case.original, directions[case.words]).scaled(1.0))} for case in cases]


def lasting(cases: Sequence[Case], directions: Directions, follow: bool = True) -> list[Numbers]:
    """Ours: damping and length of the step chosen by a few repairs, by the rule of `ssse.erase_and_repair`.

    follow: what comes back is looked at for all requests.
    """
    walks = [
        Walk(
            case,
            {times: Direction(case.original, directions[pushed(case.words, times)]) for times in DAMPINGS},
            case.ground.form.lengths,
            START,
        )
        for case in cases
    ]
    answers, chosen = [], []
    for walk, found in zip(walks, decide(walks), strict=True):
        case, best, attempt = walk.case, found.best, found.attempt
        if attempt.repaired is None:
            raise Diverged(f"{case.words}: the repair diverged after every step that was tried.")
        chosen.append(attempt.repaired)
        answers.append(
            {
                "damping": best.damping,
                "length": best.length,
                "trials": [_told(trial) | walk.hindsight(trial) for trial in found.trials],
                "alone": case.measure(attempt.stepped),
                "repaired": case.measure(attempt.repaired),
                "along": attempt.along,
            }
        )
    return joined(answers, resurfaced(cases, chosen, always=follow), pressed(cases, chosen))


def _told(trial: Trial) -> Numbers:
    found = {"damping": trial.damping, "length": trial.length}
    if math.isinf(trial.shortfall):
        return found | {"shortfall": None}
    seen = trial.seen
    shares = {"forgotten": 100 * seen.forgotten, "expected": 100 * seen.expected, "told": seen.told}
    return found | {"shortfall": 100 * trial.shortfall} | shares


def ascended(cases: Sequence[Case]) -> list[Numbers]:
    """Gradient ascent until S is as little known as held-out samples of its kind, and a whole class not at all."""
    models = [_ascended(case) for case in cases]
    alone = [{"alone": case.measure(model)} for case, model in zip(cases, models, strict=True)]
    return joined(alone, mended(cases, models))


def tuned(cases: Sequence[Case], opponent: Opponent) -> list[Numbers]:
    """Which settings of the grid come nearest to the retrained network, alone and after the repair; and its answers.

    In hindsight, by the gap itself: in the opponents' favour. Our step is chosen without it.
    """
    tried = [(case, settings) for case in cases for settings in opponent.grid]
    asked = [case for case, _ in tried]
    models = opposed(asked, opponent, [settings for _, settings in tried])
    repairs = repaired(asked, models)
    gaps = np.full((2, len(tried)), np.inf)  # infinite where the training diverged
    for place, (case, model) in enumerate(zip(asked, models, strict=True)):
        if model is not None:
            gaps[0, place] = case.measure(model)["gap"]
        if (healed := repairs[place][0]) is not None:
            gaps[1, place] = case.measure(healed)["gap"]
    answers, first = [], np.arange(len(cases)) * len(opponent.grid)
    for values in np.split(gaps, len(cases), axis=1):
        alone, after = values.argmin(1)
        answers.append({"alone": int(alone), "repaired": int(after), "gaps": values.tolist()})
    own = [models[at + one["alone"]] for at, one in zip(first, answers, strict=True)]
    best = [repairs[at + one["repaired"]] for at, one in zip(first, answers, strict=True)]
    for one, found in zip(answers, joined(measured(cases, own), told(cases, best)), strict=True):
        one["answer"] = found
    return answers


def answered(cases: Sequence[Case], opponent: Opponent, chosen: Sequence[Numbers]) -> list[Numbers]:
    """With the settings that were chosen for it, those for itself and those for the repair after it.

    Those that it was tuned on it has answered already.
    """
    if fresh := [place for place, one in enumerate(chosen) if "answer" not in one]:
        found = iter(_answered([cases[i] for i in fresh], opponent, [chosen[i] for i in fresh]))
        return [next(found) if place in fresh else one["answer"] for place, one in enumerate(chosen)]
    return [one["answer"] for one in chosen]


def _answered(cases: Sequence[Case], opponent: Opponent, chosen: Sequence[Numbers]) -> list[Numbers]:
    alone = opposed(cases, opponent, [opponent.grid[one["alone"]] for one in chosen])
    other = [place for place, one in enumerate(chosen) if one["alone"] != one["repaired"]]
    again = opposed([cases[place] for place in other], opponent, [opponent.grid[chosen[i]["repaired"]] for i in other])
    before = list(alone)
    for place, model in zip(other, again, strict=True):
        before[place] = model
    return joined(measured(cases, alone), mended(cases, before))


def opposed(cases: Sequence[Case], opponent: Opponent, settings: Sequence[Settings]) -> list[nn.Module | None]:
    """None where the training diverged."""
    if not cases:
        return []
    plans = [opponent.plan(case, one) for case, one in zip(cases, settings, strict=True)]
    originals = [case.original for case in cases]
    ground = cases[0].ground
    return train_lanes(ground.x, originals, plans, autocast=ground.form.recipe.autocast, progress=False, keep=True)


def measured(cases: Sequence[Case], models: Sequence[nn.Module | None]) -> list[Numbers]:
    """As they are; empty where there is none."""
    return [{} if model is None else {"alone": case.measure(model)} for case, model in zip(cases, models, strict=True)]


def repaired(cases: Sequence[Case], starts: Sequence[nn.Module | None]) -> list[Repaired]:
    """The networks after the repair, and S after every epoch of it; None where there was none, or it diverged."""
    whole = [(case, start) for case, start in zip(cases, starts, strict=True) if start is not None]
    along, look = following([case for case, _ in whole], [start for _, start in whole])
    done = trained([case for case, _ in whole], [s for _, s in whole], [repair_plan(case) for case, _ in whole], look)
    found = iter([
        (None if model is None else case.finished(model), line)
        for (case, _), model, line in zip(whole, done, along, strict=True)
    ])  # fmt: skip
    return [(None, []) if start is None else next(found) for start in starts]


def told(cases: Sequence[Case], repairs: Sequence[Repaired]) -> list[Numbers]:
    """Of repaired networks, and what comes back in further epochs; empty where there is none."""
    there = [(case, model) for case, (model, _) in zip(cases, repairs, strict=True) if model is not None]
    followed = iter(resurfaced([case for case, _ in there], [model for _, model in there]))
    return [
        {} if model is None else {"repaired": case.measure(model), "along": along} | next(followed)
        for case, (model, along) in zip(cases, repairs, strict=True)
    ]


def mended(cases: Sequence[Case], starts: Sequence[nn.Module | None]) -> list[Numbers]:
    """The repair, with S seen after every epoch, and what comes back in further epochs."""
    return told(cases, repaired(cases, starts))


def resurfaced(cases: Sequence[Case], models: Sequence[nn.Module], always: bool = False) -> list[Numbers]:
    """S along a harmless training, of the requests that are followed; always: of all."""
    followed = [place for place, case in enumerate(cases) if always or case.followed]
    moments: dict[int, list[Numbers]] = {place: [cases[place].moment(models[place], 0)] for place in followed}
    plans = [cycle_plan(cases[place], cases[place].harmless, MOMENTS[-1]) for place in followed]
    plans = [replace(plan, looks=tuple(plan.looks[epoch - 1] for epoch in MOMENTS)) for plan in plans]

    def look(place: int, steps: int, model: nn.Module) -> None:
        epoch = MOMENTS[plans[place].looks.index(steps)]
        moments[followed[place]].append(cases[followed[place]].moment(model, epoch))

    trained([cases[place] for place in followed], [models[place] for place in followed], plans, look)
    return [{"moments": moments[place]} if place in moments else {} for place in range(len(cases))]


def pressed(cases: Sequence[Case], models: Sequence[nn.Module]) -> list[Numbers]:
    """S before and after as many epochs at the rate of the repair itself, of the requests that are followed.

    Not of the largest networks, whose epochs are dear: what comes back at half the rate is seen of them.
    """
    some = [place for place, case in enumerate(cases) if case.followed and not case.ground.form.projected]
    plans = [cycle_plan(cases[place], cases[place].repairing, MOMENTS[-1]) for place in some]
    done = trained([cases[place] for place in some], [models[place] for place in some], plans)
    found: list[Numbers] = [{} for _ in cases]
    for place, model in zip(some, done, strict=True):
        if model is not None:
            pair = (0, models[place]), (MOMENTS[-1], model)
            found[place] = {"pressed": [cases[place].moment(one, epoch) for epoch, one in pair]}
    return found


def joined(*parts: Sequence[Numbers]) -> list[Numbers]:
    return [{name: value for one in found for name, value in one.items()} for found in zip(*parts, strict=True)]


def _ascended(case: Case) -> nn.Module:
    wanted, batch = min(max(case.original_seen.expected, 0.01), 0.99), case.ground.form.recipe.batch
    for rate in ASCENDING:
        try:
            return baselines.gradient_ascent_until(
                case.original, None, LOSS, case.forget, stop_accuracy=wanted, epochs=20, learning_rate=rate,
                batch_size=batch, progress=False,
            ).model  # fmt: skip
        except InvalidSetting:
            continue
    raise InvalidSetting(f"Gradient ascent does not bring S down to {wanted:.0%} at any of the rates {ASCENDING}.")
