"""Rows of margins: ∇φ of every sample as it is, and its weight apart from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ssse.problem.parameters import Block
from ssse.rows import wide
from ssse.rows.held import ExplicitRows, HeldRows, add_lower_product


@dataclass
class MarginRows(HeldRows):
    """R = diag(w) ∇φ with w = √(v p(1−p)), p = σ(φ): its parts are kept, never R itself.

    So the kernel ∇φ∇φᵀ serves any weights: another p after a step, or none at all for samples that are left out.

    Attributes:
        slopes: ∇φ, shape (m, d). phi: φ, shape (m,). counts: v, how often each sample counts; None is once.
    """

    slopes: Tensor
    phi: Tensor
    counts: Tensor | None = None
    digests: Tensor | None = None

    def __post_init__(self) -> None:
        self.count: int = self.slopes.shape[0]
        self.dim: int = self.slopes.shape[1]

    @cached_property
    def weights(self) -> Tensor:
        """w in float64, whatever the rows are in."""
        return margin_weights(self.phi.double(), self.counts)

    @property
    def unweighted(self) -> ExplicitRows:
        """∇φ; a view."""
        return ExplicitRows(self.slopes, self.digests)

    def times(self, v: Tensor) -> Tensor:
        product = self.unweighted.times(v)
        return product * self._factors(product)

    def transposed_times(self, u: Tensor) -> Tensor:
        u = u.to(torch.promote_types(u.dtype, self.slopes.dtype))
        return self.unweighted.transposed_times(u * self._factors(u))

    def matrix(self) -> Tensor:
        return self.slopes * self._factors(self.slopes)

    def restricted(self, block: Block) -> Tensor:
        part = block.take(self.slopes, dim=1)
        return part * self._factors(part)

    def add_gram(self, out: Tensor, block: Block, sign: float = 1.0) -> None:
        part = self.restricted(block)
        add_lower_product(out, part, part, sign)

    def kernel(self, other: HeldRows, sums: wide.Sums | None = None) -> Tensor:
        inner = self.unweighted.kernel(other.unweighted if isinstance(other, MarginRows) else other, sums)
        inner *= self._factors(inner)
        if isinstance(other, MarginRows):
            inner *= other.weights.to(inner.dtype)
        return inner

    def slabs(self, block: Block) -> Sequence[HeldRows]:
        return [replace(self, slopes=self.slopes[:, start:stop]) for start, stop in block.ranges]

    def squares(self) -> Tensor:
        return transposed_squares(self.slopes, self.weights)

    def select(self, keep: Tensor) -> MarginRows:
        return MarginRows(
            self.slopes[keep],
            self.phi[keep],
            None if self.counts is None else self.counts[keep],
            None if self.digests is None else self.digests[keep.cpu()],
        )

    def to(self, where: torch.dtype | torch.device) -> MarginRows:
        """Of a precision, ∇φ alone: what the weights are computed from stays as exact as it is."""
        if isinstance(where, torch.dtype):
            return replace(self, slopes=self.slopes.to(where))
        counts = None if self.counts is None else self.counts.to(where)
        return MarginRows(self.slopes.to(where), self.phi.to(where), counts, self.digests)

    def tensors(self) -> dict[str, Tensor]:
        known = {"slopes": self.slopes, "phi": self.phi, "counts": self.counts, "digests": self.digests}
        return {name: value for name, value in known.items() if value is not None}

    def _factors(self, like: Tensor) -> Tensor:
        """w, to be multiplied with lines of this precision."""
        weights = self.weights.to(like.dtype)
        return weights if like.dim() == 1 else weights[:, None]


def margin_weights(phi: Tensor, counts: Tensor | None) -> Tensor:
    """√(v p(1−p)) at the margins φ."""
    curvature = phi.sigmoid() * (-phi).sigmoid()
    return (curvature if counts is None else counts.to(phi.dtype) * curvature).sqrt()


def transposed_squares(slopes: Tensor, weights: Tensor) -> Tensor:
    """Σ w²(∇φ)², the diagonal of RᵀR."""
    return slopes.square().mT @ weights.square().to(slopes.dtype)
