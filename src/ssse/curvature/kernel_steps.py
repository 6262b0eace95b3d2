"""A kernel by block rows, solved by conjugate gradients: where it is so large that a factor would cost more."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from ssse.curvature.conjugate_gradients import conjugate_gradients
from ssse.errors import PrecisionLost
from ssse.system.group import Group

COLUMNS = 104  # solved for in a request of a hundred samples: their columns of the inverse, and the solution, refined
ROUNDS = 10  # of power iteration, until the largest eigenvalue is known well enough
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
SLACK = 20  # times as many steps as expected are taken, before they are given up


class BlockRows(Protocol):
    ridge: float
    name: str
    group: Group

    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def product(self, x: Tensor) -> Tensor: ...
    def by_corners(self, r: Tensor) -> Tensor: ...


def expected_steps(kernel: BlockRows) -> int:
    """½√(κ+1) log(2/tolerance), the bound of Chebyshev polynomials; κ the largest eigenvalue over the damping."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(kernel.size, 1, generator=generator, dtype=torch.float64).to(kernel.device, kernel.dtype)
    largest = 0.0
    for _ in range(ROUNDS):
        x = kernel.product(x / x.norm())
        largest = float(x.norm())
    return math.ceil(math.sqrt(largest / kernel.ridge + 1) / 2 * math.log(2 / TOLERANCE[kernel.dtype]))


def are_cheaper(size: int, steps: int) -> bool:
    """Than a factor, by operations counted: a step reads the whole kernel for each column."""
    return 2 * size**2 * steps * COLUMNS < size**3 / 3


def solve_by_steps(kernel: BlockRows, v: Tensor) -> Tensor:
    """Of shape (m, q), preconditioned by the tiles on the diagonal."""

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a.double() * b.double()).sum(1, keepdim=True)

    tolerance = TOLERANCE[kernel.dtype]
    solved = conjugate_gradients(
        lambda p: kernel.product(p.mT.contiguous()).mT,
        v.mT.contiguous(),
        tolerance=tolerance,
        max_iterations=SLACK * expected_steps(kernel),
        precondition=lambda r: kernel.by_corners(r.mT.contiguous()).mT,
        inner=inner,
    )
    if solved.residual > 1e3 * tolerance:
        raise PrecisionLost(f"The kernel of block '{kernel.name}': {solved}. Use dtype=torch.float64 or more damping.")
    return solved.x.mT.contiguous()
