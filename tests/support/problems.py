"""Small problems, each with a name, that the tests share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Sample:
    name: str
    model: nn.Module
    loss: str
    x: Tensor
    y: Tensor

    @property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.x, self.y)]

    def part(self, index: Tensor | slice) -> list[tuple[Tensor, Tensor]]:
        return [(self.x[index], self.y[index])]


class TiedNet(nn.Module):
    """The same weight matrix twice, and a layer norm."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(torch.tanh(self.first(x)))))


class ConvNet(nn.Module):
    def __init__(self, classes: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(torch.tanh(self.norm(self.conv(x))), 3)
        return self.head(h.flatten(1))


def labels(loss: str, n: int, c: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    if loss == "cross_entropy":
        return torch.randint(c, (n,), generator=generator)
    if loss == "binary_cross_entropy":
        return torch.randint(2, (n, c), generator=generator).to(dtype)
    return torch.randn(n, c, generator=generator, dtype=dtype)


def linear(
    loss: str, bias: bool = True, n: int = 40, p: int = 5, c: int = 3, seed: int = 0, dtype=torch.float64
) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Linear(p, c, bias=bias).to(dtype).eval()
    x = torch.randn(n, p, generator=generator, dtype=dtype)
    return Sample(f"linear-{loss}", model, loss, x, labels(loss, n, c, generator, dtype))


LAST = 2.0**-23  # the last place of a float32 that is 1
TOO_FINE = 0.375 * LAST  # as damping of two samples: nλ = 0.75 of that place, which 1 + nλ rounds to the whole of it


def beyond_float32(dual: bool = False) -> Sample:
    """Two samples whose Gram matrix, with damping TOO_FINE, float32 cannot tell from one that is another by a third.

    Every entry is 1 or one last place above it, so that each sum rounds to the same number in whatever order and with
    whatever instructions it is made. The first half of the features is harmless; the second is where it happens: in
    XᵀX, or in the dual XXᵀ.
    """
    second = torch.tensor([[1.0, 1.0], [0.0, (0.8 * LAST) ** 0.5]])
    x = torch.cat([torch.eye(2), second.T if dual else second], dim=1)
    model = nn.Linear(4, 1, bias=False).eval()
    nn.init.zeros_(model.weight)
    return Sample("beyond float32", model, "mse", x, torch.tensor([[0.0], [1.0]]))


def exactly_singular(dtype: torch.dtype = torch.float64) -> Sample:
    """All features are 1 in all four samples: a Gram matrix of fours, whose second pivot is 4 − 4 on any machine."""
    model = nn.Linear(5, 3).to(dtype).eval()
    return Sample("singular", model, "mse", torch.ones(4, 5, dtype=dtype), torch.zeros(4, 3, dtype=dtype))


def mlp(loss: str = "cross_entropy", n: int = 30, seed: int = 0, dtype=torch.float64, c: int = 3) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, c)).to(dtype).eval()
    x = torch.randn(n, 4, generator=generator, dtype=dtype)
    return Sample(f"mlp-{loss}", model, loss, x, labels(loss, n, c, generator, dtype))


def tied(n: int = 20, seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = labels("cross_entropy", n, 3, generator, torch.float64)
    return Sample("tied", TiedNet(4, 3).double().eval(), "cross_entropy", x, y)


def conv(n: int = 16, seed: int = 0, dtype=torch.float64) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = ConvNet().to(dtype)
    x = torch.randn(n, 1, 6, 6, generator=generator, dtype=dtype)
    model(x)  # gives BatchNorm statistics other than zero and one
    y = labels("cross_entropy", n, 4, generator, dtype)
    return Sample("conv", model.eval(), "cross_entropy", x, y)


def converged(sample: Sample, weight_decay: float) -> Sample:
    """Train to stationarity, so that what the theory assumes holds."""
    from tests.support.dense import LOSSES

    model, loss = sample.model, LOSSES[sample.loss]
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=5000, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = weight_decay / 2 * sum((p**2).sum() for p in model.parameters())
        value = loss(model(sample.x), sample.y) / len(sample.x) + penalty
        value.backward()
        return value

    optimiser.step(closure)
    return sample
