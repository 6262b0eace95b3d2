"""Every method's answer to a request, alone and with the repair that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from ssse import baselines
from ssse.baselines.update import Updated
from ssse.calibration.lasting import LENGTHS, START, search_lengths
from ssse.errors import Diverged, InvalidSetting
from ssse.metrics.resurfacing import resurfacing
from ssse.paper.lasting.case import LOSS, Case, Numbers
from ssse.problem.view import ModelView

SCALES = np.geomspace(1e-2, 1e1, 10)  # of the paper's step: it is shown at the best of them
MOMENTS = (0, 1, 3, 8)
ASCENDING = (1e-4, 1e-3, 1e-2, 1e-1)  # rates of ascent, of which the first is taken that gets there

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Opponent:
    """A method of many steps. grid: settings that it is tuned over, by the judge that our length is chosen by."""

    key: str
    label: str
    run: Callable[..., Updated]
    grid: Sequence[Settings]


_RATES = ({"learning_rate": 0.01}, {"learning_rate": 0.03}, {"learning_rate": 0.1})
OPPONENTS = (
    Opponent(
        "neggrad",
        "NegGrad+",
        baselines.neggrad_plus,
        (
            {"learning_rate": 0.01, "beta": 0.95},
            {"learning_rate": 0.03, "beta": 0.99},
            {"learning_rate": 0.1, "beta": 0.99},
        ),
    ),
    Opponent(
        "scrub",
        "SCRUB",
        baselines.scrub,
        ({"learning_rate": 5e-4}, {"learning_rate": 5e-3}, {"learning_rate": 0.03, "max_epochs": 2}),
    ),
    Opponent("labels", "random labels", baselines.random_labels, _RATES),
    Opponent("salun", "SalUn", baselines.salun, _RATES),
)


def nothing(case: Case) -> Numbers:
    """The original, and the original with the repair: the usual fine-tuning."""
    return {"alone": case.measure(case.original), "seen": _plain(case, case.original), **mended(case, case.original)}


def retrained(case: Case) -> Numbers:
    return {"alone": case.measure(case.retrained), **resurfaced(case, case.retrained)}


def paper(case: Case, direction: Tensor) -> Numbers:
    """The paper's step at the ε that is best in hindsight, by the gap, which nobody knows without retraining."""
    view, found = ModelView(case.original), []
    for scale in SCALES:
        found.append(case.measure(view.with_theta(view.theta() + scale * direction)) | {"scale": float(scale)})
    return {"alone": min(found, key=lambda one: one["gap"])}


def stepped(case: Case, direction: Tensor) -> Numbers:
    """Ours from S alone: the exact step at ε = 1."""
    view = ModelView(case.original)
    return {"alone": case.measure(view.with_theta(view.theta() + direction))}


def lasting(case: Case, direction: Tensor) -> Numbers:
    """Ours: the length of the step chosen by a few repairs, as `ssse.erase_and_repair` does."""
    view = ModelView(case.original)
    theta = view.theta()
    reach = float(direction.norm() / theta.norm())

    def at(scale: float) -> nn.Module:
        return view.with_theta(theta + scale * direction)

    found = search_lengths(
        case.trainee, case.judged, at, reach, case.repairing, lengths=LENGTHS, start=START, autocast=case.autocast,
        progress=False,
    )  # fmt: skip
    step = at(found.chosen.scale)
    curve = case.measure(step)
    return {
        "alone": curve,
        "length": found.chosen.length,
        "trials": [{"length": t.length, "shortfall": 100 * t.shortfall} for t in found.trials],
        **mended(case, step),
    }


def ascended(case: Case) -> Numbers:
    """Gradient ascent until S is as little known as held-out samples of its kind."""
    wanted, batch = min(case.original_seen.expected, 0.99), case.ground.form.recipe.batch
    for rate in ASCENDING:
        try:
            updated = baselines.gradient_ascent_until(
                case.original, None, LOSS, case.forget, stop_accuracy=wanted, epochs=20, learning_rate=rate,
                batch_size=batch, progress=False,
            )  # fmt: skip
        except InvalidSetting:
            continue
        return {"alone": case.measure(updated.model), **mended(case, updated.model)}
    raise InvalidSetting(f"Gradient ascent does not bring S down to {wanted:.0%} at any of the rates {ASCENDING}.")


def tuned(case: Case, opponent: Opponent) -> Numbers:
    """Which settings of the grid leave the smallest shortfall, alone and after the repair."""
    alone, repaired = [], []
    for settings in opponent.grid:
        try:
            model = _opposed(case, opponent, settings)
        except Diverged:
            alone.append(float("inf"))
            repaired.append(float("inf"))
            continue
        alone.append(case.shortfall(model))
        repaired.append(case.shortfall(case.repaired(model)))
    return {"alone": int(np.argmin(alone)), "repaired": int(np.argmin(repaired)), "values": [alone, repaired]}


def opposed(case: Case, opponent: Opponent, chosen: Numbers) -> Numbers:
    """With the settings that were chosen for it, those for itself and those for the repair after it."""
    model = _opposed(case, opponent, opponent.grid[chosen["alone"]])
    numbers: Numbers = {"alone": case.measure(model)}
    if chosen["repaired"] != chosen["alone"]:
        model = _opposed(case, opponent, opponent.grid[chosen["repaired"]])
    return numbers | mended(case, model)


def mended(case: Case, model: nn.Module) -> Numbers:
    """The repair, with S seen after every epoch, and what comes back in further epochs."""
    on_forgotten: list[float] = [100 * case.on_forgotten(model)]

    def look(trained: nn.Module) -> None:
        on_forgotten.append(100 * case.on_forgotten(trained))

    repaired = case.repaired(model, look)
    numbers = {"repaired": case.measure(repaired), "seen_repaired": _plain(case, repaired), "along": on_forgotten}
    return numbers | resurfaced(case, repaired)


def resurfaced(case: Case, model: nn.Module) -> Numbers:
    recipe, repairing = case.ground.form.recipe, case.repairing
    found = resurfacing(
        model, case.retained, case.forget, LOSS, held_out=case.held_out_alike, epochs=MOMENTS,
        learning_rate=repairing.learning_rate, batch_size=recipe.batch, weight_decay=recipe.decay,
        autocast=case.autocast, progress=False,
    )  # fmt: skip
    return {"moments": [vars(moment) for moment in found.moments], "rise": found.rise}


def _opposed(case: Case, opponent: Opponent, settings: Settings) -> nn.Module:
    recipe = case.ground.form.recipe
    run = partial(
        opponent.run, case.original, None, LOSS, case.forget, data=case.data, epochs=case.repairing.epochs,
        weight_decay=recipe.decay, batch_size=recipe.batch, autocast=case.autocast, progress=False,
    )  # fmt: skip
    return run(**settings).model


def _plain(case: Case, model: nn.Module) -> dict[str, float]:
    return {name: 100 * value for name, value in vars(case.seen(model)).items()}
