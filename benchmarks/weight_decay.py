"""Which weight decay is to be declared, by how a model was trained, and which one leads nearest to retraining.

Images of digits, 1,797 of them, a softmax regression and a network of 16 hidden units, float32. 50 samples leave; the
retrained model has the same start, order and recipe without them. A curvature is fitted with a declared decay (λ = w),
the request is erased whatever the bounds say, and the probabilities on the 50 are held against those of the retrained
model: ‖p − p_r‖ over the same of the model as it was, so that 1 is nothing done and 0 is retrained. Means of 3 seeds.

`given` is what the guide says (docs/models.md), `ŵ` what the gradient tells, `best` the best of a grid of 11 around
it, `at` so many times `given`. `unexplained` is the part of ‖∇ℓ̄‖ that ŵ leaves. `refused`: how many of the 3 steps with
w as the optimiser has it are refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import ssse
from record import RESULTS, Report, number, run_alone
from ssse.curvature.decay import estimate_decay
from summary import markdown
from weight_decay_recipes import RECIPES, Data, Recipe, digits, linear, network, train, with_copies

LEAVING, SEEDS = 50, 3
FACTORS = [10 ** (place / 4) for place in range(-4, 7)]  # of the decay that is given
NEAR = 1.25  # of the best of the grid
COLUMNS = (
    "trained by", "w", "to give", "given", "ŵ", "unexplained", "with w", "with given", "with ŵ", "best", "at", "refused"
)  # fmt: skip
EXACT = ("SGD", "Adam", "SGD, loss summed over 128", "SGD, class weights", "SGD, label smoothing")


def main(folder: Path) -> None:
    report = Report("weight_decay", "The weight decay to declare, by how the model was trained")
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, architecture in (("softmax regression", linear), ("network", network)):
        recipes = [recipe for recipe in RECIPES if name == "network" or not recipe.networks_only]
        rows[name] = [measure(recipe, architecture) for recipe in recipes]
        title = f"{name}: distance to the retrained model on the forgotten samples, 1 where nothing is done"
        report.table(title, COLUMNS, [list(row.values()) for row in rows[name]])
    for name, measured in rows.items():
        by_name = {row["trained by"]: row for row in measured}
        worst = max(by_name[one]["with given"] / by_name[one]["best"] for one in EXACT)
        report.at_most(f"{name}, SGD and Adam: with the decay given, against the best of the grid", worst, NEAR, "×")
        decoupled = [row for row in measured if row["trained by"].startswith("AdamW")]
        for row in decoupled:
            what = f"{name}, {row['trained by']}: with w·⟨√v̂⟩, against the best of the grid"
            report.at_most(what, row["with given"] / row["best"], NEAR, "×")
    report.numbers = {"rows": rows}
    report.finish()


def measure(recipe: Recipe, architecture: Callable[[float], nn.Module]) -> dict[str, Any]:
    seeds = [measure_seed(recipe, architecture, seed) for seed in range(SEEDS)]
    mean = {key: fmean(one[key] for one in seeds) for key in seeds[0] if key != "grid"}
    grid = [fmean(values) for values in zip(*(one["grid"] for one in seeds), strict=True)]
    best = min(range(len(grid)), key=grid.__getitem__)
    return dict(
        zip(
            COLUMNS,
            (
                recipe.name, recipe.decay, recipe.advice, mean["given"], mean["told"], mean["unexplained"],
                mean["with w"], mean["with given"], mean["with told"], grid[best], f"{FACTORS[best]:.2g}×",
                f"{sum(one['refused'] for one in seeds):.0f} of {SEEDS}",
            ),
            strict=True,
        )
    )  # fmt: skip


def measure_seed(recipe: Recipe, architecture: Callable[[float], nn.Module], seed: int) -> dict[str, Any]:
    data = digits()
    gone = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed))[:LEAVING]
    asked = data.x[gone]
    data, gone = with_copies(recipe, data, gone)
    model, optimiser = train(recipe, architecture, data, gone[:0], seed)
    retrained, _ = train(recipe, architecture, data, gone, seed)
    given = recipe.given(recipe.decay, data, optimiser)
    target, before = probabilities(retrained, asked), probabilities(model, asked)

    def far(decay: float) -> float:
        erased = erase(recipe, model, data, gone, decay)
        return float((probabilities(erased, asked) - target).norm() / (before - target).norm())

    slope, layout = gradient(recipe, model, data)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    told = estimate_decay(slope, theta, layout)
    assert told is not None
    return {
        "given": given,
        "told": told.value,
        "unexplained": told.residual,
        "with w": far(recipe.decay),
        "with given": far(given),
        "with told": far(max(told.value, 1e-9)),
        "grid": [far(given * factor) for factor in FACTORS],
        "refused": float(refuses(recipe, model, data, gone)),
    }


def fit(recipe: Recipe, model: nn.Module, data: Data, decay: float) -> ssse.Curvature:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ssse.DoubtfulSetting)  # some are meant to be wrong
        return ssse.Curvature.fit(
            model, "cross_entropy", [recipe.batch(data)], weight_decay=decay, rows="expected", structure="dense",
            blocks="one", dtype=torch.float64, progress=False,
        )  # fmt: skip


def erase(
    recipe: Recipe, model: nn.Module, data: Data, gone: Tensor, decay: float, override: tuple[Any, ...] = ssse.BOUNDS
) -> nn.Module:
    forget = Data(data.x[gone], data.y[gone])
    return ssse.erase(model, fit(recipe, model, data, decay), forget=[recipe.batch(forget)], override=override).model


def refuses(recipe: Recipe, model: nn.Module, data: Data, gone: Tensor) -> bool:
    try:
        erase(recipe, model, data, gone, recipe.decay, ())
    except ssse.Refused:
        return True
    return False


def gradient(recipe: Recipe, model: nn.Module, data: Data) -> tuple[Tensor, Any]:
    """∇ℓ̄ without any decay, as a fit has it."""
    curvature = fit(recipe, model, data, 1.0)
    assert curvature.gradient is not None
    theta = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    return curvature.gradient - theta, curvature.layout


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).double().softmax(1)


def table() -> str:
    """For the guide: of every recipe what to give, and how far from the retrained model that leads."""
    rows = json.loads((RESULTS / "weight_decay.json").read_text())["numbers"]["rows"]
    regression = {row["trained by"]: row for row in rows["softmax regression"]}
    lines = []
    for row in rows["network"]:
        name, lead = row["trained by"], ("with w", "with given", "with ŵ", "best")
        both = [regression[name], row] if name in regression else [None, row]
        cells = ["–" if one is None else number(one[key]) for one in both for key in lead]
        lines.append([name, row["to give"], number(row["given"]), number(row["ŵ"]), *cells])
    columns = [f"{kind}: {key}" for kind in ("regression", "network") for key in ("w", "given", "ŵ", "best")]
    return markdown(["trained by", "to give", "given (network)", "ŵ (network)", *columns], lines)


if __name__ == "__main__":
    run_alone(main, __doc__)
