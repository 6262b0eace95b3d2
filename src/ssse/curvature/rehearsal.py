"""A request in small, before the long pass: what would fail at the end of it fails here, on one or two samples."""

from __future__ import annotations

import torch

from ssse.curvature.choices import MatrixFree
from ssse.curvature.estimates import Plan
from ssse.errors import InvalidModel
from ssse.problem.batches import Batch, slice_batch
from ssse.problem.problem import Problem
from ssse.problem.training_mode import repeatable
from ssse.rows.kinds import measure, measure_held


def try_request(problem: Problem, plan: Plan, batch: Batch) -> None:
    """The rows or products that the fit and every request will ask for, and the model at another θ.

    Raises:
        InvalidModel, InvalidSetting: a derivative that is needed cannot be taken, or the model cannot be copied.
    """
    few = 2 if plan.kind.rows_per_sample(problem.loss, problem.outputs) == 1 else 1  # of no more memory than a group
    x, y = slice_batch(batch[0], slice(0, few)), batch[1][:few]
    if problem.linear is None:
        _take_derivatives(problem, plan, (x, y))
    _move(problem, (x, y))


def _take_derivatives(problem: Problem, plan: Plan, batch: Batch) -> None:
    structure = plan.structure
    if isinstance(structure, MatrixFree):
        rows = measure(problem, plan.kind, batch).rows
        rows.transposed_times(rows.times(problem.theta()))
    if not isinstance(structure, MatrixFree) or structure.preconditioner in ("dense", "diagonal"):
        measure_held(problem, plan.kind, batch)


def _move(problem: Problem, batch: Batch) -> None:
    """What is handed back is a copy with another θ: here with the same, which must do the same."""
    moved = problem.moved(problem.theta())
    z, again = problem.forward(batch[0])[0], moved.forward(batch[0])[0]
    scale = float(z.abs().max()) + torch.finfo(z.dtype).tiny
    if not float((again - z).abs().max()) <= repeatable(z.dtype) * scale:
        raise InvalidModel(
            f"A copy of the model ({type(problem.model).__name__}) with the same parameters gives other outputs; an "
            "erased model is such a copy. Keep what forward() needs in parameters and buffers."
        )
