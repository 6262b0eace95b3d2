"""Samples whose margins a step is to leave alone: their rows are added to the curvature, for one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssse.curvature.gram import DampedGram
from ssse.curvature.lowrank import LowRankStructure
from ssse.curvature.structure import Structure
from ssse.errors import InvalidSetting
from ssse.rows.held import HeldRows, StackedRows
from ssse.rows.margin import MarginRows


@dataclass
class GuardRows(MarginRows):
    """Margins that are held where they are: curvature √(v p(1−p)) as it is now, and no loss that would change it."""


def check_guarding(structure: Structure) -> LowRankStructure:
    """Whether it keeps margins and one kernel of them, without weights."""
    if (
        isinstance(structure, LowRankStructure)
        and len(structure.blocks) == 1
        and structure.grams[0].weights is not None
    ):
        return structure
    raise InvalidSetting(
        'Guards are for networks with rows="margin", structure="lowrank" and blocks="one", whose margins and their '
        "kernel are kept, fitted by this version."
    )


def guarded(structure: Structure, guards: Sequence[HeldRows], weight: float) -> LowRankStructure:
    """M + weight·GᵀG for the rows G of these samples: the kernel of ∇φ, bordered by theirs. The rows are not copied.

    Raises:
        InvalidSetting: the structure does not keep margins and their kernel.
    """
    structure = check_guarding(structure)
    gram = structure.grams[0]
    assert gram.weights is not None
    dtype, added = structure.kernel_dtype, [_guard(part, weight, structure) for part in guards]
    parts = [*structure.rows.parts, *added]
    held, count = structure.rows.count, sum(part.count for part in parts)
    square = torch.zeros(count, count, dtype=dtype, device=gram.square.device)
    square[:held, :held] = gram.square
    square[:held, :held].tril_()
    top = held
    for i, part in enumerate(added):
        left = 0
        for other in parts[: len(structure.rows.parts) + i + 1]:
            assert isinstance(other, MarginRows)  # the kernel has no weights, so all of them are
            square[top : top + part.count, left : left + other.count] = part.unweighted.kernel(other.unweighted, dtype)
            left += other.count
        top += part.count
    weights = torch.cat([gram.weights, *(part.weights.to(gram.weights) for part in added)])
    bordered = DampedGram.factorise(square, structure.ridge, gram.name, weights)
    return LowRankStructure(StackedRows(parts), structure.blocks, [bordered], structure.ridge, structure.salt)


def _guard(part: HeldRows, weight: float, structure: LowRankStructure) -> GuardRows:
    assert isinstance(part, MarginRows)
    own = next(iter(structure.rows.tensors().values()))
    counts = weight * torch.ones_like(part.phi) if part.counts is None else weight * part.counts
    return GuardRows(part.slopes.to(own), part.phi.to(own.device), counts.to(own.device), part.digests)


def held_still(parts: Sequence[MarginRows]) -> tuple[Tensor, Tensor]:
    """How often each sample's loss counts, and the curvature that stays whatever its margin does: of guards alone."""
    counts, still = [], []
    for part in parts:
        own = torch.ones_like(part.phi) if part.counts is None else part.counts
        guard = isinstance(part, GuardRows)
        counts.append(torch.zeros_like(own) if guard else own)
        still.append(part.weights.square() if guard else torch.zeros_like(part.weights))
    return torch.cat(counts).double(), torch.cat(still)
