"""A loss of samples that count w times each."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.problem.cores import Cores
from ssse.problem.labels import Labels, WeightedLabels
from ssse.problem.loss import Loss, Margins, Response


class WeightedLoss(Loss):
    """w·ℓ of `WeightedLabels`: gradients are w times, and what is squared √w times, those of the loss itself."""

    def __init__(self, inner: Loss):
        self.inner: Loss = inner
        self.name: str = inner.name
        self.response: Response = inner.response
        self.one_margin: bool = inner.one_margin
        self.coupled: bool = inner.coupled

    def swing(self, change: Tensor, y: Labels) -> Tensor | None:
        return self.inner.swing(change, weighted(y).values)

    def check(self, y: Labels, shape: torch.Size) -> None:
        self.inner.check(weighted(y).values, shape)

    def class_weights(self, y: Labels) -> Tensor | None:
        """All weights of a sample: its own, times that of its class."""
        labels = weighted(y)
        classes = self.inner.class_weights(labels.values)
        return labels.weights if classes is None else labels.weights * classes

    def values(self, z: Tensor, y: Labels) -> Tensor:
        labels = weighted(y)
        return labels.weights.to(z.dtype) * self.inner.values(z, labels.values)

    def gradient(self, z: Tensor, y: Labels) -> Tensor:
        labels = weighted(y)
        return labels.weights.to(z.dtype)[:, None] * self.inner.gradient(z, labels.values)

    def factor(self, z: Tensor, y: Labels) -> Tensor:
        labels = weighted(y)
        return _roots(labels, z)[:, None, None] * self.inner.factor(z, labels.values)

    def cores(self, z: Tensor, y: Labels) -> Cores:
        labels = weighted(y)
        return self.inner.cores(z, labels.values).scaled(_roots(labels, z))

    def core_numbers(self, outputs: int) -> int:
        return self.inner.core_numbers(outputs)

    def expected(self, outputs: int) -> int:
        return self.inner.expected(outputs)

    def draws(self, outputs: int) -> int:
        return self.inner.draws(outputs)

    def drawn(self, outputs: int) -> int:
        return self.inner.drawn(outputs)

    def sampled(self, z: Tensor, y: Labels, uniform: Tensor) -> Tensor:
        """√w times, as a factor: its square is the curvature."""
        labels = weighted(y)
        return _roots(labels, z)[:, None] * self.inner.sampled(z, labels.values, uniform)

    def margins(self, outputs: int) -> int:
        return self.inner.margins(outputs)

    def margin(self, z: Tensor, y: Labels) -> Margins:
        """A weight counts a margin several times, it does not move it."""
        labels = weighted(y)
        margins, own = self.inner.margin(z, labels.values), labels.weights.to(z.dtype)[:, None]
        return replace(margins, weight=own.expand_as(margins.phi) if margins.weight is None else own * margins.weight)


def _roots(labels: WeightedLabels, z: Tensor) -> Tensor:
    return labels.weights.to(z.dtype).sqrt()


def weighted(y: Labels) -> WeightedLabels:
    if not isinstance(y, WeightedLabels):
        raise InvalidData(
            "The samples before had weights and these have none; pass all of them as (x, y, weight), with a weight of "
            "1 where there is none."
        )
    return y


def unweighted(loss: Loss) -> Loss:
    """The loss of one sample that counts once."""
    return loss.inner if isinstance(loss, WeightedLoss) else loss
