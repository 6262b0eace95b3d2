"""How margins of S are pushed, by (1−p)^push: what `erase_and_repair` ends at, beside the retrained network.

6,000 images of CIFAR-10: three classes that a small network tells apart on nine of ten images that it never saw, and
all ten, of which it knows half. Half of the first class is erased, and a tenth of the data; nothing is retrained to
choose a length. Gap: mean absolute difference in accuracy over D∖S, S and test samples of its kind (and of the others,
where a class goes by halves). AUC: S against test samples of its kind, by the confidence. 19,000 parameters, two seeds.

    python benchmarks/push.py --data DIR      DIR holds cifar-10-batches-bin
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ssse
from record import MissingData, Report, run_alone
from ssse.errors import InvalidData
from ssse.metrics.attacks import threshold_attack
from ssse.metrics.gaps import divergences, mean_gap
from ssse.metrics.scores import confidences
from ssse.paper.data.images import load_cifar10
from ssse.paper.training import Recipe, train_networks

RECIPE = Recipe(epochs=40, batch=128, rate=0.2, widths=(8, 16, 32), blocks=1, autocast=False)
TRAINING = ssse.Training(RECIPE.epochs, RECIPE.rate, RECIPE.batch, RECIPE.decay)
IMAGES, HELD_OUT, SHARE, SEEDS = 6_000, 0.4, 0.1, (0, 1)
CLASSES = {"three classes": (0, 1, 6), "ten classes": tuple(range(10))}
PUSHES = (0.0, 0.5, 1.0)
COLUMNS = ("removed", "push", "lengths", "gap", "S, %", "KL on S", "AUC", "gap before", "AUC before", "AUC, retrained")

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    train: Samples
    held_out: Samples
    test: Samples


@dataclass(frozen=True)
class Request:
    words: str
    forget: Tensor  # a mask
    alike: Tensor  # of the test samples


def main(folder: Path) -> None:
    report = Report("push", "How far each margin of S is pushed, and what erase_and_repair ends at")
    for words, classes in CLASSES.items():
        data = of_classes(folder, classes)
        found: dict[tuple[str, float], list[dict[str, float]]] = {}
        for seed in SEEDS:
            for request, push, numbers in answers(data, len(classes), seed):
                found.setdefault((request, push), []).append(numbers)
        rows = [[request, push, *_means(numbers)] for (request, push), numbers in sorted(found.items())]
        report.table(f"{words}, means over {len(SEEDS)} seeds", COLUMNS, rows)
    report.notes.append("Lengths: of the chosen steps over ‖θ‖, seed by seed. Push 1 is the gradient of the loss.")
    report.finish()


def of_classes(folder: Path, classes: tuple[int, ...]) -> Data:
    try:
        images = load_cifar10(folder)
    except InvalidData as error:
        raise MissingData(str(error)) from error
    order = torch.Generator().manual_seed(0)

    def some(x: Tensor, y: Tensor, count: int | None = None) -> Samples:
        places = torch.isin(y, torch.tensor(classes)).nonzero()[:, 0]
        places = places[torch.randperm(len(places), generator=order)[:count]]
        return x[places], torch.searchsorted(torch.tensor(classes), y[places])

    x, y = some(images.test_x, images.test_y)
    held = round(HELD_OUT * len(y))
    return Data(some(images.x, images.y, IMAGES), (x[:held], y[:held]), (x[held:], y[held:]))


def requests(data: Data) -> list[Request]:
    y, order = data.train[1], torch.Generator().manual_seed(1)
    first, test = (y == 0).nonzero()[:, 0], data.test[1]
    half, tenth = torch.zeros(len(y), dtype=torch.bool), torch.zeros(len(y), dtype=torch.bool)
    half[first[torch.randperm(len(first), generator=order)[: len(first) // 2]]] = True
    tenth[torch.randperm(len(y), generator=order)[: round(SHARE * len(y))]] = True
    return [Request("half a class", half, test == 0), Request("10% at random", tenth, torch.ones_like(test).bool())]


def answers(data: Data, classes: int, seed: int) -> Iterator[tuple[str, float, dict[str, float]]]:
    (x, y), asked = data.train, requests(data)
    keeps = [torch.arange(len(y)), *((~request.forget).nonzero()[:, 0] for request in asked)]
    original, *twins = train_networks(
        x, y, keeps, [seed] * len(keeps), RECIPE, lambda: RECIPE.network(classes), progress=False
    )
    curvature = ssse.Curvature.fit(
        original, "cross_entropy", parts(data.train), weight_decay=RECIPE.decay, rows="margin",
        structure=ssse.LowRank(kernel="float64"), progress=False,
    )  # fmt: skip
    for request, twin in zip(asked, twins, strict=True):
        gone, stays = ((x[mask], y[mask]) for mask in (request.forget, ~request.forget))
        before = measured(original, twin, data, request)
        for push in PUSHES:
            done = ssse.erase_and_repair(
                original, curvature, "cross_entropy", parts(gone), retained=parts(stays), training=TRAINING,
                held_out=parts(data.held_out), push=push, progress=False,
            )  # fmt: skip
            after = measured(done.model, twin, data, request)
            yield (
                request.words,
                push,
                after
                | {
                    "length": done.length,
                    "gap before": before["gap"],
                    "AUC before": before["AUC"],
                    "AUC, retrained": measured(twin, twin, data, request)["AUC"],
                },
            )


def measured(model: nn.Module, twin: nn.Module, data: Data, request: Request) -> dict[str, float]:
    x, y = data.train
    splits = {"forgotten": (x[request.forget], y[request.forget]), "retained": (x[~request.forget], y[~request.forget])}
    splits["alike"] = data.test[0][request.alike], data.test[1][request.alike]
    if not bool(request.alike.all()):
        splits["others"] = data.test[0][~request.alike], data.test[1][~request.alike]
    shares, wanted = ({k: share_right(one, *v) for k, v in splits.items()} for one in (model, twin))
    (own, known), other = splits["forgotten"], splits["alike"]
    z = logits(model, own)
    return {
        "gap": mean_gap(shares, wanted),
        "S, %": shares["forgotten"],
        "KL on S": float(divergences(z, [logits(twin, own)], known).mean()),
        "AUC": threshold_attack(confidences(z, known), confidences(logits(model, other[0]), other[1])).auc,
    }


@torch.no_grad()
def logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(1_000)])


def share_right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """In per cent."""
    return 100 * float((logits(model, x).argmax(1) == y).double().mean())


def parts(samples: Samples) -> list[Samples]:
    return list(zip(*(values.split(500) for values in samples), strict=True))


def _means(numbers: list[dict[str, float]]) -> list[object]:
    lengths = ", ".join(f"{one['length']:.2f}" for one in numbers)
    return [lengths, *(float(np.mean([one[name] for one in numbers])) for name in COLUMNS[3:])]


if __name__ == "__main__":
    run_alone(main, __doc__)
