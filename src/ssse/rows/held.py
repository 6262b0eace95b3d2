"""Rows: the vectors that a curvature is the sum of squares of.

Each sample gives r output-space vectors V (its *cores*, from the loss) and a Jacobian J (from the
model); its rows are VJ. Ways to hold the rows R of a batch, one interface:

    ExplicitRows   the m×d matrix itself
    MarginRows     (margin.py) the same as weights and a matrix apart
    LinearRows     z = Wx + b, so a row is v ⊗ (x, 1): kept as x and v, the n×d rows never formed
    StackedRows    many of these, one below the other
    SlabRows       some columns of these, without a copy
    NetworkRows    (autodiff.py) products with R and Rᵀ by automatic differentiation
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.problem.cores import Cores
from ssse.problem.parameters import Block, LinearShape
from ssse.rows import wide

SMALLEST = {"cpu": 128, "cuda": 2048}  # triangle, that is computed as a square: below it, half the work takes longer
ALIGNED = 64


class Rows(ABC):
    """R, with m = `count` rows and d = `dim` columns."""

    count: int
    dim: int

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """R v for v of shape (d,) or (d, q); of rows in memory in the wider precision of the two."""

    @abstractmethod
    def transposed_times(self, u: Tensor) -> Tensor:
        """Rᵀ u for u of shape (m,) or (m, q)."""


class HeldRows(Rows):
    """Rows whose numbers are in memory, as the structures take them in.

    Attributes:
        digests: which sample each row is of, shape (m,), where somebody has to find it again.
    """

    digests: Tensor | None

    @abstractmethod
    def matrix(self) -> Tensor:
        """R itself, shape (m, d)."""

    @abstractmethod
    def restricted(self, block: Block) -> Tensor:
        """A matrix with the same RᵀR on the block, in as few rows as is easy, shape (m', block.size)."""

    def count_on(self, block: Block) -> int:
        """m', the number of rows that `restricted` would return."""
        return self.count

    @abstractmethod
    def add_gram(self, out: Tensor, block: Block, sign: float = 1.0) -> None:
        """out += ± RᵀR on the block; only the lower triangle of `out` is written."""

    @abstractmethod
    def kernel(self, other: HeldRows, sums: wide.Sums | None = None) -> Tensor:
        """R R'ᵀ, shape (m, m'), summed in this precision where it is wider than that of the rows, or split."""

    @abstractmethod
    def slabs(self, block: Block) -> Sequence[HeldRows]:
        """The block's columns of every row, side by side in the block's order; views, never copies."""

    def columns(self, block: Block) -> SlabRows:
        """The same as one: unlike `restricted`, the rows themselves, in their number and with their signs."""
        return SlabRows(self.slabs(block))

    @abstractmethod
    def squares(self) -> Tensor:
        """The diagonal of RᵀR, shape (d,)."""

    @abstractmethod
    def select(self, keep: Tensor) -> HeldRows:
        """The rows whose index is in `keep`."""

    @abstractmethod
    def to(self, where: torch.dtype | torch.device) -> HeldRows: ...

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored to rebuild these rows with `rows_from_tensors`."""


@dataclass
class ExplicitRows(HeldRows):
    values: Tensor
    digests: Tensor | None = None

    def __post_init__(self) -> None:
        self.count: int = self.values.shape[0]
        self.dim: int = self.values.shape[1]

    def times(self, v: Tensor) -> Tensor:
        return wide.times(self.values, v)

    def transposed_times(self, u: Tensor) -> Tensor:
        return wide.transposed_times(self.values, u)

    def matrix(self) -> Tensor:
        return self.values

    def restricted(self, block: Block) -> Tensor:
        return block.take(self.values, dim=1)

    def add_gram(self, out: Tensor, block: Block, sign: float = 1.0) -> None:
        part = self.restricted(block)
        add_lower_product(out, part, part, sign)

    def kernel(self, other: HeldRows, sums: wide.Sums | None = None) -> Tensor:
        return wide.kernel(self.values, other.matrix(), sums)

    def slabs(self, block: Block) -> Sequence[HeldRows]:
        return [ExplicitRows(self.values[:, start:stop]) for start, stop in block.ranges]

    def squares(self) -> Tensor:
        return self.values.square().sum(0)

    def select(self, keep: Tensor) -> ExplicitRows:
        return ExplicitRows(self.values[keep], None if self.digests is None else self.digests[keep.cpu()])

    def to(self, where: torch.dtype | torch.device) -> ExplicitRows:
        return ExplicitRows(self.values.to(where), self.digests)

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values} | ({} if self.digests is None else {"digests": self.digests})


@dataclass
class LinearRows(HeldRows):
    """Row (i, r) is cores[i, r] ⊗ features[i]; with a bias, features end in a column of ones.

    Sums over rows are then sums over outputs a, b of weighted products of the features, as in
    RᵀR = [Xᵀ diag(w_ab) X]_ab with w_ab = Σ_r v_ra v_rb: c rows a sample cost no more than one.
    """

    features: Tensor  # (n, p) or (n, p+1)
    cores: Cores
    shape: LinearShape
    digests: Tensor | None = None

    def __post_init__(self) -> None:
        self.count: int = self.cores.shape[0] * self.cores.shape[1]
        self.dim: int = self.shape.outputs * (self.shape.inputs + self.shape.bias)

    def times(self, v: Tensor) -> Tensor:
        if (dtype := torch.promote_types(v.dtype, self.features.dtype)) != self.features.dtype:
            return self.to(dtype).times(v)
        layer = self._as_layer(v.to(self.features.dtype).reshape(self.dim, -1))  # (c, p̃, q)
        c, p, q = layer.shape
        z = (self.features @ layer.permute(1, 0, 2).reshape(p, c * q)).view(-1, c, q)
        return self.cores.times(z).reshape(self.count, *v.shape[1:])

    def transposed_times(self, u: Tensor) -> Tensor:
        if (dtype := torch.promote_types(u.dtype, self.features.dtype)) != self.features.dtype:
            return self.to(dtype).transposed_times(u)
        n, r, c = self.cores.shape
        d = self.cores.transposed_times(u.to(self.features.dtype).reshape(n, r, -1))  # (n, c, q)
        q = d.shape[2]
        layer = (self.features.mT @ d.reshape(n, c * q)).view(-1, c, q).permute(1, 0, 2)
        return self._as_vector(layer).reshape(self.dim, *u.shape[1:])

    def matrix(self) -> Tensor:
        n, r, c = self.cores.shape
        layer = (self.cores.dense().unsqueeze(3) * self.features[:, None, None, :]).view(n * r, c, -1)
        return self._as_vector(layer.permute(1, 2, 0)).mT

    def restricted(self, block: Block) -> Tensor:
        pieces = self.shape.pieces(block)
        outputs = sorted({piece.output for piece in pieces})
        cores = self.cores.compact(outputs)
        parts = [
            cores[:, :, outputs.index(piece.output), None] * self.features[:, None, piece.columns] for piece in pieces
        ]
        return torch.cat(parts, dim=2).flatten(0, 1)

    def count_on(self, block: Block) -> int:
        outputs = len({piece.output for piece in self.shape.pieces(block)})
        return self.cores.shape[0] * min(self.cores.shape[1], outputs)

    def add_gram(self, out: Tensor, block: Block, sign: float = 1.0) -> None:
        pieces = self.shape.pieces(block)
        for i, left in enumerate(pieces):
            for right in pieces[: i + 1]:
                weights = self.cores.weights(left.output, right.output)
                if weights is None:
                    continue  # logistic attributes do not meet each other
                target = out[left.place, right.place]
                weighted = self.features[:, left.columns] * weights[:, None]
                other = self.features[:, right.columns]
                if left is right:
                    add_lower_product(target, weighted, other, sign)
                elif left.columns == right.columns:  # Xᵀ diag(w) X is symmetric, whatever the outputs
                    product = torch.zeros_like(target)
                    add_lower_product(product, weighted, other, sign)
                    target += product.tril() + product.tril(-1).mT
                else:
                    target.addmm_(weighted.mT, other, alpha=sign)

    def kernel(self, other: HeldRows, sums: wide.Sums | None = None) -> Tensor:
        assert isinstance(other, LinearRows)
        if isinstance(sums, torch.dtype) and sums != self.features.dtype:
            return self.to(sums).kernel(other.to(sums))
        inner = self.features @ other.features.mT
        n, r, c = self.cores.shape
        m, s, _ = other.cores.shape
        left, right = self.cores.dense().reshape(n * r, c), other.cores.dense().reshape(m * s, c)
        outer = (left @ right.mT).view(n, r, m, s)
        return (outer * inner[:, None, :, None]).reshape(n * r, m * s)

    def slabs(self, block: Block) -> Sequence[HeldRows]:
        if block.ranges == ((0, self.dim),):
            return [self]  # weights and biases in one product
        return [
            LinearRows(self.features[:, slab.columns], self.cores.on(slab.outputs), slab.shape)
            for slab in self.shape.slabs(block)
        ]

    def squares(self) -> Tensor:
        layer = self.cores.squares().mT @ self.features.square()
        return self._as_vector(layer.unsqueeze(2)).squeeze(1)

    def select(self, keep: Tensor) -> LinearRows:
        r = self.cores.shape[1]
        samples = torch.div(keep, r, rounding_mode="floor")
        digests = None if self.digests is None else self.digests[keep.cpu()]
        whole = samples[::r]
        if len(keep) == len(whole) * r and bool((keep.view(-1, r) == whole[:, None] * r + _count(r, keep)).all()):
            return LinearRows(self.features[whole], self.cores.samples(whole), self.shape, digests)
        # Part of a sample's rows: a sample of one row for each.
        return LinearRows(self.features[samples], self.cores.rows(keep), self.shape, digests)

    def to(self, where: torch.dtype | torch.device) -> LinearRows:
        return LinearRows(self.features.to(where), self.cores.to(where), self.shape, self.digests)

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"features": self.features, **self.cores.tensors()}
        return tensors | ({} if self.digests is None else {"digests": self.digests})

    def _as_layer(self, v: Tensor) -> Tensor:
        """θ-shaped columns (d, q) → (c, p̃, q), the bias as the last input."""
        c, p = self.shape.outputs, self.shape.inputs
        weight = v[: c * p].view(c, p, -1)
        return torch.cat([weight, v[c * p :].view(c, 1, -1)], dim=1) if self.shape.bias else weight

    def _as_vector(self, layer: Tensor) -> Tensor:
        """(c, p̃, q) → θ-shaped columns (d, q)."""
        c, p = self.shape.outputs, self.shape.inputs
        weight = layer[:, :p].reshape(c * p, -1)
        return torch.cat([weight, layer[:, p]]) if self.shape.bias else weight


@dataclass
class StackedRows(HeldRows):
    """Many batches of held rows as one, without copying them together."""

    parts: Sequence[HeldRows]

    def __post_init__(self) -> None:
        self.count: int = sum(part.count for part in self.parts)
        self.dim: int = self.parts[0].dim
        self.digests: Tensor | None = join_digests(self.parts)

    def times(self, v: Tensor) -> Tensor:
        return torch.cat([part.times(v) for part in self.parts])

    def transposed_times(self, u: Tensor) -> Tensor:
        shares = u.split([part.count for part in self.parts])
        total = self.parts[0].transposed_times(shares[0])
        for part, share in zip(self.parts[1:], shares[1:], strict=True):
            total += part.transposed_times(share)
        return total

    def matrix(self) -> Tensor:
        return torch.cat([part.matrix() for part in self.parts])

    def restricted(self, block: Block) -> Tensor:
        return torch.cat([part.restricted(block) for part in self.parts])

    def count_on(self, block: Block) -> int:
        return sum(part.count_on(block) for part in self.parts)

    def add_gram(self, out: Tensor, block: Block, sign: float = 1.0) -> None:
        for part in self.parts:
            part.add_gram(out, block, sign)

    def kernel(self, other: HeldRows, sums: wide.Sums | None = None) -> Tensor:
        return torch.cat([part.kernel(other, sums) for part in self.parts])

    def slabs(self, block: Block) -> Sequence[HeldRows]:
        return [StackedRows(slab) for slab in zip(*(part.slabs(block) for part in self.parts), strict=True)]

    def squares(self) -> Tensor:
        return torch.stack([part.squares() for part in self.parts]).sum(0)

    def select(self, keep: Tensor) -> StackedRows:
        kept, offset = [], 0
        for part in self.parts:
            inside = keep[(keep >= offset) & (keep < offset + part.count)] - offset
            if len(inside):
                kept.append(part if len(inside) == part.count else part.select(inside))
            offset += part.count
        return StackedRows(kept)

    def to(self, where: torch.dtype | torch.device) -> StackedRows:
        return StackedRows([part.to(where) for part in self.parts])

    def tensors(self) -> dict[str, Tensor]:
        return {f"{i}.{name}": value for i, part in enumerate(self.parts) for name, value in part.tensors().items()}


@dataclass
class SlabRows(Rows):
    """Some columns of held rows: slabs side by side, which look into the rows they are of."""

    slabs: Sequence[HeldRows]

    def __post_init__(self) -> None:
        self.count: int = self.slabs[0].count
        self.dim: int = sum(slab.dim for slab in self.slabs)

    def times(self, v: Tensor) -> Tensor:
        shares = v.split([slab.dim for slab in self.slabs])
        total = self.slabs[0].times(shares[0])
        for slab, share in zip(self.slabs[1:], shares[1:], strict=True):
            total += slab.times(share)
        return total

    def transposed_times(self, u: Tensor) -> Tensor:
        return torch.cat([slab.transposed_times(u) for slab in self.slabs])

    def kernel(self, other: SlabRows, sums: wide.Sums | None = None) -> Tensor:
        """R R'ᵀ over these columns alone, of rows that are cut in the same way."""
        total = self.slabs[0].kernel(other.slabs[0], sums)
        for slab, others in zip(self.slabs[1:], other.slabs[1:], strict=True):
            total += slab.kernel(others, sums)
        return total


def add_lower_product(out: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """out += ± leftᵀ right on the lower triangle, for a product that is symmetric: half the work.

    By halves: the square below two triangles is one product, as square and as large as there is, and full speed needs
    that. The smallest triangles, on the diagonal, are whole squares.
    """
    size = len(out)
    if size <= SMALLEST[out.device.type]:
        out.addmm_(left.mT, right, alpha=sign)
        return
    half = -(-size // (2 * ALIGNED)) * ALIGNED
    add_lower_product(out[:half, :half], left[:, :half], right[:, :half], sign)
    out[half:, :half].addmm_(left[:, half:].mT, right[:, :half], alpha=sign)
    add_lower_product(out[half:, half:], left[:, half:], right[:, half:], sign)


def _count(r: int, like: Tensor) -> Tensor:
    return torch.arange(r, device=like.device)


def join_digests(parts: Sequence[HeldRows]) -> Tensor | None:
    known = [digests for part in parts if (digests := getattr(part, "digests", None)) is not None]
    return torch.cat(known) if len(known) == len(parts) else None
