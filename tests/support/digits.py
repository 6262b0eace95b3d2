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


def accuracy(of: nn.Module) -> float:
    x, y = held_out()
    with torch.no_grad():
        return float((of(x).argmax(1) == y).double().mean())
