"""A network that is not convex (Figures 3b, 5, 6, 7): ResNet-20 on CIFAR-10, a class removed at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ssse.paper.cifar10.drawing import drawings
from ssse.paper.cifar10.findings import findings, targets
from ssse.paper.data.images import Images, digits_as_images, load_cifar10
from ssse.paper.network import (
    ASCENT,
    DAMPED,
    DAMPED_OUT,
    DAMPENING,
    DIAGONAL,
    GRADIENT,
    HEAD,
    HEAD_CHANCE,
    HEAD_SEARCHED,
    PAPER,
    PAPER_OUT,
    PAPER_TEN,
    PAPER_TEN_GAP,
    SCRUBBING,
    TUNING,
    Network,
    Size,
)
from ssse.paper.result import STAND_IN, Result
from ssse.paper.settings import Settings
from ssse.paper.study import draw_removals
from ssse.paper.summary import note_on_search, summary_rows
from ssse.paper.training import Recipe
from ssse.rendering.document import PageTable, as_plain
from ssse.system.digests import digest_tensors

METHODS = (
    PAPER,
    PAPER_TEN,
    PAPER_TEN_GAP,
    GRADIENT,
    PAPER_OUT,
    DAMPED,
    DAMPED_OUT,
    HEAD,
    HEAD_CHANCE,
    HEAD_SEARCHED,
    ASCENT,
    DIAGONAL,
    SCRUBBING,
    DAMPENING,
    TUNING,
)
CHANCE = 0.1  # ten classes, of CIFAR-10 and of the digits
TRAINING = 0.9  # the rest is for validation, as in the paper
RATES = (0.5, 1.0)
FEW = 2_000  # images of the small form
FULL = Size(Recipe())
SMALL = Size(
    Recipe(epochs=15, batch=128, rate=0.2, widths=(8, 16, 32), blocks=1, autocast=False),
    classes=2,
    scanned=500,
    batch=500,
)


def run(settings: Settings) -> Result:
    return compose(as_plain(measure(settings)))  # as they are stored, so that they can be drawn again


def measure(settings: Settings) -> dict[str, Any]:
    """Everything that is computed, as numbers and words."""
    network, words = prepare(settings)
    network.train()
    answers = network.answers()
    return {
        "form": "small" if settings.small else "full",
        "data": words,
        "title": STAND_IN if settings.data is None else "CIFAR-10",
        "differs": _differences(settings, network),
        "answers": answers,
        "floors": {str(rate): floor for rate, floor in network.floor().items()},
        "networks": len(network.models),
        "looked": network.size.scanned,
        "train_seconds": network.train_seconds,
    }


def compose(numbers: dict[str, Any]) -> Result:
    """Figures, tables and findings from the numbers alone."""
    answers = [answer | {"chance": CHANCE} for answer in numbers["answers"]]
    floors = {float(rate): floor for rate, floor in numbers["floors"].items()}
    title = "SSSE on a network: ResNet-20 and CIFAR-10"
    result = Result("cifar10", title, numbers["form"], numbers["title"] == STAND_IN, numbers=numbers)
    result.data, result.differs = [numbers["data"]], numbers["differs"]
    result.figures = drawings(answers, floors)
    result.tables = [_models(answers)]
    result.findings = findings(answers, floors)
    result.targets = targets(answers) if numbers["form"] == "full" else []
    result.summary = summary_rows(answers, METHODS, numbers["title"], floors)
    result.notes = [
        f"{numbers['networks']} networks were trained side by side in {numbers['train_seconds']:.0f} s; a retrained "
        f"one is counted with its share. The accuracies on D∖S and T∖T_a are of a random {numbers['looked']:,} of "
        "their samples, the same for every model and ε.",
        "A network's step is never certified: it comes with the verdict 'caution', whatever the table says. Distances "
        "between parameters mean little here: two seeds end far apart.",
        "Best ratio: ε at the smallest δ of that very request; of a whole class the start of its plateau, if any. "
        "Best gap: at its smallest mean gap; baselines are shown in their best light. Neither can be known without "
        "retraining. From S: the smallest ε at which S is recognised no more often than by chance, which needs S "
        "alone.",
        "Influence functions with the true Hessian are not in the table: on a network it is indefinite, and conjugate "
        "gradients refuse. Expected rows for all layers were not run: one request takes minutes.",
        "All steps here are from the network as it is, and nothing is trained after them. What a step of a fifth to a "
        "half of the parameters' length and a tenth of the training's epochs on D∖S come to, for the same network, "
        "recipe and classes, stands in `ssse reproduce lasting`.",
    ]
    result.notes += note_on_search(answers, "head")
    return result


def prepare(settings: Settings) -> tuple[Network, str]:
    """The images as the paper uses them, and the data in words."""
    images = digits_as_images() if settings.data is None else load_cifar10(settings.data)
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(images.x), generator=generator)
    kept = order[: round(TRAINING * len(order))]
    words = images.source
    if settings.small and len(kept) > FEW:
        kept = kept[:FEW]
        images = _shortened(images, FEW)
        words += f"; {FEW:,} images to train on and as many to test"
    kept = kept.sort().values
    images = replace(images, x=images.x[kept], y=images.y[kept])
    images = replace(images, digest=digest_tensors({"x": images.x, "y": images.y, "test": images.test_x}))
    size = SMALL if settings.small else FULL
    first = {c: images.names[c] for c in range(size.classes)}
    classes = torch.arange(len(images.names))
    member, test_member = images.y[:, None] == classes, images.test_y[:, None] == classes
    removals = draw_removals(first, member, test_member, RATES, settings.seed)
    return Network(settings, images, removals, size), words


def _shortened(images: Images, count: int) -> Images:
    return replace(images, test_x=images.test_x[:count], test_y=images.test_y[:count])


def _differences(settings: Settings, network: Network) -> list[str]:
    recipe = network.size.recipe
    how = (
        f"{recipe.epochs} epochs in batches of {recipe.batch}, Nesterov momentum {recipe.momentum:g}, one cycle of "
        f"the rate up to {recipe.rate:g}, weight decay {recipe.decay:g}, no augmentation; the paper gives neither "
        "epochs nor rates."
    )
    if settings.small:
        return [f"A small residual network, widths {recipe.widths}, not ResNet-20; {how}"]
    return [
        f"The paper's data, model, split sizes, weight decay, λ and blocks. Trained for {how}",
        "Layers were trained in bfloat16 with float32 weights; curvature, steps and measures are float32.",
    ]


def _models(answers: list[dict[str, Any]]) -> PageTable:
    rows = []
    for answer in sorted(answers, key=lambda a: -a["rate"]):
        for name in ("original", "retrained"):
            accuracies = answer[name]
            rows.append(
                [f"{answer['rate']:.0%} of {answer['kind']}", name, *(100 * accuracies[split] for split in accuracies)]
            )
    columns = ("removed", "model", "D∖S, %", "S, %", "T∖T_a, %", "T_a, %")
    return PageTable("The original and the retrained networks", columns, rows)
