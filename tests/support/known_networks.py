"""A network that is built by hand: what it says of every sample is known beforehand, on every machine."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def by_hand() -> nn.Module:
    """x of shape (n, 3): right where the largest entry is that of the class. Nothing of it is left to chance."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False)).double().eval()
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(3))
        model.get_parameter("2.weight").copy_(10 * torch.eye(3))
    return model


def samples(says: str, labels: str, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """What the model says of each, by its digits, and the label that it has."""
    places = torch.tensor([int(one) for one in says])
    generator = torch.Generator().manual_seed(seed)
    noise = 0.1 * torch.rand(len(says), 3, generator=generator, dtype=torch.float64)
    return [(nn.functional.one_hot(places, 3) + noise, torch.tensor([int(one) for one in labels]))]
