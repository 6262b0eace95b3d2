"""Small networks with BatchNorm on digits: half of a class goes, and a retrained one never saw it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import ssse
from tests.support.digits import digits

TRAINED = 900  # samples; the others are held out
GONE = 3  # the class that half of is forgotten
DECAY = 5e-4
TRAINING = ssse.Training(epochs=20, learning_rate=0.2, batch_size=64, weight_decay=DECAY)

Data = list[tuple[Tensor, Tensor]]


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(16, 10)).to(dtype).eval()


def part(index: Tensor) -> Data:
    x, y = digits()
    return [(x[index], y[index])]


def forgotten() -> Tensor:
    """Places of every second sample of the class."""
    return (digits()[1][:TRAINED] == GONE).nonzero().flatten()[::2]


def retained() -> Tensor:
    gone = set(forgotten().tolist())
    return torch.tensor([place for place in range(TRAINED) if place not in gone])


def held_out(same: bool = True) -> Tensor:
    """Of the same class, never trained on; or of the others."""
    labels = digits()[1][TRAINED:]
    return TRAINED + ((labels == GONE) == same).nonzero().flatten()


def trained(index: Tensor, seed: int) -> nn.Sequential:
    """By torch alone."""
    (x, y), model = part(index)[0], network(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=DECAY, nesterov=True)
    steps = TRAINING.steps(len(y))
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, TRAINING.learning_rate, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(TRAINING.epochs):
        for some in torch.randperm(len(y), generator=generator).split(TRAINING.batch_size):
            if len(some) == TRAINING.batch_size:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[some]), y[some]).backward()
                optimiser.step()
                cycle.step()
    return model.eval()


@cache
def original() -> nn.Sequential:
    return trained(torch.arange(TRAINED), 0)


@cache
def retrained() -> nn.Sequential:
    return trained(retained(), 1)


@torch.no_grad()
def accuracy(model: nn.Module, index: Tensor) -> float:
    x, y = part(index)[0]
    return float((model(x).argmax(1) == y).double().mean())
