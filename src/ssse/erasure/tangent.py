"""Whether a network was its tangent as far as the step went, on samples that are at hand: those of S, or of a probe.

A step is computed from the tangent of the network at θ*: with φ the margin of a sample, φ(θ* + u) ≈ φ(θ*) + ∇φ·u. Both
sides can be had for two forward passes and one product with the Jacobian.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssse.errors import InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.labels import label_values
from ssse.problem.loss import Loss
from ssse.problem.problem import Problem
from ssse.problem.weighted_loss import unweighted

ROUNDED = 32.0  # so many units in the last place of a score are what two passes of a network may differ by


class Tangent:
    """Of one step u, from `before` to `after`: how far the margins of samples moved otherwise than the tangent says."""

    def __init__(self, before: Problem, after: Problem, u: Tensor):
        self.before: Problem = before
        self.after: Problem = after
        self.u: Tensor = u
        self._missed = 0.0
        self._moved = 0.0
        self._unknown = False

    def look(self, batch: Batch) -> None:
        """Add the samples of one batch."""
        if self._unknown:
            return
        x, y = batch[0], label_values(batch[1])  # a weight moves no margin
        z, ended = self.before.forward(x)[0], self.after.forward(x)[0]
        try:
            change = self.before.derivatives.times(self.before, x, self.u)
        except InvalidSetting:  # there is no way to a product with this model's Jacobian
            self._unknown = True
            return
        loss = unweighted(self.before.loss)
        phi, predicted = _margins(loss, z, y, change)
        arrived, _ = _margins(loss, ended, y, change)
        known = torch.isfinite(phi)  # of tokens without a label it is not
        missed = (arrived - phi - predicted)[known].double().abs()
        largest = float(torch.maximum(z.abs().amax(), ended.abs().amax()))
        missed = (missed - ROUNDED * torch.finfo(z.dtype).eps * largest).clamp_min(0)
        self._missed += float(missed.square().sum())
        self._moved += float(predicted[known].double().square().sum())

    @property
    def error(self) -> float | None:
        """‖φ(θ*+u) − φ(θ*) − ∇φ·u‖ / ‖∇φ·u‖ over all samples; what rounding alone may do is not counted.

        Of losses that have no margins it is of the outputs themselves. None where the model's derivatives along a
        direction cannot be taken.
        """
        if self._unknown:
            return None
        if not self._moved:
            return math.inf if self._missed else 0.0
        return math.sqrt(self._missed / self._moved)


def _margins(loss: Loss, z: Tensor, y: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """φ and ∇φ·u from the outputs and their change Ju to first order, both of shape (n, r)."""
    try:
        count = loss.margins(z.shape[1])
    except InvalidSetting:  # its scores are what there is
        return z, change
    found = loss.margin(z, y)
    return found.phi, (found.direction * change.view(len(z), count, -1)).sum(2)
