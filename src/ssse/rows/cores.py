"""Output-space vectors of which each touches only its own part of the outputs: kept without the zeros between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockCores:
    """r vectors a sample, shape (n, r, b), where the outputs are r parts of b numbers and vector j is 0 outside part j.

    A sequence of T tokens with a vocabulary of V has T of them. As a tensor (n, T, T·V) they would be T times as large
    as the model's own outputs.
    """

    values: Tensor

    @property
    def count(self) -> int:
        return self.values.shape[1]

    def core(self, j: int) -> Tensor:
        """Vector j of every sample, whole, shape (n, r·b)."""
        one = torch.zeros_like(self.values)
        one[:, j] = self.values[:, j]
        return one.flatten(1)

    def tensor(self) -> Tensor:
        """All of them, whole, shape (n, r, r·b): for few outputs."""
        whole = torch.diag_embed(self.values.mT, dim1=1, dim2=2)  # (n, r, r, b)
        return whole.flatten(2)


Cores = Tensor | BlockCores  # a tensor has the shape (n, r, c)


def core_count(cores: Cores) -> int:
    """r."""
    return cores.count if isinstance(cores, BlockCores) else cores.shape[1]


def core_of(cores: Cores, j: int) -> Tensor:
    """Vector j of every sample, shape (n, c)."""
    return cores.core(j) if isinstance(cores, BlockCores) else cores[:, j]


def along(cores: Cores, jv: Tensor) -> Tensor:
    """V·Jv, the products of every vector with a change of the outputs (n, c), shape (n, r)."""
    if isinstance(cores, BlockCores):
        return (cores.values * jv.view_as(cores.values)).sum(2)
    return (cores @ jv.unsqueeze(2)).squeeze(2)


def combined(cores: Cores, u: Tensor) -> Tensor:
    """Vᵀu, the sum of each sample's vectors with weights u (n, r), shape (n, c)."""
    if isinstance(cores, BlockCores):
        return (cores.values * u.unsqueeze(2)).flatten(1)
    return (cores.mT @ u.unsqueeze(2)).squeeze(2)
