"""Shared by the tests of calibration: curves made by hand, a small convex problem, digits, and the dense truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import ssse
from ssse.demo import WEIGHT_DECAY, Digits, train
from ssse.rows.kinds import RowChoice
from tests.support import dense, problems

DECAY = 2e-2
SCALES = np.geomspace(0.05, 20, 27)
SEARCHES = ("loss_search", "line_search")


def curve(ratio: Any = None, name: str = "δ", **fields: Any) -> ssse.Scan:
    """A scan with nothing in it but what a rule reads."""
    length = len(next(v for v in (ratio, *fields.values()) if v is not None))
    settings = {"divergence": np.full(length, 0.1), "original_divergence": 1.0, "chance": 0.1}
    arrays = {k: np.asarray(v, float) if isinstance(v, (list, np.ndarray)) else v for k, v in fields.items()}
    return ssse.Scan(
        scales=np.geomspace(0.1, 10, length),
        accuracy={"forgotten": np.full(length, 0.3)},
        counts={"forgotten": 20},
        ratio_name=name,
        ratio=None if ratio is None else np.asarray(ratio, float),
        **{**settings, **arrays},
    )


def vertical(ax: Any) -> list[float]:
    """Where lines stand upright over the whole height of a panel."""
    return [
        float(line.get_xdata()[0]) for line in ax.lines if len(line.get_xdata()) == 2 and len({*line.get_xdata()}) == 1
    ]


# ------------------------------------------------------------------------------------------ a small problem


def newton(sample: problems.Sample) -> problems.Sample:
    """Train a linear model to the minimum of (1/n) Σℓ + (w/2)‖θ‖², from zero, with the dense Hessian."""
    model, loss = sample.model, dense.LOSSES[sample.loss]
    shape = model.weight.shape  # type: ignore[union-attr]

    def objective(theta: Tensor) -> Tensor:
        z = sample.x @ theta[: shape.numel()].view(shape).mT + theta[shape.numel() :]  # type: ignore[operator]
        return loss(z, sample.y) / len(sample.x) + DECAY / 2 * theta @ theta

    theta = torch.zeros_like(dense.theta(model))
    for _ in range(15):
        gradient = torch.autograd.functional.jacobian(objective, theta)
        theta = theta - torch.linalg.solve(torch.autograd.functional.hessian(objective, theta), gradient)
    assert float(torch.autograd.functional.jacobian(objective, theta).norm()) < 1e-12  # type: ignore[union-attr]
    put(model, theta)
    return sample


def put(model: nn.Module, theta: Tensor) -> nn.Module:
    with torch.no_grad():
        nn.utils.vector_to_parameters(theta, model.parameters())
    return model


@dataclass
class Small:
    """Three overlapping blobs, a linear model of them, and what it is without S: all of one blob, or half of it."""

    loss: str
    share: float = 1.0
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        kind = torch.arange(150) % 3
        x = 1.5 * torch.eye(3, dtype=torch.float64)[kind]
        x += torch.randn(x.shape, generator=generator, dtype=torch.float64)
        y = kind
        if self.loss != "cross_entropy":
            y = nn.functional.one_hot(kind, 3).double()
            y[:, 1:] = torch.where(torch.rand(150, 2, generator=generator) < 0.15, 1.0, y[:, 1:])
        self.s = (kind == 0).nonzero()[:, 0][: round(50 * self.share)]
        self.rest = torch.ones(150, dtype=torch.bool)
        self.rest[self.s] = False
        self.sample = newton(problems.Sample("blobs", nn.Linear(3, 3).double().eval(), self.loss, x, y))
        without = problems.Sample("rest", nn.Linear(3, 3).double().eval(), self.loss, x[self.rest], y[self.rest])
        self.model, self.retrained = self.sample.model, newton(without).model
        self.forget = self.sample.part(self.s)
        settings = {"weight_decay": DECAY, "rows": "expected", "structure": "dense", "blocks": "one"}
        self.settings = settings | (self.options or {})
        self.curvature = ssse.Curvature.fit(self.model, self.loss, self.sample.data, progress=False, **self.settings)

    def calibrate(self, curvature: ssse.Curvature | None = None, /, **options: Any) -> ssse.Calibration:
        options = {"scales": SCALES, "progress": False, "forget": self.forget, **options}
        return ssse.calibrate(self.model, curvature or self.curvature, self.loss, **options)

    def erase(self, curvature: ssse.Curvature, **options: Any) -> ssse.Erasure:
        return ssse.erase(self.model, curvature, self.loss, self.forget, **options)


@cache
def small(loss: str = "cross_entropy", share: float = 0.5) -> Small:
    """Made once; tests that change anything in it make their own."""
    return Small(loss, share)


# --------------------------------------------------------------------------------------------------- digits


@dataclass(frozen=True)
class OnDigits:
    model: nn.Module
    data: list[tuple[Tensor, Tensor]]
    forget: dict[str, list[tuple[Tensor, Tensor]]]
    retrained: dict[str, nn.Module]
    curvature: ssse.Curvature

    def calibrate(self, part: str, **options: Any) -> ssse.Calibration:
        settings = {"retrained": self.retrained[part], "progress": False, **options}
        return ssse.calibrate(self.model, self.curvature, "cross_entropy", self.forget[part], **settings)


@cache
def digits(rows: RowChoice = "expected") -> OnDigits:
    """Softmax regression on half of the digits; all of the threes go, or half of them."""
    found = Digits.load()
    x, y = found.x[:700], found.y[:700]
    model, data = train(x, y), [(x, y)]
    threes = (y == 3).nonzero()[:, 0]
    forget, retrained = {}, {}
    for part, gone in (("half", threes[: len(threes) // 2]), ("whole", threes)):
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[gone] = False
        forget[part], retrained[part] = [(x[gone], y[gone])], train(x[rest], y[rest])
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", data, weight_decay=WEIGHT_DECAY, rows=rows, structure="dense", progress=False
    )
    return OnDigits(model, data, forget, retrained, curvature)


# -------------------------------------------------------------------------------------- along a step, densely

Loss = Callable[[Tensor, Tensor], Tensor]


def along(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, u: Tensor) -> Callable[[float], float]:
    """φ(ε) − φ(0) for φ(ε) = (1/m) Σℓ(θ + εu) + (w/2)‖θ + εu‖² over these samples: plain forward passes."""
    theta = dense.theta(model)
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def value(at: Tensor) -> float:
        parts = at.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        with torch.no_grad():
            return float(loss(torch.func.functional_call(model, named, (x,)), y) / len(x) + DECAY / 2 * at @ at)

    start = value(theta)
    return lambda scale: value(theta + scale * u) - start


def minimiser(function: Callable[[float], float], up_to: float) -> float:
    """Of a function of ε > 0: the best of 400 values, then Brent's search around it; no derivative anywhere."""
    grid = np.linspace(0, up_to, 401)
    at = int(np.argmin([function(scale) for scale in grid.tolist()]))
    assert 0 < at < 400
    found = minimize_scalar(
        function, bounds=(grid[at - 1], grid[at + 1]), method="bounded", options={"xatol": 1e-10 * up_to}
    )
    return float(found.x)  # type: ignore[union-attr]
