"""One pass over the training data: rows in, structure out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ssse.curvature.choices import Ground, MatrixFree
from ssse.curvature.estimates import Plan, Task, Wanted, picked
from ssse.curvature.matrix_free import MatrixFreeStructure, RowSource
from ssse.curvature.planning import make_plan
from ssse.curvature.proposals import propose_parts
from ssse.curvature.rehearsal import try_request
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.trial import run_trial, samples_to_look_at
from ssse.errors import InvalidData, PrecisionLost
from ssse.problem.batches import Batch, check_repeatable, count_samples, read_batch, regroup
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.labels import label_values
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.sample_counts import (
    Counted,
    SampleCounter,
    batches_to_compare,
    check_counted,
    check_expected,
    check_worker_split,
)
from ssse.problem.token_losses import TokenLoss
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, ParameterChoice
from ssse.problem.weighted_loss import unweighted
from ssse.rows.autodiff import held as held_rows
from ssse.rows.held import LinearRows, Rows
from ssse.rows.kinds import Measured, RowKind, measure, measure_held, rows_of
from ssse.rows.score_sums import ScoreSums
from ssse.system.memory import free_memory, memory_budget, spare_memory
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
    scores: ScoreSums | None
    class_weights: float | None  # Σ w_y of a loss that has some
    repeats: int  # samples that are the same as one before them
    notes: tuple[str, ...]  # on how many samples came


@dataclass
class Sums:
    """n, Σ ℓᵢ and Σ ∇ℓᵢ over the batches seen so far, in float64."""

    count: int = 0
    loss: float = 0.0
    gradient: Tensor | None = None
    scores: ScoreSums | None = None
    class_weights: float | None = None  # their sum, of a loss that has some

    def add(self, measured: Measured, weights: Tensor | None = None) -> None:
        gradient = measured.gradient.double()
        if weights is not None:
            self.class_weights = (self.class_weights or 0.0) + float(weights.sum(dtype=torch.float64))
        self.count += measured.count
        self.loss += measured.loss
        self.gradient = gradient if self.gradient is None else self.gradient + gradient
        if measured.scores is not None:
            self.scores = measured.scores if self.scores is None else self.scores + measured.scores

    def checked_gradient(self) -> Tensor:
        if self.class_weights == 0:
            raise InvalidData("The weights of all samples are zero, so that there is nothing in the curvature.")
        if self.gradient is None:
            raise InvalidData("The training data is empty.")
        if not bool(torch.isfinite(self.gradient).all()):
            raise InvalidData("The gradient of the training loss is NaN or infinite.")
        return self.gradient

    def fitted(
        self, structure: Structure, plan: Plan, gradient: Tensor, repeats: int, notes: tuple[str, ...]
    ) -> Fitted:
        return Fitted(structure, plan, self.count, self.loss, gradient, self.scores, self.class_weights, repeats, notes)


@dataclass(frozen=True)
class Prepared:
    """A fit that was planned and not run yet.

    `batches`: all of the data, its first batches among them. `expected`: how many samples the user says there are.
    """

    problem: Problem
    plan: Plan
    batches: Iterator[Batch]
    total: int | None
    budget: int
    expected: int | None
    counter: SampleCounter
    doubts: tuple[str, ...] = ()  # about the samples, from a look at the first of them

    def check_samples(self, data: Iterable[Any]) -> tuple[Counted, tuple[str, ...]]:
        """When all have passed: how many they were, and what is to be said of it and of the ways that were taken."""
        counted = self.counter.counted()
        return counted, (*self.doubts, *check_counted(data, counted, self.expected), *self.problem.derivatives.notes)


def prepare(
    model: nn.Module,
    loss_fn: LossLike,
    parameters: ParameterChoice,
    data: Iterable[Any],
    wanted: Wanted,
    budget: int | str | None,
    expected: int | None = None,
    damping: float | None = None,
    with_parts: bool = False,
) -> Prepared:
    """Look at the first batch, refuse what cannot work, and choose.

    `with_parts`: also compare with parts of θ, where the most faithful plan of all of it is not the chosen one.
    """
    as_loss(loss_fn)  # an unknown one is refused before the data is read
    view = ModelView(model, parameters)
    refuse_training_mode(view.model)
    device = view.device
    check_repeatable(data, expected)
    check_expected(data, expected)
    stream = iter(data)
    seen: list[Batch] = []  # two samples at least: one alone cannot show cross-talk
    fewest = batches_to_compare(data)
    while (len(seen) < fewest or sum(len(y) for _, y in seen) < 2) and (batch := next(stream, None)) is not None:
        seen.append(read_batch(batch, device))
    check_worker_split(data, seen, expected)
    seen = [batch for batch in seen if len(batch[1])]
    if not seen:
        raise InvalidData("The training data is empty.")
    few = next(regroup(seen, min(samples_to_look_at(view.model), sum(len(y) for _, y in seen))))
    began = time.perf_counter()
    problem = Problem(view.working, loss_fn, parameters, few)
    looked = time.perf_counter() - began
    stated, total = memory_budget(device, budget), count_samples(data)
    free = free_memory(device) if budget is None else None  # a budget that was given is taken at its word
    trial = run_trial(problem, few, stated, looked)
    task = Task(problem, problem.layout, problem.linear, total, stated, trial, free, damping)

    def offered() -> list[Plan]:
        return propose_parts(task, wanted, few)

    plan = make_plan(task, wanted, offered)
    if with_parts and not picked(plan, plan.others[0]):
        plan = replace(plan, others=(*plan.others, *offered()))
    try_request(problem, plan, few)
    rest = (read_batch(batch, device) for batch in stream)
    counter = SampleCounter()
    batches = counter.watch(itertools.chain(seen, rest))
    loss = unweighted(problem.loss)
    doubts = loss.note_on_padding(few[0], label_values(few[1])) if isinstance(loss, TokenLoss) else ()
    return Prepared(problem, plan, batches, total, stated, expected, counter, doubts)


def fit_structure(prepared: Prepared, data: Iterable[Any], damping: float, progress: bool = True) -> Fitted:
    problem, plan = prepared.problem, prepared.plan
    # Consecutive samples that share a row must be of one shape, or which of them do would depend on their padding.
    groups = regroup(prepared.batches, plan.group, ragged=plan.kind.per_batch == 1)
    batches = track(groups, prepared.total, "curvature", progress)
    # Rows that are kept are found again by their sample; the salt ties those digests to this model.
    salt = bytes.fromhex(Fingerprint.of(problem).theta)[:16] if plan.structure.knows_samples else b""
    ground = Ground(
        problem.layout, problem.linear, plan.blocks, plan.dtype, problem.device, prepared.total, damping, salt,
        prepared.budget,
    )  # fmt: skip
    builder = plan.structure.builder(ground)
    if isinstance(plan.structure, MatrixFree):
        return _fit_matrix_free(prepared, data, batches, plan.structure, builder, damping)
    assert builder is not None
    sums, probe = Sums(), None
    for batch in batches:
        rows, measured = measure_held(problem, plan.kind, batch, salt or None)
        builder.add(rows)
        sums.add(measured, problem.loss.class_weights(batch[1]))
        probe = measured.gradient if probe is None else probe
    gradient = sums.checked_gradient()
    counted, notes = prepared.check_samples(data)
    with waiting("factorising", progress):
        structure = builder.build(sums.count * damping)
    _check_precision(structure, gradient if probe is None else probe)
    return sums.fitted(structure, plan, gradient.to(problem.dtype), counted.repeats, notes)


class KeptRows:
    """The rows of a linear model while they fit into half of the memory budget; of other models none."""

    def __init__(self, problem: Problem, budget: int):
        self._rows: list[Rows] | None = [] if problem.linear is not None else None
        self._bytes, self._most = 0, 0.5 * budget

    def add(self, rows: Rows) -> None:
        if self._rows is None or not isinstance(rows, LinearRows):
            return
        self._bytes += sum(t.numel() * t.element_size() for t in rows.tensors().values())
        self._rows.append(rows)
        if self._bytes >= self._most:
            self._rows = None

    def source(self) -> RowSource | None:
        kept = self._rows
        return None if kept is None else lambda: kept


def row_source(problem: Problem, kind: RowKind, data: Iterable[Any], group: int) -> RowSource:
    """Rows over a data set again and again, for conjugate gradients."""
    if iter(data) is data:
        raise InvalidData(
            "matrix_free reads the training data many times; pass a DataLoader or a list, not an iterator."
        )

    def rows() -> Iterator[Rows]:
        batches = (read_batch(batch, problem.device) for batch in data)
        for batch in regroup(batches, group):
            yield rows_of(problem, kind, batch)

    return rows


def bind_data(
    structure: MatrixFreeStructure,
    problem: Problem,
    kind: RowKind,
    data: Iterable[Any],
    group: int,
    expected: int,
    mean_loss: float | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> MatrixFreeStructure:
    """Give a stored or reduced matrix-free curvature the training data that it stands for.

    `advance` is told of samples as they are read.
    """
    check_repeatable(data)
    source = row_source(problem, kind, data, group)
    count, loss, kept = 0, 0.0, KeptRows(problem, spare_memory(problem.device))
    for batch in regroup((read_batch(b, problem.device) for b in data), group):
        measured = measure(problem, kind, batch)
        count, loss = count + measured.count, loss + measured.loss
        kept.add(measured.rows)
        advance(measured.count)
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
    return structure.bound(kept.source() or source)


def _fit_matrix_free(
    prepared: Prepared,
    data: Iterable[Any],
    batches: Iterable[Batch],
    chosen: MatrixFree,
    builder: Builder | None,
    damping: float,
) -> Fitted:
    """The sums over the data, the preconditioner, and the rows themselves where they are small."""
    problem, plan = prepared.problem, prepared.plan
    if problem.linear is None:  # later products must see θ* even if the user's model has moved on
        problem = problem.copied()
    source = row_source(problem, plan.kind, data, plan.group)  # before the long pass: it refuses what ends after one
    sums, kept = Sums(), KeptRows(problem, min(prepared.budget, spare_memory(problem.device)))
    for batch in batches:
        measured = measure(problem, plan.kind, batch)
        if builder is not None:
            builder.add(held_rows(measured.rows))
        kept.add(measured.rows)
        sums.add(measured, problem.loss.class_weights(batch[1]))
    gradient = sums.checked_gradient()
    counted, notes = prepared.check_samples(data)
    ridge = sums.count * damping
    preconditioner = None if builder is None else builder.build(ridge)
    structure = MatrixFreeStructure(
        kept.source() or source, ridge, preconditioner, chosen.tolerance, chosen.max_iterations
    )
    return sums.fitted(structure, plan, gradient.to(problem.dtype), counted.repeats, notes)


def _check_precision(structure: Structure, probe: Tensor) -> None:
    """Solve for the first batch's gradient and measure the error; λ is never raised to hide it."""
    error, where = structure.solve_error(probe)
    if not error <= ACCEPTED_SOLVE_ERROR:
        finer = "dtype=torch.float64, " if probe.dtype != torch.float64 else ""
        raise PrecisionLost(
            f"Solving with block '{where}' for a training gradient has a relative error of {error:.1e}, above "
            f"{ACCEPTED_SOLVE_ERROR:.0e}: rounding is amplified by a curvature this large over a damping this small. "
            f"Use {finer}a larger damping, or rescale the features."
        )
