"""Batches of rows as one, and rows from the tensors that they were stored as."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssse.problem.parameters import LinearShape
from ssse.problem.softmax_cores import cores_from_tensors, join_cores
from ssse.rows.held import ExplicitRows, HeldRows, LinearRows, StackedRows, join_digests
from ssse.rows.margin import MarginRows


def join_rows(parts: Sequence[HeldRows]) -> HeldRows:
    """Batches of one kind as one batch, copied together."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if isinstance(first, LinearRows):
        features = torch.cat([part.features for part in parts if isinstance(part, LinearRows)])
        cores = join_cores([part.cores for part in parts if isinstance(part, LinearRows)])
        return LinearRows(features, cores, first.shape, join_digests(parts))
    if isinstance(first, MarginRows):
        return _join_margins([part for part in parts if isinstance(part, MarginRows)])
    return ExplicitRows(torch.cat([part.matrix() for part in parts]), join_digests(parts))


def _join_margins(parts: Sequence[MarginRows]) -> MarginRows:
    counts = [part.counts for part in parts if part.counts is not None]
    return MarginRows(
        torch.cat([part.slopes for part in parts]),
        torch.cat([part.phi for part in parts]),
        torch.cat(counts) if counts else None,  # all have some, or none has
        join_digests(parts),
    )


def rows_from_tensors(tensors: dict[str, Tensor], shape: LinearShape | None) -> StackedRows:
    """The inverse of StackedRows.tensors()."""
    parts: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".")
        parts.setdefault(int(index), {})[name] = value
    held: list[HeldRows] = []
    for index in sorted(parts):
        part = parts[index]
        if "values" in part:
            held.append(ExplicitRows(part["values"], part.get("digests")))
        elif "slopes" in part:
            held.append(MarginRows(part["slopes"], part["phi"], part.get("counts"), part.get("digests")))
        else:
            assert shape is not None
            held.append(LinearRows(part["features"], cores_from_tensors(part), shape, part.get("digests")))
    return StackedRows(held)
