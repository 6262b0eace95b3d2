"""Products of matrices in a wider precision than theirs, a tile at a time: no second copy of a matrix is ever held."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

TILE_BYTES = {"cpu": 2**22, "cuda": 2**30}  # of a tile that is widened; on a CPU it stays in the cache


def times(matrix: Tensor, v: Tensor) -> Tensor:
    """`matrix` v in the wider precision of the two, v of shape (d,) or (d, q)."""
    dtype = torch.promote_types(matrix.dtype, v.dtype)
    if dtype == matrix.dtype:
        return matrix @ v.to(dtype)
    out = torch.empty(len(matrix), *v.shape[1:], dtype=dtype, device=v.device)
    for part in _tiles(matrix, len(matrix), matrix.shape[1], dtype):
        out[part] = matrix[part].to(dtype) @ v
    return out


def transposed_times(matrix: Tensor, u: Tensor) -> Tensor:
    """`matrix`ᵀ u in the wider precision of the two, u of shape (m,) or (m, q)."""
    dtype = torch.promote_types(matrix.dtype, u.dtype)
    if dtype == matrix.dtype:
        return matrix.mT @ u.to(dtype)
    out = torch.zeros(matrix.shape[1], *u.shape[1:], dtype=dtype, device=u.device)
    for part in _tiles(matrix, len(matrix), matrix.shape[1], dtype):
        out += matrix[part].to(dtype).mT @ u[part]
    return out


def kernel(left: Tensor, right: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """left rightᵀ, summed in `dtype` where that is wider than theirs."""
    if dtype is None or torch.promote_types(left.dtype, dtype) == left.dtype:
        return left @ right.mT
    out = torch.zeros(len(left), len(right), dtype=dtype, device=left.device)
    for part in _tiles(left, left.shape[1], max(len(left), len(right)), dtype):
        wide = left[:, part].to(dtype)
        out.addmm_(wide, (wide if right is left else right[:, part].to(dtype)).mT)
    return out


def _tiles(matrix: Tensor, length: int, width: int, dtype: torch.dtype) -> Iterator[slice]:
    """Slices of so many lines of `width` numbers as a tile holds."""
    size = torch.empty((), dtype=dtype).element_size()
    lines = max(1, TILE_BYTES[matrix.device.type] // (size * max(width, 1)))
    for start in range(0, length, lines):
        yield slice(start, min(start + lines, length))
