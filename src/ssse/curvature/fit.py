"""One pass over the training data: rows in, structure out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.dense import DenseBuilder
from ssse.curvature.diagonal import DiagonalBuilder
from ssse.curvature.lowrank import LowRankBuilder
from ssse.curvature.matrix_free import MatrixFree, RowSource
from ssse.curvature.planning import (
    Plan,
    Task,
    Wanted,
    fits_preconditioner,
    make_plan,
)
from ssse.curvature.recurrence import RecurrenceBuilder
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.truncated import TruncatedBuilder
from ssse.errors import InvalidData, InvalidSetting, PrecisionLost
from ssse.problem.batches import (
    Batch,
    check_repeatable,
    count_samples,
    read_batch,
    regroup,
)
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.parameters import make_blocks
from ssse.problem.problem import PROBE_SAMPLES, Problem
from ssse.rows.autodiff import held as held_rows
from ssse.rows.held import LinearRows, Rows
from ssse.rows.kinds import (
    Measured,
    RowKind,
    measure,
    measure_held,
)
from ssse.system.memory import memory_budget
from ssse.system.progress import track, waiting

ACCEPTED_SOLVE_ERROR = 1e-3


@dataclass(frozen=True)
class Fitted:
    """What one pass over the data leaves: the structure, and the sums that go with it."""

    structure: Structure
    plan: Plan
    count: int
    loss: float  # Σ ℓᵢ
    gradient: Tensor  # Σ ∇ℓᵢ, shape (d,)


@dataclass
class Sums:
    """n, Σ ℓᵢ and Σ ∇ℓᵢ over the batches seen so far, in float64."""

    count: int = 0
    loss: float = 0.0
    gradient: Tensor | None = None

    def add(self, measured: Measured) -> None:
        gradient = measured.gradient.double()
        self.count += measured.count
        self.loss += measured.loss
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def checked_gradient(self) -> Tensor:
        if self.gradient is None:
            raise InvalidData("The training data is empty.")
        if not bool(torch.isfinite(self.gradient).all()):
            raise InvalidData("The gradient of the training loss is NaN or infinite.")
        return self.gradient


@dataclass(frozen=True)
class Iteration:
    """Settings of `matrix_free` alone."""

    preconditioner: str = "auto"
    tolerance: float | None = None
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InvalidSetting(f"tolerance is a relative residual between 0 and 1, not {self.tolerance}.")
        if self.max_iterations < 1:
            raise InvalidSetting(f"max_iterations must be at least 1, not {self.max_iterations}.")


def plan_fit(problem: Problem, data: Iterable[Any], wanted: Wanted, budget: int | str | None) -> tuple[Plan, Iterator]:
    """Look at the first batch, refuse what cannot work, and choose; also returns the whole of the data."""
    check_repeatable(data)
    stream = iter(data)
    seen: list[Batch] = []  # two samples at least: one alone cannot show cross-talk
    while sum(len(y) for _, y in seen) < 2 and (batch := next(stream, None)) is not None:
        seen.append(read_batch(batch, problem.device))
    seen = [batch for batch in seen if len(batch[1])]
    if not seen:
        raise InvalidData("The training data is empty.")
    trial = next(regroup(seen, min(PROBE_SAMPLES, sum(len(y) for _, y in seen))))
    problem.probe(trial)
    free = memory_budget(problem.device, budget)
    task = Task(problem, count_samples(data), free, 0.0 if problem.linear else _row_seconds(problem, trial))
    plan = make_plan(task, wanted)
    return plan, itertools.chain(seen, (read_batch(batch, problem.device) for batch in stream))


def _row_seconds(problem: Problem, batch: Batch) -> float:
    """Of one sample's gradient; the faster of two runs, since the first one also warms up."""
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        _, measured = measure_held(problem, RowKind("empirical"), batch)
        float(measured.gradient[0])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return best / len(batch[1])


def fit_structure(
    problem: Problem,
    data: Iterable[Any],
    wanted: Wanted,
    damping: float,
    budget: int | str | None = None,
    iteration: Iteration | None = None,
    progress: bool = True,
) -> Fitted:
    plan, batches = plan_fit(problem, data, wanted, budget)
    total = count_samples(data)
    tracked = track(regroup(batches, plan.group), total, "curvature", progress)
    if plan.structure == "matrix_free":
        budget_bytes = memory_budget(problem.device, budget)
        return _fit_matrix_free(problem, data, tracked, plan, damping, iteration or Iteration(), budget_bytes)
    # Rows that are kept are found again by their sample; the salt ties those digests to this model.
    salt = bytes.fromhex(Fingerprint.of(problem).theta)[:16] if plan.structure == "lowrank" else None
    builder = _make_builder(problem, plan, total, damping, salt)
    sums, probe = Sums(), None
    for batch in tracked:
        rows, measured = measure_held(problem, plan.kind, batch, salt)
        builder.add(rows)
        sums.add(measured)
        probe = measured.gradient if probe is None else probe
    gradient = sums.checked_gradient()
    with waiting("factorising", progress):
        structure = builder.build(sums.count * damping)
    _check_precision(structure, gradient if probe is None else probe)
    return Fitted(structure, plan, sums.count, sums.loss, gradient.to(problem.dtype))


def row_source(problem: Problem, kind: RowKind, data: Iterable[Any], group: int) -> RowSource:
    """Rows over a data set again and again, for conjugate gradients."""
    if iter(data) is data:
        raise InvalidData(
            "matrix_free reads the training data many times; pass a DataLoader or a list, not an iterator."
        )

    def rows() -> Iterator[Rows]:
        batches = (read_batch(batch, problem.device) for batch in data)
        for batch in regroup(batches, group):
            yield measure(problem, kind, batch).rows

    return rows


