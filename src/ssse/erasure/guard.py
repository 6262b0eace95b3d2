"""Samples whose margins a request is to leave alone, read and taken into its curvature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from ssse.curvature.curvature import Curvature
from ssse.curvature.guarded import check_guarding, guarded
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.batches import check_repeatable, read_batch, regroup
from ssse.problem.problem import Problem
from ssse.rows.held import StackedRows
from ssse.rows.kinds import measure_held


def check_guard(curvature: Curvature, weight: float, leave_out: bool) -> None:
    check_guarding(curvature.structure)
    if not isinstance(weight, Real) or isinstance(weight, bool) or not 0 < weight < math.inf:
        raise InvalidSetting(f"guard_weight must be a positive number, not {weight!r}.")
    if not leave_out:
        raise InvalidSetting("guard holds margins while samples are left out: use it with leave_out=True.")


def with_guards(
    curvature: Curvature, problem: Problem, guard: Iterable[Any], weight: float, forgotten: StackedRows
) -> tuple[Curvature, int]:
    """The curvature of this request, and how many samples guard it. `problem`: at the θ of the stored rows.

    Raises:
        InvalidData: there are none, or one of them is to be forgotten.
    """
    check_repeatable(guard)
    structure = check_guarding(curvature.structure)
    batches = [batch for batch in (read_batch(raw, problem.device) for raw in guard) if len(batch[1])]
    if not batches:
        raise InvalidData("The guard is empty. Leave guard= out, or give it samples that should stay as they are.")
    parts = [
        measure_held(problem, curvature.kind, batch, structure.salt)[0] for batch in regroup(batches, curvature.group)
    ]
    known = [part.digests for part in parts if part.digests is not None]
    if known and forgotten.digests is not None and bool(torch.isin(torch.cat(known), forgotten.digests).any()):
        raise InvalidData("A sample of the guard is among those to forget.")
    held = guarded(structure, parts, float(weight))
    return replace(curvature, structure=held), sum(len(y) for _, y in batches)
