"""Products of matrices in a wider precision than theirs, a tile at a time: no second copy of a matrix is ever held.

And of float32 on tensor cores, which multiply numbers of 11 bits, in three products of halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Sums = torch.dtype | Literal["split"]  # the precision that products are summed in; "split": float32, by halves

TILE_BYTES = {"cpu": 2**22, "cuda": 2**30}  # of a tile that is widened; on a CPU it stays in the cache
COLUMNS = 2**13  # of a split product: tensor cores cut what they add, and a long sum of squares comes out too small
KEPT_BITS = -(2**13)  # a mask: sign, exponent and ten of the 23 bits behind the point, as TF32 has them


def times(matrix: Tensor, v: Tensor) -> Tensor:
    """`matrix` v in the wider precision of the two, v of shape (d,) or (d, q)."""
    dtype = torch.promote_types(matrix.dtype, v.dtype)
    if dtype == matrix.dtype:
        return matrix @ v.to(dtype)
    out = torch.empty(len(matrix), *v.shape[1:], dtype=dtype, device=v.device)
    for part, tile in _widened(matrix, dtype):
        torch.matmul(tile, v, out=out[part])
    return out


def transposed_times(matrix: Tensor, u: Tensor) -> Tensor:
    """`matrix`ᵀ u in the wider precision of the two, u of shape (m,) or (m, q)."""
    dtype = torch.promote_types(matrix.dtype, u.dtype)
    if dtype == matrix.dtype:
        return matrix.mT @ u.to(dtype)
    out = torch.zeros(matrix.shape[1], *u.shape[1:], dtype=dtype, device=u.device)
    add = out.addmv_ if u.ndim == 1 else out.addmm_
    for part, tile in _widened(matrix, dtype):
        add(tile.mT, u[part])
    return out


def kernel(left: Tensor, right: Tensor, sums: Sums | None = None) -> Tensor:
    """left rightᵀ, summed in a precision that is wider than theirs, or split."""
    if sums == "split":
        return _split_kernel(left, right)
    if sums is None or torch.promote_types(left.dtype, sums) == left.dtype:
        return left @ right.mT
    out = torch.zeros(len(left), len(right), dtype=sums, device=left.device)
    for part in _tiles(left, left.shape[1], max(len(left), len(right)), sums):
        wide = left[:, part].to(sums)
        out.addmm_(wide, (wide if right is left else right[:, part].to(sums)).mT)
    return out


def _split_kernel(left: Tensor, right: Tensor) -> Tensor:
    """With h + l = x, left rightᵀ = hhᵀ + hlᵀ + lhᵀ: what is left out, llᵀ, is below 2⁻²² of each product."""
    out = torch.zeros(len(left), len(right), dtype=left.dtype, device=left.device)
    with _tensor_cores():
        for start in range(0, left.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            high, low = halves(left[:, part])
            others = (high, low) if right is left else halves(right[:, part])
            out.addmm_(low, others[0].mT).addmm_(high, others[1].mT).addmm_(high, others[0].mT)
    return out


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """h, which is x rounded to eleven bits, and l = x − h, which has at most thirteen; of float32."""
    bits = x.view(torch.int32) + 2**12  # what is cut off rounds up from its half on
    high = bits.bitwise_and_(KEPT_BITS).view(x.dtype)
    return high, x - high


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Products of float32 by the TF32 of a GPU; afterwards as they were."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    if before == "tf32":
        yield
        return
    products.allow_tf32 = True  # the older of two settings sets both
    try:
        yield
    finally:
        products.allow_tf32 = False
        products.fp32_precision = before


def _widened(matrix: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Lines of a matrix in a wider precision, all in the same memory: fresh memory for each tile would have to be
    handed out, and cleared, page by page by the system, which costs more than the product."""
    tile = matrix.new_empty(0, dtype=dtype)
    for part in _tiles(matrix, len(matrix), matrix.shape[1], dtype):
        lines = matrix[part]
        if len(tile) != len(lines):  # the first, and the last
            tile = tile[: len(lines)] if len(tile) else torch.empty_like(lines, dtype=dtype)
        yield part, tile.copy_(lines)


def _tiles(matrix: Tensor, length: int, width: int, dtype: torch.dtype) -> Iterator[slice]:
    """Slices of so many lines of `width` numbers as a tile holds."""
    size = torch.empty((), dtype=dtype).element_size()
    lines = max(1, TILE_BYTES[matrix.device.type] // (size * max(width, 1)))
    for start in range(0, length, lines):
        yield slice(start, min(start + lines, length))
