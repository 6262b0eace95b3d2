"""Cores of a softmax, VᵀV = diag p − ppᵀ, from n×c numbers: c² of them are never formed for a product.

Also the cores of several batches as one, and those that were stored, whatever their form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ssse.problem.cores import ALL, Cores, DenseCores, DiagonalCores, placed, sample_and_row, within


@dataclass(frozen=True)
class SoftmaxCores(Cores):
    """Row r is √p_r (e_r − p), times `scale` of its sample; of `outputs` the columns alone are kept, and all rows.

    Where p_r is near 1, 1 − p_r is rounding alone: the sum of all other p stands in its place, and what meets the most
    likely class is summed apart from the rest.
    """

    p: Tensor  # (n, c)
    scale: Tensor | None = None  # (n,)
    outputs: slice = field(default_factory=lambda: ALL)

    @property
    def shape(self) -> tuple[int, int, int]:
        n, r = self.p.shape
        return n, r, self.p[:, self.outputs].shape[1]

    def times(self, z: Tensor) -> Tensor:
        roots, p = self._roots()[:, :, None], self.p[:, :, None]
        whole = placed(z, self.outputs, p.shape[1])
        top, at = self._top()
        own = whole.gather(1, at.expand(-1, -1, z.shape[2]))  # zero where the class is not among the outputs
        others = (top.logical_not() * p * whole).sum(1, keepdim=True)
        return roots * torch.where(
            top, self._rest()[:, :, None] * whole - others, whole - others - p.gather(1, at) * own
        )

    def transposed_times(self, u: Tensor) -> Tensor:
        roots, p = self._roots()[:, :, None], self.p[:, :, None]
        top, at = self._top()
        pushed = roots * u
        others = (top.logical_not() * pushed).sum(1, keepdim=True)
        own = pushed.gather(1, at.expand(-1, -1, u.shape[2]))
        kept = torch.where(top, self._rest()[:, :, None] * pushed - p * others, pushed - p * (others + own))
        return kept[:, self.outputs]

    def dense(self) -> Tensor:
        roots = self._roots()
        values = -roots[:, :, None] * self.p[:, None, :]
        values.diagonal(dim1=1, dim2=2).copy_(roots * self._rest())
        return values[:, :, self.outputs]

    def weights(self, a: int, b: int) -> Tensor | None:
        p = self.p[:, self.outputs]
        if a == b:  # of one column alone: there are as many calls as classes
            top, others = self._most_likely
            own = p[:, a]
            weights = own * torch.where(top[:, 0] == range(self.p.shape[1])[self.outputs][a], others[:, 0], 1 - own)
        else:
            weights = -p[:, a] * p[:, b]
        return weights if self.scale is None else weights * self.scale.square()

    def squares(self) -> Tensor:
        squares = (self.p * self._rest())[:, self.outputs]
        return squares if self.scale is None else squares * self.scale.square()[:, None]

    def compact(self, outputs: Sequence[int]) -> Tensor:
        """The Cholesky factor of diag p − ppᵀ in closed form (Tanabe and Sagae, 1992).

        With the tail sums q_j = Σ_{k>j} p_k over all classes, row j is √(p_j q_j/q_{j−1}) on the diagonal and
        −√(p_j/(q_{j−1}q_j)) p_i behind it: nothing is subtracted, so that no digits are lost where some p is near 1.
        """
        places = torch.arange(self.p.shape[1], device=self.p.device)[self.outputs][list(outputs)]
        p = self.p[:, places]
        outside = self.p.index_fill(1, places, 0).sum(1, keepdim=True)
        tails = torch.cat([p, outside], dim=1).flip(1).cumsum(1).flip(1)  # q_0 … q_m
        before, after = tails[:, :-1], tails[:, 1:]
        share = (p / before.clamp_min(torch.finfo(p.dtype).tiny)).sqrt()
        if self.scale is not None:
            share = share * self.scale[:, None]
        behind = p[:, None, :] / after.clamp_min(torch.finfo(p.dtype).tiny).sqrt()[:, :, None]
        factor = (-share[:, :, None] * behind).triu(1)
        factor.diagonal(dim1=1, dim2=2).copy_(share * after.sqrt())
        return factor

    def on(self, outputs: slice) -> SoftmaxCores:
        return replace(self, outputs=within(self.outputs, outputs, self.p.shape[1]))

    def samples(self, index: Tensor | slice) -> SoftmaxCores:
        return replace(self, p=self.p[index], scale=None if self.scale is None else self.scale[index])

    def rows(self, index: Tensor) -> DenseCores:
        sample, row = sample_and_row(index, self.p.shape[1])
        roots, p = self._roots()[sample, row], self.p[sample]
        values = -roots[:, None] * p
        values[torch.arange(len(index), device=row.device), row] = roots * self._rest()[sample, row]
        return DenseCores(values[:, None, self.outputs])

    def scaled(self, factors: Tensor) -> SoftmaxCores:
        return replace(self, scale=factors if self.scale is None else self.scale * factors)

    def to(self, where: torch.dtype | torch.device) -> SoftmaxCores:
        return replace(self, p=self.p.to(where), scale=None if self.scale is None else self.scale.to(where))

    def tensors(self) -> dict[str, Tensor]:
        return {"softmax": self.p} | ({} if self.scale is None else {"scale": self.scale})

    def _roots(self) -> Tensor:
        return self.p.sqrt() if self.scale is None else self.p.sqrt() * self.scale[:, None]

    def _rest(self) -> Tensor:
        """1 − p, (n, c)."""
        return (1 - self.p).scatter_(1, *self._most_likely)

    @cached_property
    def _most_likely(self) -> tuple[Tensor, Tensor]:
        """Each sample's most likely class, and the sum of all other p, (n, 1) both."""
        top = self.p.argmax(1, keepdim=True)
        return top, self.p.scatter(1, top, 0).sum(1, keepdim=True)

    def _top(self) -> tuple[Tensor, Tensor]:
        """Whether each class is its sample's most likely one, (n, c, 1), and which that is, (n, 1, 1)."""
        at = self.p.argmax(1, keepdim=True)
        return torch.zeros_like(self.p, dtype=torch.bool).scatter_(1, at, True)[:, :, None], at[:, :, None]


def join_cores(parts: Sequence[Cores]) -> Cores:
    """Those of several batches as one, copied together."""
    diagonal = [part for part in parts if isinstance(part, DiagonalCores) and part.outputs == ALL]
    if len(diagonal) == len(parts):
        return DiagonalCores(torch.cat([part.values for part in diagonal]))
    softmax = [part for part in parts if isinstance(part, SoftmaxCores) and part.outputs == ALL]
    if len(softmax) == len(parts):
        p = torch.cat([part.p for part in softmax])
        if all(part.scale is None for part in softmax):
            return SoftmaxCores(p)
        return SoftmaxCores(p, torch.cat([_ones(part.p) if part.scale is None else part.scale for part in softmax]))
    return DenseCores(torch.cat([part.dense() for part in parts]))


def cores_from_tensors(tensors: Mapping[str, Tensor]) -> Cores:
    """The inverse of `tensors()`; before there were other forms, every one was stored as dense ones."""
    if "softmax" in tensors:
        return SoftmaxCores(tensors["softmax"], tensors.get("scale"))
    return DiagonalCores(tensors["diagonal"]) if "diagonal" in tensors else DenseCores(tensors["cores"])


def _ones(like: Tensor) -> Tensor:
    return torch.ones(len(like), dtype=like.dtype, device=like.device)
