"""The loss, seen from the model's output z.

Everything the curvature needs of a loss happens in output space, sample by sample:

    gradient   u = ∂ℓ/∂z                             shape (n, c)
    cores      V with VᵀV = ∂²ℓ/∂z²                  in as few numbers as the loss needs
    factor     the same as a tensor                  shape (n, r, c)
    sampled    ∂ℓ/∂z at a label drawn from the model  shape (n, c)
    margin     φ and ∂φ/∂z where ℓ = Σ log(1 + e^−φ)  shapes (n, r) and (n, r, c/r)

The model's Jacobian J then turns output-space vectors into rows, VJ; it never meets the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ssse.errors import InvalidSetting
from ssse.problem.cores import Cores, DenseCores

# How ∂²ℓ/∂z² answers a change of z: not at all (least squares), by at most the factor e^|δ| where scores move by δ
# (logistic and softmax: self-concordance), or in a way that only the user's own function knows.
Response = Literal["constant", "softmax", "logistic", "unknown"]


@dataclass(frozen=True)
class Margins:
    """A loss as a sum of logistic ones, ℓ = Σ_j w_j log(1 + e^−φ_j), of which each has its own part of the outputs.

    z is r equal parts, and φ_j depends on part j alone: on all of z for one label, on one output for an attribute, on
    the scores of one token in a sequence. So ∂φ/∂z is kept without its zeros.

    Attributes:
        phi: φ, shape (n, r); infinite where there is nothing to predict.
        direction: ∂φ_j by the outputs of part j, shape (n, r, c/r).
        weight: w, shape (n, r); None is 1.
    """

    phi: Tensor
    direction: Tensor
    weight: Tensor | None = None

    @property
    def row_weights(self) -> Tensor:
        """√(w p(1−p)), the root of ∂²ℓ/∂φ², with p = σ(φ), shape (n, r)."""
        curvature = self.phi.sigmoid() * (-self.phi).sigmoid()
        return (curvature if self.weight is None else self.weight * curvature).sqrt()

    @property
    def slopes(self) -> Tensor:
        """∂ℓ/∂φ = −w(1−p), shape (n, r)."""
        slope = -(-self.phi).sigmoid()
        return slope if self.weight is None else self.weight * slope


class Loss(ABC):
    """One sample's data loss ℓ(z, y) and its derivatives in z.

    y is a tensor; `WeightedLoss` alone takes `WeightedLabels`.
    """

    name: str
    response: Response = "unknown"
    one_margin: bool = False  # whether a sample's loss is logistic in one margin, however many outputs there are
    coupled: bool = True  # whether ∂²ℓ/∂z² has entries between two outputs

    def swing(self, change: Tensor, y: Any) -> Tensor | None:
        """By how much each sample's scores moved, as its curvature sees it, shape (n,); None where that has no units.

        A shift of all scores means nothing to a softmax: there it is the range of the change, else its largest entry.
        """
        if self.response == "softmax":
            return change.amax(1) - change.amin(1)
        return change.abs().amax(1) if self.response == "logistic" else None

    @abstractmethod
    def check(self, y: Any, shape: torch.Size) -> None:
        """Raise InvalidData where y cannot be the labels of outputs of that shape, (n, c)."""

    def class_weights(self, y: Any) -> Tensor | None:
        """w_y of every sample, shape (n,), where the loss is known to have such weights."""
        return None

    @abstractmethod
    def values(self, z: Tensor, y: Any) -> Tensor:
        """ℓ of every sample, shape (n,)."""

    @abstractmethod
    def gradient(self, z: Tensor, y: Any) -> Tensor: ...

    @abstractmethod
    def factor(self, z: Tensor, y: Any) -> Tensor: ...

    def cores(self, z: Tensor, y: Any) -> Cores:
        return DenseCores(self.factor(z, y))

    def core_numbers(self, outputs: int) -> int:
        """That `cores` of one sample are kept in."""
        return outputs**2

    def expected(self, outputs: int) -> int:
        """How many rows `factor` has a sample; raises where it has none."""
        return outputs

    def draws(self, outputs: int) -> int:
        """How many uniform numbers a sample's drawn labels take."""
        return outputs

    @abstractmethod
    def sampled(self, z: Tensor, y: Any, uniform: Tensor) -> Tensor:
        """∂ℓ/∂z at labels drawn from the model with the given uniform numbers, shape (n, c).

        The true labels y say where there is something to draw, never what.
        """

    def drawn(self, outputs: int) -> int:
        """r, in how many equal parts `sampled` is, of which each is a row by itself."""
        return 1

    def margins(self, outputs: int) -> int:
        """r, of how many margins φ a sample's loss Σ log(1 + e^−φ) is the sum; raises where it has no such form."""
        raise InvalidSetting(
            f'rows="margin" needs a loss that is logistic in a margin, cross_entropy or binary_cross_entropy by name; '
            f'{self.name} is not known to be. Use rows="expected".'
        )

    def margin(self, z: Tensor, y: Any) -> Margins:
        raise NotImplementedError
