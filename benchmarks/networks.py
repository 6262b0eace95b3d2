"""Models and data that several benchmarks share: made up, and trained for a moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ASKED = 1  # of 100 samples
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    model: nn.Module
    loss: str
    data: Batches

    @property
    def asked(self) -> int:
        """Samples of a request, as a plan reckons with: one in a hundred, 100 at most."""
        return max(1, min(100, sum(len(y) for _, y in self.data) * ASKED // 100))

    @property
    def forget(self) -> Batches:
        x, y = self.data[0]
        return [(x[: self.asked], y[: self.asked])]


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        stride = 1 if channels_in == channels else 2
        self.conv1: nn.Conv2d = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(channels)
        self.conv2: nn.Conv2d = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2: nn.BatchNorm2d = nn.BatchNorm2d(channels)
        self.short: nn.Module = (
            nn.Identity() if stride == 1 else nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.short(x))


class ResNet18(nn.Module):
    """Of small images: 11.2 million parameters at a width of 64."""

    def __init__(self, width: int = 64, classes: int = 10):
        super().__init__()
        self.conv: nn.Conv2d = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn: nn.BatchNorm2d = nn.BatchNorm2d(width)
        through = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        self.blocks: nn.Sequential = nn.Sequential(*(Residual(a, b) for a, b in itertools.pairwise(through)))
        self.fc: nn.Linear = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


class Encoder(nn.Module):
    """Words, two encoder layers, the mean over all positions, a head."""

    def __init__(self, words: int = 200, width: int = 32, classes: int = 4):
        super().__init__()
        self.embed: nn.Embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder: nn.TransformerEncoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head: nn.Linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Tagger(nn.Module):
    """A label for each word: the loss of tokens."""

    def __init__(self, words: int = 100, width: int = 24):
        super().__init__()
        self.embed: nn.Embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.0, batch_first=True)
        self.encoder: nn.TransformerEncoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head: nn.Linear = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)))


def batched(x: Tensor, y: Tensor, size: int = 100) -> Batches:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]


def case(model: nn.Module, x: Tensor, y: Tensor, steps: int = 30, loss: str = "cross_entropy") -> Case:
    """Trained for so many steps of Adam, on batches of 100."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = batched(x, y)
    for step in range(steps):
        inputs, labels = data[step % len(data)]
        optimiser.zero_grad()
        z = model(inputs)
        F.cross_entropy(z.flatten(0, -2), labels.flatten()).backward()
        optimiser.step()
    return Case(model.eval(), loss, data)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def labels(count: int, classes: int) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(2))


def words(count: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(3))


def linear() -> Case:
    return case(nn.Linear(512, 10), noise(4000, 512), labels(4000, 10))


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    return case(model, noise(1000, 64), labels(1000, 10))


def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 10),
    )  # fmt: skip
    return case(model, noise(1000, 1, 16, 16), labels(1000, 10))


def transformer() -> Case:
    return case(Encoder(), words(500, 24, 200), labels(500, 4))


def tagger() -> Case:
    x = words(200, 16, 100)
    return case(Tagger(), x, (x * 7 + 3) % 100, loss="token_cross_entropy")


def eleven_million(n: int = 200) -> Case:
    return case(ResNet18(), noise(n, 3, 32, 32), labels(n, 10), steps=2)


def sixteen_million(n: int = 2000) -> Case:
    model = nn.Sequential(
        nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip
    return case(model, noise(n, 3072), labels(n, 10), steps=4)


SMALL: dict[str, Callable[[], Case]] = {
    "linear, 5,130": linear,
    "MLP, 4,810": mlp,
    "CNN, 3,818": convolutions,
    "transformer, 24,000": transformer,
    "tagger of 16 tokens, 9,600": tagger,
}
