"""Ways to train that people have, each with a rule for the `weight_decay` to declare, on images of digits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLASSES, SAMPLES, POINTS, BATCH, EPOCHS = 10, 1000, 16, 128, 200
CLASS_WEIGHTS = torch.linspace(0.4, 3.0, CLASSES)
SMOOTHING, CLIP, COPIES, NOISE = 0.1, 0.05, 4, 0.15
AVERAGING = 0.995  # of an average over about the last 200 steps


@dataclass(frozen=True)
class Data:
    x: Tensor
    y: Tensor

    def without(self, gone: Tensor) -> Data:
        keep = torch.ones(len(self.y), dtype=torch.bool)
        keep[gone] = False
        return Data(self.x[keep], self.y[keep])


def digits() -> Data:
    """A thousand of them, of 4×4 points."""
    x, y = (torch.as_tensor(part)[:SAMPLES] for part in load_digits(return_X_y=True))
    return Data(F.avg_pool2d((x / 16).float().view(-1, 1, 8, 8), 2).flatten(1), y)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, and what `ssse` is told of it.

    Attributes:
        decay: w as the optimiser has it. rule: in words, what that amounts to in the objective.
        declared: that number, from w, the data and the optimiser at the end.
        batch: the batches as they are passed to `fit` and `erase`, of the samples that are passed on.
        loss: of a batch, as trained. copies: of every sample, with noise of their own. dropout: of the hidden units.
    """

    name: str
    optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    decay: float
    rule: str = "w"
    declared: Callable[[float, Data, torch.optim.Optimizer], float] = lambda w, data, optimiser: w
    batch: Callable[[Data], tuple[Tensor, ...]] = lambda data: (data.x, data.y)
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    epochs: int = EPOCHS
    clip: float | None = None
    averaged: bool = False
    copies: int = 1
    dropout: float = 0.0
    networks_only: bool = False


def sgd(decay: float, rate: float = 0.2, scale: float = 1.0) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate / scale, momentum=0.9, weight_decay=decay)


def sgd_of_weights(decay: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Biases without any, as many do it."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]
        return torch.optim.SGD(groups, lr=0.2, momentum=0.9)

    return make


def adam(kind: type[torch.optim.Adam], decay: float, rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: kind(model.parameters(), lr=rate, weight_decay=decay)


def balanced(w: float, data: Data, optimiser: torch.optim.Optimizer) -> float:
    """w·Σ(√v̂ + ε)θ²/Σθ², v̂ the optimiser's mean square of the gradients: what its decay amounts to in L at its end."""
    pull = square = 0.0
    for group in optimiser.param_groups:
        for p in group["params"]:
            state = optimiser.state[p]
            mean_square = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
            pull += group["weight_decay"] * float(((mean_square.sqrt() + group["eps"]) * p.detach() ** 2).sum())
            square += float((p.detach() ** 2).sum())
    return pull / square


def smoothed(data: Data) -> tuple[Tensor, ...]:
    return data.x, F.one_hot(data.y, CLASSES).float() * (1 - SMOOTHING) + SMOOTHING / CLASSES


W = 1e-3
RECIPES = (
    Recipe("SGD", sgd(W), W),
    Recipe("SGD, biases without decay", sgd_of_weights(W), W),
    Recipe("Adam", adam(torch.optim.Adam, W, 1e-2), W),
    Recipe("AdamW, w = 1, to its end", adam(torch.optim.AdamW, 1.0, 1e-2), 1.0, "w·⟨√v̂⟩", balanced),
    Recipe("AdamW, w = 0.1, to its end", adam(torch.optim.AdamW, 0.1, 1e-2), 0.1, "w·⟨√v̂⟩", balanced),
    Recipe("AdamW, w = 0.01, lr = 0.001", adam(torch.optim.AdamW, 1e-2, 1e-3), 1e-2, "w·⟨√v̂⟩", balanced),
    Recipe(
        f"SGD, loss summed over {BATCH}",
        sgd(BATCH * W, scale=BATCH),
        BATCH * W,
        "w/B",
        lambda w, data, _: w / BATCH,
        loss=lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    ),
    Recipe(
        "SGD, class weights",
        sgd(W),
        W,
        "w·mean(weight)",
        lambda w, data, _: w * float(CLASS_WEIGHTS[data.y].mean()),
        batch=lambda data: (data.x, data.y, CLASS_WEIGHTS[data.y]),
        loss=lambda z, y: F.cross_entropy(z, y, CLASS_WEIGHTS),
    ),
    Recipe(
        "SGD, label smoothing",
        sgd(W),
        W,
        batch=smoothed,
        loss=lambda z, y: F.cross_entropy(z, y, label_smoothing=SMOOTHING),
    ),
    Recipe(f"SGD, gradients clipped to {CLIP}", sgd(W), W, clip=CLIP),
    Recipe("SGD, averaged weights", sgd(W), W, averaged=True),
    Recipe(f"SGD, {COPIES} noisy copies each", sgd(W), W, copies=COPIES, epochs=EPOCHS // COPIES),
    Recipe("SGD, dropout 0.3", sgd(W), W, dropout=0.3, networks_only=True),
    Recipe(f"SGD, stopped after {EPOCHS // 20} epochs", sgd(W), W, epochs=EPOCHS // 20),
)


def linear(dropout: float) -> nn.Module:
    return nn.Linear(POINTS, CLASSES)


def network(dropout: float) -> nn.Module:
    return nn.Sequential(nn.Linear(POINTS, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, CLASSES))


def train(
    recipe: Recipe, architecture: Callable[[float], nn.Module], data: Data, gone: Tensor, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """From the same start and in the same order with and without `gone`, by a rate that falls to zero as a cosine."""
    torch.manual_seed(seed)
    model = architecture(recipe.dropout).train()
    optimiser = recipe.optimiser(model)
    average, left = copy.deepcopy(model), set(gone.tolist())
    steps = recipe.epochs * -(-len(data.y) // BATCH)
    # An average follows a rate that stays: one that falls to zero averages by itself.
    schedule = None if recipe.averaged else torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for places in _order(len(data.y), recipe.epochs, seed):
        kept = torch.tensor([place for place in places.tolist() if place not in left])
        optimiser.zero_grad()
        recipe.loss(model(data.x[kept]), data.y[kept]).backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        if schedule is not None:
            schedule.step()
        if recipe.averaged:
            with torch.no_grad():
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p, 1 - AVERAGING)
    return (average if recipe.averaged else model).eval(), optimiser


def with_copies(recipe: Recipe, data: Data, gone: Tensor) -> tuple[Data, Tensor]:
    """Every sample as often as the recipe wants, each copy with a noise of its own; and where those of `gone` are."""
    if recipe.copies == 1:
        return data, gone
    noise = NOISE * torch.randn((recipe.copies, *data.x.shape), generator=torch.Generator().manual_seed(0))
    places = torch.cat([gone + copy * len(data.y) for copy in range(recipe.copies)])
    return Data((data.x + noise).flatten(0, 1), data.y.repeat(recipe.copies)), places


def _order(n: int, epochs: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(n, generator=generator).split(BATCH)
