"""From what each process has taken in to one structure over all of them."""

from __future__ import annotations

import torch

from ssse.curvature.dense import DenseBuilder
from ssse.curvature.diagonal import DiagonalBuilder
from ssse.curvature.gram import DampedGram
from ssse.curvature.lowrank import LowRankBuilder
from ssse.curvature.matrix_free import MatrixFreeStructure
from ssse.curvature.shared_dense import SharedDense, share_dense
from ssse.curvature.shared_lowrank import Form, SharedLowRank, block_rows, everything, hold_tiles, share_lowrank
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.tiles import SharedRows
from ssse.curvature.truncated import TruncatedBuilder, TruncatedStructure, leading
from ssse.errors import InvalidSetting
from ssse.system.group import Group


def build_together(builder: Builder, ridge: float, group: Group) -> Structure:
    if isinstance(builder, DenseBuilder):
        return share_dense(builder, ridge, group)
    if isinstance(builder, LowRankBuilder):
        return share_lowrank(builder, ridge, group)
    if isinstance(builder, DiagonalBuilder):
        group.sum(builder.squares)
        return builder.build(ridge)
    if isinstance(builder, TruncatedBuilder):
        return _truncated(builder, ridge, group)
    raise InvalidSetting(f"{type(builder).__name__} builds on one process alone.")


def is_shared(structure: Structure) -> bool:
    """Whether every process holds another part of it."""
    inner = structure.preconditioner if isinstance(structure, MatrixFreeStructure) else structure
    return isinstance(inner, SharedDense | SharedLowRank)


def _truncated(builder: TruncatedBuilder, ridge: float, group: Group) -> TruncatedStructure:
    """The same directions on every process; their kernel is whole on each, and the first one finds them."""
    full = builder.full
    full.close_tile()
    dtype = Form.of(full.parts, group).dtype
    full.parts = [part.to(torch.float64) for part in full.parts]
    tiles, parts, form = hold_tiles(full, group)
    (own,) = block_rows(full, tiles, parts, form, [everything(form.dim)], group)
    kernel = torch.zeros(tiles.count, tiles.count, dtype=torch.float64, device=group.device)
    kernel[tiles.rows_of(group.rank).to(group.device)] = own
    group.sum(kernel)
    values, vectors = torch.empty(0), torch.empty(0)
    with group.together():
        if group.first:
            values, vectors = leading(kernel.mT, builder.rank)
    kept = int(group.numbers(len(values))[0])
    if not group.first:
        values, vectors = kernel.new_empty(kept), kernel.new_empty(tiles.count, kept)
    values, vectors = group.spread(values.contiguous(), 0), group.spread(vectors.contiguous(), 0)
    rows = SharedRows(tiles, parts, form.dim, torch.float64, group)
    basis = group.spread(torch.linalg.qr(rows.transposed_times(vectors) / values.sqrt()).Q.contiguous(), 0)
    inside = rows.times(basis)
    core = DampedGram.factorise((inside.mT @ inside).to(dtype), ridge, "directions")
    return TruncatedStructure(basis.mT.contiguous().to(dtype), core, ridge)
