"""Two sums over a linear model's samples, kept beside its curvature: how firmly their scores are held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreSums:
    """Over the samples that a curvature stands for; no sample can be read off them.

    Attributes:
        mass: Σ tr ∂²ℓᵢ/∂z², the curvature of all losses in output space.
        energy: ‖Rθ‖² = θᵀRᵀRθ, the curvature along θ itself.
    """

    mass: float = 0.0
    energy: float = 0.0

    def __add__(self, other: ScoreSums) -> ScoreSums:
        return ScoreSums(self.mass + other.mass, self.energy + other.energy)

    def __sub__(self, other: ScoreSums) -> ScoreSums:
        """Never below nothing, which rounding could make of samples that carry all of it."""
        return ScoreSums(max(self.mass - other.mass, 0.0), max(self.energy - other.energy, 0.0))
