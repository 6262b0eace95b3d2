"""Fifty animals (Figures 3a and 4): a linear softmax classifier on image features, a class removed at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ssse.paper.awa2.drawing import drawings
from ssse.paper.awa2.findings import findings, targets
from ssse.paper.convex import EXACT, HESSIAN, MORE, PAPER, PAPER_OUT, SEARCHED, Convex, Fits, Tabular
from ssse.paper.convex import METHODS as COMMON
from ssse.paper.data.digits import digit_classes
from ssse.paper.data.features import load_awa2, random_split
from ssse.paper.data.npz import Features
from ssse.paper.result import STAND_IN, Result
from ssse.paper.settings import Settings
from ssse.paper.study import Removal, accuracies, draw_removals, mean_of
from ssse.paper.summary import chosen_scales, note_on_search, summary_rows
from ssse.rendering.document import PageTable, as_plain

DECAY = 1e-4
BLOCK = 45_000
CLASSES = 10
FEW = 2  # of a small form on given data
RATES = (0.25, 0.5, 0.75, 1.0)
# From S alone with a block a class; exact, and reading D, with all classes together.
ABOUT = {  # of the stand-ins that docs/data.md names
    "pets": " Oxford-IIIT Pet, breeds of cats and dogs, features of EfficientNet-Lite0: as accurate as the paper's.",
    "animals50": " Animals of Tiny-ImageNet, features of EfficientNet-Lite0: as many classes as the paper's, less "
    "accurate.",
}
READING = "S and D"
RENAMED = {
    MORE: replace(MORE, label="expected rows over D∖S, a block a class, damping nλ, ε = 1 (from S alone)"),
    EXACT: replace(EXACT, label="expected rows over D∖S, all classes together, damping (n−k)λ, ε = 1", needs=READING),
    SEARCHED: replace(SEARCHED, needs=READING),
    HESSIAN: replace(HESSIAN, needs=READING),
}
METHODS = tuple(RENAMED.get(method, method) for method in COMMON)
LARGE = 10_000  # samples, from which on the n×n kernels are held in float32


def run(settings: Settings) -> Result:
    return compose(as_plain(measure(settings)))  # as they are stored, so that they can be drawn again


def measure(settings: Settings) -> dict[str, Any]:
    """Everything that is computed, as numbers and words."""
    return {"form": "small" if settings.small else "full", "sets": [_measure(settings, *s) for s in prepare(settings)]}


def _measure(settings: Settings, study: Convex, removals: list[Removal], words: str) -> dict[str, Any]:
    data = study.data
    answers = [study.answer(r) for r in settings.each(removals, f"awa2, {data.title}", lambda r: r.words)]
    floors = {str(r.rate): study.floor(r) for r in removals if r.kind == removals[0].kind}
    whole = {"train": study.batches, "test": [(data.test_x, data.test_y)]}
    return {
        "data": words,
        "title": data.title,
        "samples": len(data.x),
        "features": data.x.shape[1],
        "classes": len(data.names),
        "accuracy": accuracies(study.model, whole),
        "answers": answers,
        "floors": floors,
    }


def compose(numbers: dict[str, Any]) -> Result:
    """Figures, tables and findings from the numbers alone."""
    sets, small = numbers["sets"], numbers["form"] == "small"
    title = "SSSE on classes of animals: a linear softmax classifier"
    result = Result("awa2", title, numbers["form"], sets[0]["title"] == STAND_IN, numbers=numbers)
    result.data = [dataset["data"] for dataset in sets]
    result.differs = [_difference(dataset) for dataset in sets]
    for dataset in sets:
        answers, floors = dataset["answers"], {float(rate): floor for rate, floor in dataset["floors"].items()}
        result.figures += drawings(dataset["title"], answers, floors)
        result.tables.append(_scales(dataset["title"], answers))
        result.findings += findings(dataset["title"], answers)
        result.summary += summary_rows(answers, METHODS, dataset["title"], floors)
    result.targets = [] if small else targets(sets)
    retraining = mean_of(a["retrain_seconds"] for dataset in sets for a in dataset["answers"])
    result.notes = [
        "The paper's blocks of at most 45,000 parameters, held in dual form. Trained to ‖∇L‖ ≤ 1e-7 by Newton's "
        f"method, which also retrains, in {retraining:.1f} s on average. The noise floor is of two models trained by "
        "SGD with momentum at a fixed rate, for one class at each rate.",
        "Best ratio: ε at the smallest δ of that very request; of a whole class the start of its plateau, if any. "
        "Best gap: at its smallest mean gap; baselines are shown in their best light. Neither can be known without "
        "retraining.",
        "'All classes together' solves with the training data by conjugate gradients; a block a class needs S alone.",
    ]
    result.notes += note_on_search([a for dataset in sets for a in dataset["answers"]], "exact")
    return result


def _difference(dataset: dict[str, Any]) -> str:
    shape = (
        f"{dataset['title']}: {dataset['samples']:,} training samples × {dataset['features']:,} features, "
        f"{dataset['classes']} classes, test accuracy {100 * dataset['accuracy']['test']:.2f} %"
    )
    paper = "the paper: 26,125 × 2,048, 50 classes, 93.08 %, ResNet-101 features"
    split = "random 70/10/20 split of all samples, features standardised and divided by √p"
    return f"{shape} ({paper}); {split}.{ABOUT.get(dataset['title'], '')}" + (
        " These are digits, not animals." if dataset["title"] == STAND_IN else ""
    )


def _scales(title: str, answers: list[dict[str, Any]]) -> PageTable:
    """Where ε ends up, by the paper's rule and by the search that needs no retrained model."""
    rows = []
    for rate in sorted({a["rate"] for a in answers}):
        scales = [chosen_scales(answers, method, rate) for method in (PAPER, PAPER_OUT, SEARCHED)]
        rows.append([f"{rate:.0%}", *(f"{v.mean():.3g} ({v.min():.3g} to {v.max():.3g})" for v in scales)])
    columns = ("removed", "SSSE over D, smallest δ", "SSSE over D∖S, smallest δ", "expected over D∖S, loss search")
    return PageTable(f"{title}: the ε of each request, mean and range over classes", columns, rows, "Figure 3a")


def prepare(settings: Settings) -> list[tuple[Convex, list[Removal], str]]:
    """For every set of features: the data as the paper uses it, the removals, and the data in words."""
    sets = [digit_classes()] if settings.data is None else load_awa2(settings.data)
    if settings.small:
        sets = sets[:1]
    return [_prepare(settings, features) for features in sets]


def _prepare(settings: Settings, features: Features) -> tuple[Convex, list[Removal], str]:
    split = random_split(len(features.x), settings.seed)
    train, test = (split == 0).nonzero()[:, 0], (split == 2).nonzero()[:, 0]
    x = features.x.double()
    x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-6) / x.shape[1] ** 0.5
    title = STAND_IN if settings.data is None else features.source.split(":")[0].split(",")[0].removesuffix(".npz")
    data = Tabular(x[train], features.y[train], x[test], features.y[test], features.names, title)
    empirical = {"structure": "lowrank", "blocks": BLOCK}
    if len(train) > LARGE:
        empirical["dtype"] = torch.float32
    fits = Fits(empirical, {"structure": "dense", "blocks": "output"}, {"structure": "matrix_free"})
    study = Convex(settings, data, "cross_entropy", DECAY, fits)
    part = settings.small and settings.data is not None
    first = {c: features.names[c] for c in range(min(FEW if part else CLASSES, len(features.names)))}
    rates = RATES[1::2] if part else RATES
    return study, draw_removals(first, data.member, data.test_member, rates, settings.seed), features.source
