"""A damped Gram matrix and its factor in one square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ssse.errors import NotPositiveDefinite
from ssse.rows.wide import TILE_BYTES


@dataclass
class DampedGram:
    """G + ridge·I = L D² Lᵀ, with G and L in the same square; with weights w, diag(w) G diag(w) + ridge·I.

    G lies on and below the diagonal; Lᵀ, whose diagonal is one, lies above it; D is apart. One square
    of memory and of disk then keeps both what is needed to solve and what is needed to change the
    ridge or the weights, or to take rows out again. Nothing ever writes to a finished square: it may be a file.
    """

    square: Tensor
    pivots: Tensor  # the diagonal of D
    ridge: float
    name: str
    weights: Tensor | None = None

    @classmethod
    def factorise(cls, square: Tensor, ridge: float, name: str, weights: Tensor | None = None) -> DampedGram:
        """Take over a square whose lower triangle holds G, and write the factor above it.

        Raises:
            NotPositiveDefinite: names the block, its size and the ridge.
        """
        if weights is None:
            diagonal = square.diagonal().clone()
            square.diagonal().add_(ridge)
            factor, info = torch.linalg.cholesky_ex(square)  # reads the lower triangle alone
            square.diagonal().copy_(diagonal)
            check_factor(factor, info, ridge, name)
        else:
            factor = factor_in_place(weighted(square.clone(), weights), ridge, name)
        pivots = factor.diagonal().clone()
        factor /= pivots  # scale each column: L D → L
        factor.diagonal().zero_()
        square.tril_().add_(factor.mT)
        return cls(square, pivots, ridge, name, weights)

    @property
    def size(self) -> int:
        return len(self.square)

    @property
    def dtype(self) -> torch.dtype:
        return self.square.dtype

    @property
    def device(self) -> torch.device:
        return self.square.device

    def half_solve(self, v: Tensor) -> Tensor:
        """H v with HᵀH = (G + ridge·I)⁻¹, G with its weights, for v of shape (B, q)."""
        half = torch.linalg.solve_triangular(self.square.mT, v, upper=False, unitriangular=True)
        return half / self.pivots[:, None]

    def half_solve_transposed(self, v: Tensor) -> Tensor:
        """Hᵀ v."""
        return torch.linalg.solve_triangular(self.square, v / self.pivots[:, None], upper=True, unitriangular=True)

    def solve(self, v: Tensor) -> Tensor:
        """(G + ridge·I)⁻¹ v, G with its weights, for v of shape (B, q)."""
        return self.half_solve_transposed(self.half_solve(v))

    def gram(self) -> Tensor:
        """A copy of G in the lower triangle of a new square, without weights."""
        return self.square.tril()

    def with_ridge(self, ridge: float) -> DampedGram:
        return DampedGram.factorise(self.gram(), ridge, self.name, self.weights)

    def of(self, kept: Tensor, ridge: float) -> DampedGram:
        """Of some rows alone, whose places are given in ascending order: no product is made again."""
        weights = None if self.weights is None else self.weights[kept]
        return DampedGram.factorise(taken(self.square, kept).tril_(), ridge, self.name, weights)

    def to(self, device: torch.device) -> DampedGram:
        weights = None if self.weights is None else self.weights.to(device)
        return DampedGram(self.square.to(device), self.pivots.to(device), self.ridge, self.name, weights)

    def product(self, x: Tensor) -> Tensor:
        """(G + ridge·I) x, G with its weights, in the precision of x, of shape (B, q)."""
        if self.weights is None:
            return symmetric_product(self.square, x) + self.ridge * x
        weights = self.weights.to(x.dtype)[:, None]
        return weights * symmetric_product(self.square, weights * x) + self.ridge * x

    def solve_error(self, v: Tensor) -> float:
        return measured_error(self, v)

    def without(self, index: Tensor, ridge: float) -> KeptFactor:
        return KeptFactor.of(self, index, ridge)


class Factorised(Protocol):
    """A damped kernel with its factor, wherever its parts are."""

    ridge: float
    name: str

    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def solve(self, v: Tensor) -> Tensor: ...
    def product(self, x: Tensor) -> Tensor: ...
    def of(self, kept: Tensor, ridge: float) -> Factorised: ...
    def with_ridge(self, ridge: float) -> Factorised: ...
    def without(self, index: Tensor, ridge: float) -> Kept: ...
    def solve_error(self, v: Tensor) -> float: ...
    def to(self, device: torch.device) -> Factorised: ...


class Kept(Protocol):
    """The factor of the kernel of those rows that stay."""

    def solve(self, b: Tensor) -> Tensor: ...


def measured_error(gram: Factorised, v: Tensor) -> float:
    """Relative error of `gram.solve(v)`, measured by one step of refinement with a float64 residual."""
    x = gram.solve(v[:, None]).double()
    correction = gram.solve((v[:, None].double() - gram.product(x)).to(v.dtype)).double()
    return float(correction.norm() / x.norm().clamp_min(torch.finfo(torch.float64).tiny))


def symmetric_product(lower: Tensor, x: Tensor) -> Tensor:
    """G x in the precision of x, G symmetric and given by its lower triangle; what lies above is not read.

    By strips that stay in the cache, all widened in the same memory: each number of G is read once, for both sides.
    """
    out, size = torch.zeros_like(x), len(lower)
    lines = max(32, TILE_BYTES[x.device.type] // max(size * x.element_size(), 1))
    memory = torch.empty(min(lines, size) * size, dtype=x.dtype, device=x.device)
    for start in range(0, size, lines):
        stop = min(start + lines, size)
        part = lower[start:stop, :stop]
        strip = memory[: part.numel()].view(part.shape).copy_(part)
        corner = strip[:, start:].tril_()
        out[start:stop] += strip @ x[:stop]
        corner.diagonal().zero_()
        out[:stop] += strip.mT @ x[start:stop]
    return out


def taken(square: Tensor, kept: Tensor, strips: int = 16) -> Tensor:
    """These rows and columns of a square, as a new one.

    By strips: an index of both at once is made as large as its result, twice.
    """
    out = torch.empty(len(kept), len(kept), dtype=square.dtype, device=square.device)
    for places, target in zip(kept.chunk(strips), out.chunk(strips), strict=True):
        torch.index_select(square.index_select(0, places), 1, kept, out=target)
    return out


def weighted(square: Tensor, weights: Tensor) -> Tensor:
    """diag(w) G diag(w), in the place of G."""
    square *= weights[:, None]
    square *= weights
    return square


def factor_in_place(square: Tensor, ridge: float, name: str) -> Tensor:
    """L with LLᵀ = G + ridge·I, in the place of G, of which the lower triangle is read.

    Raises:
        NotPositiveDefinite: names the block, its size and the ridge.
    """
    square.diagonal().add_(ridge)
    upper = square.mT  # what LAPACK takes for an upper triangle, and so needs no copy of
    info = torch.empty((), dtype=torch.int32, device=square.device)
    torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
    check_factor(square, info, ridge, name)
    return square


def check_factor(factor: Tensor, info: Tensor, ridge: float, name: str) -> None:
    if int(info) != 0 or not bool(torch.isfinite(factor.diagonal()).all()):
        raise NotPositiveDefinite(
            f"Block '{name}' ({len(factor)}×{len(factor)}, nλ = {ridge:.3g}, {factor.dtype}) is not positive "
            f"definite at pivot {int(info)}. Use a larger damping, or dtype=torch.float64."
        )


@dataclass(frozen=True)
class KeptFactor:
    """The factor of the kernel of those rows that stay, without the kernel: for one request."""

    lower: Tensor
    kept: Tensor  # places

    @classmethod
    def of(cls, gram: DampedGram, index: Tensor, ridge: float, weights: Tensor | None = None) -> KeptFactor:
        """Without the rows at `index`; with weights other than the kernel's own, where some are given."""
        stays = torch.ones(len(gram.square), dtype=torch.bool, device=index.device)
        stays[index] = False
        kept = stays.nonzero()[:, 0]
        square = taken(gram.square, kept)  # one copy, in which the factor is made
        weights = gram.weights if weights is None else weights
        if weights is not None:
            weighted(square, weights[kept])
        return cls(factor_in_place(square, ridge, gram.name), kept)

    def solve(self, b: Tensor) -> Tensor:
        """Of shape (B,), zero at the rows that do not stay."""
        half = torch.linalg.solve_triangular(self.lower, b[self.kept, None], upper=False)
        y = torch.zeros_like(b)
        y[self.kept] = torch.linalg.solve_triangular(self.lower.mT, half, upper=True)[:, 0]
        return y