def bind_data(
    structure: MatrixFree,
    problem: Problem,
    kind: RowKind,
    data: Iterable[Any],
    group: int,
    expected: int,
    mean_loss: float | None = None,
) -> MatrixFree:
    """Give a stored or reduced matrix-free curvature the training data that it stands for."""
    check_repeatable(data)
    source = row_source(problem, kind, data, group)
    held: list[Rows] | None = [] if problem.linear is not None else None
    count, loss, held_bytes, budget = 0, 0.0, 0, memory_budget(problem.device, None)
    for batch in regroup((read_batch(b, problem.device) for b in data), group):
        count += len(batch[1])
        measured = measure(problem, kind, batch)
        loss += measured.loss
        if held is not None and isinstance(measured.rows, LinearRows):
            held_bytes += sum(t.numel() * t.element_size() for t in measured.rows.tensors().values())
            held.append(measured.rows)
            held = held if held_bytes < 0.5 * budget else None
    if count != expected:
        raise InvalidData(
            f"The training data holds {count} samples; this curvature stands for {expected}. Pass the data it was "
            "fitted on, less what was erased since."
        )
    if mean_loss is not None and abs(loss / count - mean_loss) > 1e-4 * abs(mean_loss):
        raise InvalidData(
            f"This is not the data that the curvature was fitted on: its mean loss is {loss / count:.6g}, then it was "
            f"{mean_loss:.6g}."
        )
    kept = held
    return structure.bound((lambda: kept) if kept is not None else source)


def _make_builder(problem: Problem, plan: Plan, n: int | None, damping: float, salt: bytes | None) -> Builder:
    dim, device = problem.layout.dim, problem.device
    if plan.structure == "dense":
        return DenseBuilder(plan.blocks, plan.dtype, device)
    if plan.structure == "lowrank":
        if plan.rank:
            return TruncatedBuilder(plan.rank, plan.dtype)
        return LowRankBuilder(salt or b"", plan.dtype, plan.blocks)
    if plan.structure == "diagonal":
        return DiagonalBuilder(dim, plan.dtype, device)
    if plan.structure == "recurrence" and n is not None:
        return RecurrenceBuilder(plan.blocks, n, damping, plan.dtype, device)
    raise InvalidSetting(f"No builder for structure {plan.structure!r}.")


def _fit_matrix_free(
    problem: Problem,
    data: Iterable[Any],
    batches: Iterable[Batch],
    plan: Plan,
    damping: float,
    iteration: Iteration,
    budget: int,
) -> Fitted:
    """The sums over the data, the preconditioner, and the rows themselves where they are small."""
    if problem.linear is None:  # later products must see θ* even if the user's model has moved on
        problem = problem.copied()
    builder = _preconditioner_builder(problem, plan, iteration.preconditioner, budget)
    source = row_source(problem, plan.kind, data, plan.group)
    held: list[Rows] | None = [] if problem.linear is not None else None
    sums, held_bytes = Sums(), 0
    for batch in batches:
        measured = measure(problem, plan.kind, batch)
        rows = measured.rows
        if builder is not None:
            builder.add(held_rows(rows))
        if held is not None and isinstance(rows, LinearRows):
            held_bytes += sum(t.numel() * t.element_size() for t in rows.tensors().values())
            held.append(rows)
            held = held if held_bytes < 0.5 * budget else None
        sums.add(measured)
    gradient = sums.checked_gradient()
    ridge = sums.count * damping
    preconditioner = None if builder is None else builder.build(ridge)
    kept = held
    structure = MatrixFree(
        (lambda: kept) if kept is not None else source,
        ridge,
        preconditioner,
        iteration.tolerance,
        iteration.max_iterations,
    )
    return Fitted(structure, plan, sums.count, sums.loss, gradient.to(problem.dtype))


def _preconditioner_builder(problem: Problem, plan: Plan, choice: str, budget: int) -> Builder | None:
    """A block per output where the model is linear and they fit, the diagonal where not; else none."""
    size = torch.empty((), dtype=plan.dtype).element_size()
    if choice == "auto":
        fits = problem.linear is not None and fits_preconditioner(problem.linear, size, budget)
        choice = "dense" if fits else "diagonal" if problem.linear is not None else "none"
    if choice == "none":
        return None
    if choice == "diagonal":
        return DiagonalBuilder(problem.layout.dim, plan.dtype, problem.device)
    if choice == "dense":
        spec = "output" if problem.linear is not None else "parameter"
        return DenseBuilder(make_blocks(problem.layout, spec, problem.linear), plan.dtype, problem.device)
    raise InvalidSetting(f'preconditioner must be "auto", "none", "diagonal" or "dense", not {choice!r}.')


def _check_precision(structure: Structure, probe: Tensor) -> None:
    """Solve for the first batch's gradient and measure the error; λ is never raised to hide it."""
    measure_error = getattr(structure, "solve_error", None)
    if measure_error is None:
        return
    error, where = measure_error(probe)
    if not error <= ACCEPTED_SOLVE_ERROR:
        finer = "dtype=torch.float64, " if probe.dtype != torch.float64 else ""
        raise PrecisionLost(
            f"Solving with block '{where}' for a training gradient has a relative error of {error:.1e}, above "
            f"{ACCEPTED_SOLVE_ERROR:.0e}: rounding is amplified by a curvature this large over a damping this small. "
            f"Use {finer}a larger damping, or rescale the features."
        )
