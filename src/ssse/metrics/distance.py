"""Distances between parameters. For convex models alone do they say much: a network has many equal minima."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ssse.errors import InvalidModel
from ssse.metrics.scores import Flagged
from ssse.metrics.similarity import NOTHING_TO_COMPARE, share

NOTHING_TO_ERASE = "the original and the retrained model are the same"
PIECE = 2**20  # numbers turned into float64 at a time


def normalized_parameter_distance(erased: Any, original: Any, retrained: Any) -> Flagged:
    """‖θ̂ − θ₋S‖ / (‖θ̂ − θ*‖ + ‖θ̂ − θ₋S‖), the paper's Figure 2b: 0 retrained, 1 original.

    Args: modules with the same parameters, or flat vectors.
    """
    return share(parameter_distance(erased, retrained), parameter_distance(erased, original))


def remaining_distance(erased: Any, original: Any, retrained: Any) -> Flagged:
    """‖θ̂ − θ₋S‖ / ‖θ* − θ₋S‖: 1 nothing erased, 0 retrained; above 1 it would have been better to do nothing.

    Where the original and the retrained model are the same there was nothing to erase: 0.5 for a third one of that
    kind, infinite for any other, and a flag.
    """
    remaining, whole = parameter_distance(erased, retrained), parameter_distance(original, retrained)
    if whole == 0:
        return Flagged(math.inf, NOTHING_TO_ERASE) if remaining else Flagged(0.5, NOTHING_TO_COMPARE)
    return Flagged(remaining / whole)


def parameter_distance(first: Any, second: Any) -> float:
    """‖θ₁ − θ₂‖ in float64, a piece at a time: large models are not copied."""
    one, other = _tensors(first, second)
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (one, other)]
    if shapes[0] != shapes[1]:
        sizes = " and ".join(str(sum(tensor.numel() for tensor in tensors)) for tensors in (one, other))
        raise InvalidModel(f"The models must have the same parameters, in shape too; they have {sizes} numbers.")
    if not one:
        raise InvalidModel("The models have no parameters to compare.")
    total = 0.0
    for pair in zip(one, other, strict=True):
        for a, b in zip(*(tensor.reshape(-1).split(PIECE) for tensor in pair), strict=True):
            total += float((a.double() - b.double()).square().sum())
    if not math.isfinite(total):
        raise InvalidModel("Some parameter is NaN, infinite or beyond all measure, and no distance to it is defined.")
    return math.sqrt(total)


def same_parameters(first: nn.Module, second: nn.Module) -> bool:
    """By their shapes, in order: a compiled or wrapped model has other names for the same."""
    one, other = ([p.shape for p in module.parameters()] for module in (first, second))
    return one == other


def _tensors(*models: Any) -> list[list[Tensor]]:
    """Parameter by parameter; as one flat vector where one of the models is given as such."""
    parts = [list(model.parameters()) if isinstance(model, nn.Module) else [torch.as_tensor(model)] for model in models]
    parts = [[part.detach().cpu() for part in each] for each in parts]
    if all(isinstance(model, nn.Module) for model in models):
        return parts
    return [[torch.cat([part.reshape(-1) for part in each])] if each else [] for each in parts]
