"""Cross-entropy with class probabilities for labels: smoothed, mixed, or another model's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.cores import Cores
from ssse.problem.loss import Margins
from ssse.problem.losses import CrossEntropy, instead_of_indices

SUM = 1e-3  # within which the probabilities of a sample must add up to one


class SoftCrossEntropy(CrossEntropy):
    """Softmax: ℓ = −Σ_j y_j log p_j, y the probabilities of the classes. Its curvature in z is that of class indices.

    Where they add up to s, nearly one, gradient and curvature are those of this sum, and not of one that was rounded.
    """

    one_margin = False

    def check(self, y: Tensor, shape: torch.Size) -> None:
        wanted = f"cross_entropy needs class indices, shape ({shape[0]},), or class probabilities, shape {tuple(shape)}"
        if not are_probabilities(y, shape):
            raise InvalidData(
                f"{wanted}, and the same for all samples; got {y.dtype} of shape {tuple(y.shape)} after probabilities."
            )
        wrong = ((y.double().sum(1) - 1).abs() > SUM) | (y < 0).any(1)
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            raise InvalidData(
                f"{wanted}, none of them negative and those of a sample with the sum 1; sample {place} of a batch of "
                f"{len(y)} has the sum {float(y[place].double().sum()):.4g} and the least {float(y[place].min()):.4g}. "
                + instead_of_indices(y, shape)
            )

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y.to(z.dtype), reduction="none")

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return z.softmax(1) * y.to(z.dtype).sum(1, keepdim=True) - y.to(z.dtype)

    def cores(self, z: Tensor, y: Tensor) -> Cores:
        return super().cores(z, y).scaled(y.to(z.dtype).sum(1).sqrt())

    def margins(self, outputs: int) -> int:
        raise _no_margin()

    def margin(self, z: Tensor, y: Tensor) -> Margins:
        raise _no_margin()


def _no_margin() -> InvalidSetting:
    return InvalidSetting(
        'rows="margin" needs one label a sample, and these labels are class probabilities. Use rows="expected".'
    )


def are_probabilities(y: Tensor, shape: torch.Size) -> bool:
    """By their form: a floating number for each of several outputs."""
    return y.is_floating_point() and y.shape == shape and shape[-1] > 1
