"""A softmax regression on digits, trained to the end: what a wrong weight decay does to it is known."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tests.support import workspaces

DECAY = 1e-2
TRAINED = 400  # samples; the others are held out
THIRTY_PERCENT = list(range(120))


@cache
def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16), torch.tensor(y)


def training_data() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[:TRAINED], y[:TRAINED]


def held_out() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[TRAINED:], y[TRAINED:]


def places_of(label: int) -> list[int]:
    return (training_data()[1] == label).nonzero().flatten().tolist()


@cache
def model() -> nn.Linear:
    return workspaces.train(*training_data(), 10, DECAY)


def network() -> nn.Sequential:
    """One that is not linear in θ; its weights are loaded afterwards."""
    return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()


@cache
def trained_network() -> nn.Sequential:
    """By mini-batches, as networks are: never quite to the end."""
    x, y = training_data()
    generator = torch.Generator().manual_seed(0)
    made = network()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimiser = torch.optim.SGD(made.parameters(), lr=0.05, momentum=0.9, weight_decay=DECAY)
    for _ in range(40):
        for some in torch.randperm(len(y), generator=generator).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(made(x[some]), y[some]).backward()
            optimiser.step()
    return made.eval()


def accuracy(of: nn.Module) -> float:
    x, y = held_out()
    with torch.no_grad():
        return float((of(x).argmax(1) == y).double().mean())
