"""Labels as the losses take them: a tensor, or a tensor together with a weight for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from ssse.errors import InvalidData


@dataclass(frozen=True, eq=False)
class WeightedLabels:
    """The labels of samples whose losses count w times: (1/n) Σ wᵢℓᵢ + (w/2)‖θ‖², n the number of samples.

    As long as a tensor of labels, and cut like one; `WeightedLoss` takes it apart again.

    Attributes:
        values: the labels themselves. weights: w of every sample, shape (n,), finite and never below zero.
    """

    values: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: Any) -> WeightedLabels:
        return WeightedLabels(self.values[part], self.weights[part])

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def device(self) -> torch.device:
        return self.values.device


# torch.func.vmap then maps over both, as over the entries of a tuple.
register_pytree_node(
    WeightedLabels, lambda labels: ([labels.values, labels.weights], None), lambda parts, _: WeightedLabels(*parts)
)

Labels = Tensor | WeightedLabels


def label_values(y: Labels) -> Tensor:
    """The labels without weights."""
    return y.values if isinstance(y, WeightedLabels) else y


def label_weights(y: Labels) -> Tensor | None:
    return y.weights if isinstance(y, WeightedLabels) else None


def with_values(y: Labels, values: Tensor) -> Labels:
    """Other labels with the same weights."""
    return WeightedLabels(values, y.weights) if isinstance(y, WeightedLabels) else values


def join_labels(parts: Sequence[Labels]) -> Labels:
    values = torch.cat([label_values(part) for part in parts])
    weights = [part.weights for part in parts if isinstance(part, WeightedLabels)]
    return WeightedLabels(values, torch.cat(weights)) if weights else values


def are_weights(weights: Tensor, n: int) -> bool:
    """By their form: one number a sample."""
    return weights.shape in ((n,), (n, 1))


def checked_weights(weights: Tensor, n: int) -> Tensor:
    """Of n samples, shape (n,).

    Raises:
        InvalidData: not one number a sample, or one that is negative, NaN or infinite.
    """
    if not are_weights(weights, n):
        raise InvalidData(
            f"The weights must be one number a sample, shape ({n},); these have the shape {tuple(weights.shape)}."
        )
    weights = weights.reshape(n)
    wrong = ~(torch.isfinite(weights) & (weights >= 0))
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise InvalidData(
            f"weights: that of sample {place} of a batch of {n} is {float(weights[place]):g}; a weight must be finite, "
            "and zero or positive."
        )
    return weights
