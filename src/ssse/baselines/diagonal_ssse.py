"""SSSE with the diagonal of its curvature: what the off-diagonal part is worth."""

from __future__ import annotations

import time

from torch import nn

from ssse.baselines.update import Updated, diagonal_of
from ssse.curvature.curvature import Curvature
from ssse.erasure.erase import erase
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.verdict import BOUNDS

REFERENCE = "Peste et al. 2021, SSSE, with the diagonal Fisher matrix of Golatkar et al. 2020"


def diagonal_ssse(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    scale: float = 1.0,
    leave_out: bool = True,
) -> Updated:
    """The update of `ssse.erase`, with every off-diagonal entry of the curvature left out.

        θ̂ = θ + ε · g_S / (diag(RᵀR − R_SᵀR_S) + (n−k)λ)      leave_out=True
        θ̂ = θ + ε · n/(n−k) · g_S / (diag(RᵀR) + nλ)           leave_out=False

    Args:
        curvature: with structure="diagonal", of any rows.

    Raises:
        Refused: as `ssse.erase` does where there is no step. One that cannot be right is given, to compare with.
    """
    started = time.perf_counter()
    held, _ = diagonal_of(curvature, "diagonal_ssse")
    erasure = erase(model, held, loss_fn, forget, scale=scale, leave_out=leave_out, override=BOUNDS, progress=False)
    direction = erasure.direction if held.joint is None else None  # a joint stream counts from its θ*, not from θ
    notes = (*erasure.diagnostics.reasons, *erasure.diagnostics.notes)
    seconds = time.perf_counter() - started
    return Updated(erasure.model, erasure.step, direction, "diagonal_ssse", REFERENCE, notes, seconds)
