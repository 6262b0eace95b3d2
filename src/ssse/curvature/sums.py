"""The sums over the training data that every curvature keeps, whatever its structure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssse.errors import InvalidData
from ssse.rows.kinds import Measured
from ssse.rows.score_sums import ScoreSums
from ssse.system.group import Group


@dataclass
class Sums:
    """n, Σ ℓᵢ and Σ ∇ℓᵢ over the batches seen so far, in float64."""

    count: int = 0
    loss: float = 0.0
    gradient: Tensor | None = None
    scores: ScoreSums | None = None
    class_weights: float | None = None  # their sum, of a loss that has some

    def add(self, measured: Measured, weights: Tensor | None = None) -> None:
        gradient = measured.gradient.double()
        if weights is not None:
            self.class_weights = (self.class_weights or 0.0) + float(weights.sum(dtype=torch.float64))
        self.count += measured.count
        self.loss += measured.loss
        self.gradient = gradient if self.gradient is None else self.gradient + gradient
        if measured.scores is not None:
            self.scores = measured.scores if self.scores is None else self.scores + measured.scores

    def include(self, numbers: Tensor) -> None:
        """Those of `packed` from elsewhere."""
        found = unpacked(numbers)
        self.count += found.count
        self.loss += found.loss
        assert found.gradient is not None
        self.gradient = found.gradient if self.gradient is None else self.gradient + found.gradient
        if found.scores is not None:
            self.scores = found.scores if self.scores is None else self.scores + found.scores
        if found.class_weights is not None:
            self.class_weights = (self.class_weights or 0.0) + found.class_weights

    def copied(self) -> Sums:
        return replace(self)  # what it refers to is never changed in place

    def less(self, other: Sums) -> Sums:
        """What came after another state of these sums."""
        gradient = self.gradient
        if gradient is not None and other.gradient is not None:
            gradient = gradient - other.gradient
        scores, weights = self.scores, self.class_weights
        if scores is not None and other.scores is not None:
            scores = ScoreSums(scores.mass - other.scores.mass, scores.energy - other.scores.energy)
        if weights is not None:
            weights -= other.class_weights or 0.0
        return Sums(self.count - other.count, self.loss - other.loss, gradient, scores, weights)

    def packed(self, dim: int, device: torch.device) -> Tensor:
        """All of it in one line of d + 7 numbers."""
        scores, weights = self.scores or ScoreSums(), self.class_weights
        known = (float(self.scores is not None), float(weights is not None))
        few = [self.count, self.loss, scores.mass, scores.energy, weights or 0.0, *known]
        gradient = torch.zeros(dim, dtype=torch.float64, device=device) if self.gradient is None else self.gradient
        return torch.cat([gradient, torch.tensor(few, dtype=torch.float64, device=device)])

    def pooled(self, group: Group, dim: int) -> Sums:
        """Over all processes: one collective."""
        return self if group.alone else unpacked(group.sum(self.packed(dim, group.device)))

    def checked_gradient(self) -> Tensor:
        if self.class_weights == 0:
            raise InvalidData("The weights of all samples are zero, so that there is nothing in the curvature.")
        if self.gradient is None:
            raise InvalidData("The training data is empty.")
        if not bool(torch.isfinite(self.gradient).all()):
            raise InvalidData("The gradient of the training loss is NaN or infinite.")
        return self.gradient


def unpacked(numbers: Tensor) -> Sums:
    count, loss, mass, energy, weights, scored, weighted = numbers[-7:].tolist()
    return Sums(
        round(count), loss, numbers[:-7], ScoreSums(mass, energy) if scored else None, weights if weighted else None
    )
