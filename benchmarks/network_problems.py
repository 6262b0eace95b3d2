"""Small networks whose retrained twins are cheap: their data, architectures, trainings, requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from verdict_problems import data_sets

TRAINED_ON, HELD_OUT = 300, 400  # at most so many samples of a data set
# The limits of the verdict of networks were chosen on these; what they do on the others is what counts.
# Nobody had looked at those before.
TO_CHOOSE = ("wine", "breast cancer", "digits", "pooled digits")
TO_COUNT = (
    "four classes", "moons", "counts", "rings", "blobs", "quantiles", "threes and eights", "products",
    "diabetes in three",
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A data set in two parts, float64. `x`, `y`: to train on. `held_x`, `held_y`: to look at."""

    name: str
    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    classes: int


@dataclass(frozen=True)
class Net:
    """An architecture with its training. steps: of Adam on all samples at once, then `last` of L-BFGS."""

    name: str
    hidden: tuple[int, ...]
    activation: type[nn.Module]
    decay: float
    steps: int
    last: int
    norm: bool = False
    image: bool = False

    def made(self, data: Split, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        if self.image:
            width, channels = round(data.x.shape[1] ** 0.5), 1
            layers.append(nn.Unflatten(1, (1, width, width)))
            for place, size in enumerate(self.hidden):
                layers.append(nn.Conv2d(channels, size, 3, stride=1 + place, padding=1))
                layers += [nn.BatchNorm2d(size)] * self.norm
                layers.append(self.activation())
                channels, width = size, -(-width // (1 + place))
            layers.append(nn.Flatten())
            return nn.Sequential(*layers, nn.Linear(channels * width**2, data.classes)).double()
        before = data.x.shape[1]
        for size in self.hidden:
            layers.append(nn.Linear(before, size))
            layers += [nn.BatchNorm1d(size)] * self.norm
            layers.append(self.activation())
            before = size
        return nn.Sequential(*layers, nn.Linear(before, data.classes)).double()


NETS = (
    Net("16 tanh", (16,), nn.Tanh, 1e-3, 0, 300),
    Net("32 ReLU", (32,), nn.ReLU, 1e-2, 100, 150),
    Net("24–24–24 ReLU", (24, 24, 24), nn.ReLU, 1e-3, 150, 150),
    Net("16 tanh, trained badly", (16,), nn.Tanh, 1e-3, 40, 0),
    Net("24–24 ReLU, BatchNorm", (24, 24), nn.ReLU, 1e-3, 200, 0, norm=True),
)
IMAGE_NETS = (
    Net("CNN 4–8", (4, 8), nn.ReLU, 1e-3, 80, 40, image=True),
    Net("CNN 4–8, BatchNorm", (4, 8), nn.ReLU, 1e-3, 100, 0, norm=True, image=True),
)


def splits(folder: Path) -> Iterator[Split]:
    for data in data_sets(folder):
        if data.name not in TO_CHOOSE + TO_COUNT:
            continue
        order = np.random.default_rng(7).permutation(len(data.y))
        trained = min(TRAINED_ON, 2 * len(order) // 3)
        parts = order[:trained], order[trained : trained + HELD_OUT]
        (x, y), (held_x, held_y) = (
            (torch.from_numpy(data.x[some]).double(), torch.from_numpy(data.y[some]).long()) for some in parts
        )
        yield Split(data.name, x, y, held_x, held_y, data.classes)


def nets(data: Split, number: int) -> list[Net]:
    """Two of them in turn, and of pictures both that take pictures."""
    some = [NETS[(2 * number + place) % len(NETS)] for place in (0, 1)]
    return some + list(IMAGE_NETS if data.name in ("digits", "pooled digits", "threes and eights") else ())


def requests(data: Split, random: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    """By name, the places of the samples to forget; of two classes a tenth of one instead of all of it."""
    n = len(data.y)
    chosen = random.permutation(np.flatnonzero(data.y.numpy() == random.integers(data.classes)))
    out = [
        ("one sample", random.choice(n, 1)),
        ("2 % at random", random.choice(n, n // 50, replace=False)),
        ("10 % at random", random.choice(n, n // 10, replace=False)),
        ("half a class", chosen[: len(chosen) // 2]),
    ]
    return out + ([("a whole class", chosen)] if len(chosen) <= 0.4 * n else [("a tenth of a class", chosen[::10])])


def train(net: Net, data: Split, places: Tensor, seed: int) -> nn.Module:
    """All samples at once, so that the twin of a training differs from it by its samples alone."""
    model, x, y = net.made(data, seed), data.x[places], data.y[places]
    parameters = list(model.parameters())

    def objective() -> Tensor:
        squares = torch.stack([p.square().sum() for p in parameters]).sum()
        return nn.functional.cross_entropy(model(x), y) + net.decay / 2 * squares

    model.train()
    optimiser = torch.optim.Adam(parameters, lr=0.02)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(net.steps, 1))
    for _ in range(net.steps):
        optimiser.zero_grad()
        objective().backward()
        optimiser.step()
        rates.step()
    if net.last:
        newton = torch.optim.LBFGS(
            parameters, max_iter=net.last, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            newton.zero_grad()
            value = objective()
            value.backward()
            return value

        newton.step(closure)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
    return model.eval()
