"""Cores: a sample's vectors in output space, V with VᵀV its output Hessian; the Jacobian makes rows of them.

A stack of r×c matrices, one a sample, in as few numbers as its form needs:

    DenseCores      any V, n×r×c numbers
    DiagonalCores   V = diag v: outputs that do not interact (logistic attributes, least squares), n×c numbers
    BlockCores      row j has part j of the outputs alone (the scores of one token), n×c numbers
    SoftmaxCores    VᵀV = diag p − ppᵀ, n×c numbers: in `softmax_cores`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
        return placed(self._own()[:, :, None] * z, self.outputs, self.values.shape[1])

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
        return replace(self, outputs=within(self.outputs, outputs, self.values.shape[1]))

    def samples(self, index: Tensor | slice) -> DiagonalCores:
        return replace(self, values=self.values[index])

    def rows(self, index: Tensor) -> DenseCores:
        sample, row = sample_and_row(index, self.values.shape[1])
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


def cores_of_parts(parts: Tensor) -> Cores:
    """Vectors of which each has its own part of the outputs, (n, r, c/r)."""
    if parts.shape[1] == 1:
        return DenseCores(parts)
    return DiagonalCores(parts.squeeze(2)) if parts.shape[2] == 1 else BlockCores(parts)


def placed(z: Tensor, outputs: slice, width: int) -> Tensor:
    """Columns of some outputs among zeros for the others, (n, width, q)."""
    if z.shape[1] == width:
        return z
    whole = torch.zeros(len(z), width, z.shape[2], dtype=z.dtype, device=z.device)
    whole[:, outputs] = z
    return whole


def within(outer: slice, inner: slice, width: int) -> slice:
    """A slice of a slice, as one."""
    chosen = range(width)[outer][inner]
    return slice(chosen.start, chosen.stop)


def sample_and_row(index: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """The sample that each row is of, and which of its rows it is."""
    return torch.div(index, r, rounding_mode="floor"), index % r
