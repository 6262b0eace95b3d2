"""The repair and the opponents as plans of their steps: complete batches alone, otherwise as the library trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssse.baselines.random_labels import other_labels
from ssse.baselines.salun import salient
from ssse.baselines.sgd import FALL
from ssse.paper.lasting.case import Case
from ssse.paper.lasting.lanes import Plan
from ssse.paper.training import Recipe
from ssse.problem.problem import Problem
from ssse.problem.short_training import Training

MOMENTUM = 0.9
ALPHA, GAMMA, TEMPERATURE = 1e-3, 0.99, 4.0  # of SCRUB

Settings = Mapping[str, Any]


def repair_plan(case: Case) -> Plan:
    """As `ssse.repair` trains."""
    return cycle_plan(case, case.repairing, case.repairing.epochs)


def cycle_plan(case: Case, training: Training, epochs: int) -> Plan:
    """So many epochs on what stays, along one cycle of the rate; looked at after every epoch."""
    keep = case.removal.keep.to(case.ground.x.device)
    size = min(training.batch_size, len(keep))
    order = torch.Generator().manual_seed(0)
    steps = max(1, len(keep) // size)
    passes = [torch.randperm(len(keep), generator=order)[: steps * size] for _ in range(epochs)]
    places = keep[torch.cat(passes).view(-1, size).to(keep.device)]
    recipe = Recipe(rate=training.learning_rate, momentum=training.momentum, swing=training.swing)
    return Plan(
        places,
        torch.full(places.shape, 1 / size, device=keep.device),
        case.ground.y,
        _cycle(recipe, len(places)),
        training.weight_decay,
        nesterov=True,
        looks=tuple(steps * (epoch + 1) for epoch in range(epochs)),
    )


@dataclass(frozen=True)
class Opponent:
    """A method of many steps. grid: settings that it is tuned over, in hindsight."""

    key: str
    label: str
    plan: Callable[[Case, Settings], Plan]
    grid: Sequence[Settings]


def neggrad_plus_plan(case: Case, settings: Settings) -> Plan:
    beta, size = settings["beta"], case.ground.form.recipe.batch
    keep, gone = _places(case)
    count = max(1, len(keep) // size) * case.repairing.epochs
    down, up = _batches(keep, size, count), _batches(gone, size, count)
    places = torch.cat([down, up], dim=1)
    weights = torch.full(places.shape, beta / down.shape[1], device=places.device)
    weights[:, down.shape[1] :] = -(1 - beta) / up.shape[1]
    return _constant(case, places, weights, case.ground.y, settings)


def random_labels_plan(case: Case, settings: Settings) -> Plan:
    keep, gone = _places(case)
    labels = case.ground.y.clone()
    labels[gone] = other_labels(labels[gone], len(case.ground.names), 0)
    size = case.ground.form.recipe.batch
    everything = torch.cat([keep, gone])
    places = _batches(everything, size, max(1, len(everything) // size) * case.repairing.epochs)
    weights = torch.full(places.shape, 1 / places.shape[1], device=places.device)
    return _constant(case, places, weights, labels, settings)


def salun_plan(case: Case, settings: Settings) -> Plan:
    plan = random_labels_plan(case, settings)
    problem: Problem = case.trainee.problem
    mask = salient(problem, case.trainee.read(case.forget, "samples to forget"), settings.get("share", 0.5))
    return replace(plan, mask=list(problem.layout.unflatten(mask).values()))


def scrub_plan(case: Case, settings: Settings) -> Plan:
    size, epochs = case.ground.form.recipe.batch, case.repairing.epochs
    keep, gone = _places(case)
    down, up = max(1, len(keep) // size), max(1, len(gone) // size)
    most = settings.get("max_epochs", min(3, epochs))
    if len(gone) < size:  # a batch has the same size throughout: of few samples it repeats some
        gone = gone.repeat(math.ceil(size / len(gone)))
    taught, shown = _batches(gone, size, up * most), _batches(keep, size, down * epochs)
    places, own, apart = [], [], []
    for epoch in range(epochs):
        if epoch < most:
            places.append(taught[epoch * up : (epoch + 1) * up])
            own.append(torch.zeros(up, size))
            apart.append(torch.full((up, size), -1 / size))
        places.append(shown[epoch * down : (epoch + 1) * down])
        own.append(torch.full((down, size), GAMMA / size))
        apart.append(torch.full((down, size), ALPHA / size))
    joined = torch.cat(places)
    plan = _constant(case, joined, torch.cat(own).to(joined.device), case.ground.y, settings)
    rates = plan.cycle.clone()
    rates[math.ceil(FALL * len(joined)) :, 0] *= 0.1
    return replace(
        plan, cycle=rates, divergence=torch.cat(apart).to(joined.device), teacher=case.teacher, temperature=TEMPERATURE
    )


_RATES = ({"learning_rate": 0.01}, {"learning_rate": 0.03}, {"learning_rate": 0.1})
OPPONENTS = (
    Opponent(
        "neggrad",
        "NegGrad+",
        neggrad_plus_plan,
        (
            {"learning_rate": 0.01, "beta": 0.95},
            {"learning_rate": 0.03, "beta": 0.99},
            {"learning_rate": 0.1, "beta": 0.99},
        ),
    ),
    Opponent(
        "scrub",
        "SCRUB",
        scrub_plan,
        ({"learning_rate": 5e-4}, {"learning_rate": 5e-3}, {"learning_rate": 0.03, "max_epochs": 2}),
    ),
    Opponent("labels", "random labels", random_labels_plan, _RATES),
    Opponent("salun", "SalUn", salun_plan, _RATES),
)


def _cycle(recipe: Recipe, steps: int) -> Tensor:
    """A cycle of one step would be its end, where the rate is next to nothing."""
    if steps == 1:
        return torch.tensor([[recipe.rate, recipe.momentum]], dtype=torch.float64)
    return recipe.cycle(steps)


def _places(case: Case) -> tuple[Tensor, Tensor]:
    device = case.ground.x.device
    return case.removal.keep.to(device), case.removal.forget.to(device)


def _batches(places: Tensor, size: int, count: int) -> Tensor:
    """Complete batches, anew in each pass, shape (count, size or all)."""
    size, order = min(size, len(places)), torch.Generator().manual_seed(0)
    each = len(places) // size
    passes = [torch.randperm(len(places), generator=order)[: each * size] for _ in range(math.ceil(count / each))]
    return places[torch.cat(passes).view(-1, size)[:count].to(places.device)]


def _constant(case: Case, places: Tensor, weights: Tensor, labels: Tensor, settings: Settings) -> Plan:
    cycle = torch.tensor([[settings["learning_rate"], MOMENTUM]], dtype=torch.float64).repeat(len(places), 1)
    return Plan(places, weights, labels, cycle, case.ground.form.recipe.decay)
