"""Cores: a sample's vectors in output space, V with VᵀV its output Hessian; the Jacobian makes rows of them.

A stack of r×c matrices, one a sample, in as few numbers as its form needs:

    DenseCores      any V, n×r×c numbers
    DiagonalCores   V = diag v: outputs that do not interact (logistic attributes, least squares), n×c numbers
    BlockCores      row j has part j of the outputs alone (the scores of one token), n×c numbers
    SoftmaxCores    VᵀV = diag p − ppᵀ, n×c numbers: c² of them are never formed for a product
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

ALL = slice(None)


class Cores(ABC):
    """V of n samples."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(n, r, c)."""

    @abstractmethod
    def times(self, z: Tensor) -> Tensor:
        """V z of every sample, (n, c, q) → (n, r, q)."""

    @abstractmethod
    def transposed_times(self, u: Tensor) -> Tensor:
        """Vᵀ u of every sample, (n, r, q) → (n, c, q)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """V itself, (n, r, c)."""

    def row(self, j: int) -> Tensor:
        """Row j of every sample, (n, c)."""
        return self.dense()[:, j]

    @abstractmethod
    def weights(self, a: int, b: int) -> Tensor | None:
        """(VᵀV)_ab of every sample, (n,); None where it is zero of all, whatever the numbers are."""

    @abstractmethod
    def squares(self) -> Tensor:
        """The diagonal of VᵀV, (n, c)."""

    @abstractmethod
    def compact(self, outputs: Sequence[int]) -> Tensor:
        """A factor of VᵀV on these outputs in as few rows as is easy, (n, r', len(outputs))."""

    @abstractmethod
    def on(self, outputs: slice) -> Cores:
        """The columns of consecutive outputs, all rows; a view."""

    @abstractmethod
    def samples(self, index: Tensor | slice) -> Cores: ...

    @abstractmethod
    def rows(self, index: Tensor) -> DenseCores:
        """Single rows, counted over all samples, each as a sample of its own."""

    @abstractmethod
    def scaled(self, factors: Tensor) -> Cores:
        """Every sample's V times its factor, (n,): √w of a sample with weight w."""

    @abstractmethod
    def to(self, where: torch.dtype | torch.device) -> Cores: ...

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored to rebuild them with `cores_from_tensors`."""

    @property
    def mass(self) -> float:
        """Σ tr VᵀV."""
        return float(self.squares().sum(dtype=torch.float64))


@dataclass(frozen=True)
class DenseCores(Cores):
    values: Tensor  # (n, r, c)

    @property
    def shape(self) -> tuple[int, int, int]:
        n, r, c = self.values.shape
        return n, r, c

    def times(self, z: Tensor) -> Tensor:
        return self.values @ z

    def transposed_times(self, u: Tensor) -> Tensor:
        return self.values.mT @ u

    def dense(self) -> Tensor:
        return self.values

    def row(self, j: int) -> Tensor:
        return self.values[:, j]

    def weights(self, a: int, b: int) -> Tensor | None:
        weights = (self.values[:, :, a] * self.values[:, :, b]).sum(1)
        return weights if bool(weights.any()) else None

    def squares(self) -> Tensor:
        return self.values.square().sum(1)

    def compact(self, outputs: Sequence[int]) -> Tensor:
        values = self.values[:, :, list(outputs)]
        if len(outputs) == 1:
            return values.norm(dim=1, keepdim=True)  # Σ_r v_r² (x ⊗ x) is one row of length ‖v‖
        if values.shape[1] > len(outputs):
            return torch.linalg.qr(values, mode="r").R  # QᵀQ = I: the same sum of squares in fewer rows
        return values

    def on(self, outputs: slice) -> DenseCores:
        return DenseCores(self.values[:, :, outputs])

    def samples(self, index: Tensor | slice) -> DenseCores:
        return DenseCores(self.values[index])

    def rows(self, index: Tensor) -> DenseCores:
        n, r, c = self.shape
        return DenseCores(self.values.reshape(n * r, 1, c)[index])

    def scaled(self, factors: Tensor) -> DenseCores:
        return DenseCores(self.values * factors[:, None, None])

    def to(self, where: torch.dtype | torch.device) -> DenseCores:
        return DenseCores(self.values.to(where))

    def tensors(self) -> dict[str, Tensor]:
        return {"cores": self.values}


@dataclass(frozen=True)
class DiagonalCores(Cores):
    """One row an output, `values` (n, c) along the diagonal; of `outputs` the columns alone are kept, and all rows."""

    values: Tensor
    outputs: slice = field(default_factory=lambda: ALL)

    @property
    def shape(self) -> tuple[int, int, int]:
        n, r = self.values.shape
        return n, r, self._own().shape[1]

    def times(self, z: Tensor) -> Tensor:
        return _placed(self._own()[:, :, None] * z, self.outputs, self.values.shape[1])

    def transposed_times(self, u: Tensor) -> Tensor:
        return self._own()[:, :, None] * u[:, self.outputs]

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values)[:, :, self.outputs]

    def weights(self, a: int, b: int) -> Tensor | None:
        return self._own()[:, a].square() if a == b else None

    def squares(self) -> Tensor:
        return self._own().square()

    def compact(self, outputs: Sequence[int]) -> Tensor:
        chosen = self._own()[:, list(outputs)]
        return chosen.abs()[:, None] if len(outputs) == 1 else torch.diag_embed(chosen)

    def on(self, outputs: slice) -> DiagonalCores:
        return replace(self, outputs=_within(self.outputs, outputs, self.values.shape[1]))

    def samples(self, index: Tensor | slice) -> DiagonalCores:
        return replace(self, values=self.values[index])

    def rows(self, index: Tensor) -> DenseCores:
        sample, row = _places(index, self.values.shape[1])
        values = torch.zeros(len(index), self.values.shape[1], dtype=self.values.dtype, device=self.values.device)
        values[torch.arange(len(index), device=row.device), row] = self.values[sample, row]
        return DenseCores(values[:, None, self.outputs])

    def scaled(self, factors: Tensor) -> DiagonalCores:
        return replace(self, values=self.values * factors[:, None])

    def to(self, where: torch.dtype | torch.device) -> DiagonalCores:
        return replace(self, values=self.values.to(where))

    def tensors(self) -> dict[str, Tensor]:
        return {"diagonal": self.values}

    def _own(self) -> Tensor:
        return self.values[:, self.outputs]


@dataclass(frozen=True)
class BlockCores(Cores):
    """The outputs are r parts of b numbers, and row j is zero outside part j: `values` (n, r, b).

    A sequence of T tokens with a vocabulary of V has T rows. As dense cores (n, T, T·V) they would be T times as large
    as the model's own outputs.
    """

    values: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        n, r, b = self.values.shape
        return n, r, r * b

    def times(self, z: Tensor) -> Tensor:
        return (self.values.unsqueeze(3) * z.view(*self.values.shape, -1)).sum(2)

    def transposed_times(self, u: Tensor) -> Tensor:
        return (self.values.unsqueeze(3) * u.unsqueeze(2)).flatten(1, 2)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values.mT, dim1=1, dim2=2).flatten(2)  # (n, r, r, b) before

    def row(self, j: int) -> Tensor:
        one = torch.zeros_like(self.values)
        one[:, j] = self.values[:, j]
        return one.flatten(1)

    def weights(self, a: int, b: int) -> Tensor | None:
        width = self.values.shape[2]
        if a // width != b // width:
            return None
        part = self.values[:, a // width]
        return part[:, a % width] * part[:, b % width]

    def squares(self) -> Tensor:
        return self.values.square().flatten(1)

    def compact(self, outputs: Sequence[int]) -> Tensor:
        return DenseCores(self.dense()).compact(outputs)

    def on(self, outputs: slice) -> DenseCores:
        return DenseCores(self.dense()).on(outputs)

    def samples(self, index: Tensor | slice) -> BlockCores:
        return BlockCores(self.values[index])

    def rows(self, index: Tensor) -> DenseCores:
        return DenseCores(self.dense()).rows(index)

    def scaled(self, factors: Tensor) -> BlockCores:
        return BlockCores(self.values * factors[:, None, None])

    def to(self, where: torch.dtype | torch.device) -> BlockCores:
        return BlockCores(self.values.to(where))

    def tensors(self) -> dict[str, Tensor]:
        return DenseCores(self.dense()).tensors()


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
        whole = _placed(z, self.outputs, p.shape[1])
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
        weights = p[:, a] * self._rest_of(a) if a == b else -p[:, a] * p[:, b]
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
        return replace(self, outputs=_within(self.outputs, outputs, self.p.shape[1]))

    def samples(self, index: Tensor | slice) -> SoftmaxCores:
        return replace(self, p=self.p[index], scale=None if self.scale is None else self.scale[index])

    def rows(self, index: Tensor) -> DenseCores:
        sample, row = _places(index, self.p.shape[1])
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
        top = self.p.argmax(1, keepdim=True)
        return (1 - self.p).scatter_(1, top, self.p.scatter(1, top, 0).sum(1, keepdim=True))

    def _rest_of(self, output: int) -> Tensor:
        """1 − p of one of the outputs, (n,): the others are read only of the few samples that it may be near 1 of.

        A matrix with a block a class asks for each class by itself, and `_rest` reads all of them every time.
        """
        place = int(torch.arange(self.p.shape[1])[self.outputs][output])
        own = self.p[:, place]
        rest, likely = 1 - own, (own > 0.5).nonzero()[:, 0]
        rest[likely] = self.p[likely].index_fill(1, torch.tensor([place], device=own.device), 0).sum(1)
        return rest

    def _top(self) -> tuple[Tensor, Tensor]:
        """Whether each class is its sample's most likely one, (n, c, 1), and which that is, (n, 1, 1)."""
        at = self.p.argmax(1, keepdim=True)
        return torch.zeros_like(self.p, dtype=torch.bool).scatter_(1, at, True)[:, :, None], at[:, :, None]


def cores_of_parts(parts: Tensor) -> Cores:
    """Vectors of which each has its own part of the outputs, (n, r, c/r)."""
    if parts.shape[1] == 1:
        return DenseCores(parts)
    return DiagonalCores(parts.squeeze(2)) if parts.shape[2] == 1 else BlockCores(parts)


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


def _placed(z: Tensor, outputs: slice, width: int) -> Tensor:
    """Columns of some outputs among zeros for the others, (n, width, q)."""
    if z.shape[1] == width:
        return z
    whole = torch.zeros(len(z), width, z.shape[2], dtype=z.dtype, device=z.device)
    whole[:, outputs] = z
    return whole


def _within(outer: slice, inner: slice, width: int) -> slice:
    """A slice of a slice, as one."""
    chosen = range(width)[outer][inner]
    return slice(chosen.start, chosen.stop)


def _places(index: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """The sample that each row is of, and which of its rows it is."""
    return torch.div(index, r, rounding_mode="floor"), index % r
