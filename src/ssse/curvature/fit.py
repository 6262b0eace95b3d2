"""One pass over the training data: rows in, structure out."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ssse.curvature.checkpoints import Checkpoints, Keeper, NotKept
from ssse.curvature.choices import Ground, MatrixFree
from ssse.curvature.estimates import Plan, Task, Wanted, picked
from ssse.curvature.matrix_free import MatrixFreeStructure, RowSource
from ssse.curvature.planning import make_plan
from ssse.curvature.proposals import propose_parts
from ssse.curvature.rehearsal import try_request
from ssse.curvature.shared import build_together
from ssse.curvature.structure import Builder, Structure
from ssse.curvature.sums import Sums
from ssse.curvature.trial import run_trial, samples_to_look_at
from ssse.errors import InvalidData, InvalidSetting, PrecisionLost
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
    unexpected,
)
from ssse.problem.shares import Share, deal
from ssse.problem.token_losses import TokenLoss
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, ParameterChoice
from ssse.problem.weighted_loss import unweighted
from ssse.rows.autodiff import held as held_rows
from ssse.rows.held import LinearRows, Rows
from ssse.rows.kinds import RowKind, measure, measure_held, rows_of
from ssse.rows.score_sums import ScoreSums
from ssse.system.environment import versions
from ssse.system.group import ALONE, Group, current_group
from ssse.system.memory import free_memory, memory_budget, spare_memory
from ssse.system.progress import track, waiting
from ssse.system.watch import Watch, watching

ACCEPTED_SOLVE_ERROR = 1e-3
THREADS = "number of threads"


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

    @classmethod
    def of(
        cls, sums: Sums, structure: Structure, plan: Plan, gradient: Tensor, repeats: int, notes: tuple[str, ...]
    ) -> Fitted:
        return cls(structure, plan, sums.count, sums.loss, gradient, sums.scores, sums.class_weights, repeats, notes)


@dataclass(frozen=True)
class Prepared:
    """A fit that was planned and not run yet.

    `batches`: all that is to be read here, its first batches among them. `expected`: how many samples the user says
    there are. `group`: the processes that fit together. `share`: what this one reads, where the data was dealt out.
    """

    problem: Problem
    plan: Plan
    batches: Iterator[Batch]
    total: int | None
    budget: int
    expected: int | None
    counter: SampleCounter
    group: Group
    share: Share | None
    doubts: tuple[str, ...] = ()  # about the samples, from a look at the first of them
    checkpoints: Checkpoints | None = None

    def keeping(self, builder: Builder | None, sums: Sums) -> Keeper | NotKept:
        if self.checkpoints is None or self.share is None or self.share.places is None:
            return NotKept()
        dim = self.problem.layout.dim
        return Keeper(self.checkpoints, self.group, self.share.places, builder, sums, dim, self.counter)

    def check_samples(self, data: Iterable[Any]) -> tuple[Counted, tuple[str, ...]]:
        """When all have passed: how many they were, and what is to be said of it and of the ways that were taken."""
        counted = self.counter.counted(self.group)
        if self.share is not None and self.share.places is None:
            _refuse_shared(self.counter.on_several(self.group), counted, self.expected)
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
    group: Group = ALONE,
    share: Share | None = None,
    processes: int = 1,
    forget: int | None = None,
) -> Prepared:
    """Look at the first batch, refuse what cannot work, and choose.

    `with_parts`: also compare with parts of θ, where the most faithful plan of all of it is not the chosen one.
    `share`: this process's part of the data, where several fit together, or a fit is to go on; `processes`: reckon with
    so many. `forget`: samples of the request whose seconds are told.
    """
    with group.together():
        looked = look(model, loss_fn, parameters, data, budget, expected, share)
    problem, few = looked.problem, looked.few
    group.agree(lambda: {**declared(problem, wanted, damping, share), "n": expected, "memory budget": budget})
    here = 1 if budget is not None or problem.device.type != "cpu" else group.neighbours()
    stated = int(group.numbers(memory_budget(problem.device, budget) // here)[:, 0].min())
    free = free_memory(problem.device) // here if budget is None else None  # one that was given is taken at its word
    if free is not None:
        free = int(group.numbers(free)[:, 0].min())
    total = count_samples(data) if share is None else share.total
    with group.together():
        trial = run_trial(problem, few, stated, looked.seconds)
    task = Task(
        problem, problem.layout, problem.linear, total, stated, trial, free, damping, max(processes, group.size), forget
    )

    def offered() -> list[Plan]:
        return propose_parts(task, wanted, few)

    plan = group.from_first(lambda: make_plan(task, wanted, offered))
    if with_parts and not picked(plan, plan.others[0]):
        plan = replace(plan, others=(*plan.others, *offered()))
    if task.processes > 1 and not plan.structure.shared:
        raise InvalidSetting(
            f"structure='{plan.structure.kind}' goes on from one sample to the next, and cannot be fitted by several "
            "processes. Take another structure, or one process."
        )
    with group.together():
        try_request(problem, plan, few)
    counter = SampleCounter()
    loss = unweighted(problem.loss)
    doubts = loss.note_on_padding(few[0], label_values(few[1])) if isinstance(loss, TokenLoss) else ()
    batches = counter.watch(looked.batches)
    return Prepared(problem, plan, batches, total, stated, expected, counter, group, share, doubts)


@dataclass(frozen=True)
class Looked:
    """The problem, as a few samples show it. `batches`: all that are to be read, those of the look among them."""

    problem: Problem
    few: Batch
    batches: Iterator[Batch]
    seconds: float


def going_on(
    prepared: Prepared, data: Iterable[Any], folder: str | os.PathLike[str], every: float, of: Mapping[str, Any]
) -> Prepared:
    """The same fit, with what processes before have left of it in a folder."""
    group, plan, device = prepared.group, prepared.plan, prepared.problem.device
    assert prepared.share is not None
    assert prepared.share.total is not None
    way = f"{plan.kind}, {plan.structure}, {len(plan.blocks)} blocks, {plan.dtype}"
    declaration = {name: value for name, value in of.items() if name != THREADS} | {"plan": way}
    with group.together():
        checkpoints = Checkpoints.open(folder, declaration, prepared.share.total, every)
        for part in checkpoints.parts:
            part.check(data)
        share = deal(data, group, plan.kind.per_batch, checkpoints.done)
    group.agree(lambda: {"list of checkpoints": [part.path.name for part in checkpoints.parts]})
    counter = SampleCounter()
    batches = counter.watch(read_batch(batch, device) for batch in share.data)
    return replace(prepared, share=share, counter=counter, batches=batches, checkpoints=checkpoints)


def group_of(model: nn.Module) -> Group:
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return current_group(None if parameter is None else parameter.device)


def look(
    model: nn.Module,
    loss_fn: LossLike,
    parameters: ParameterChoice,
    data: Iterable[Any],
    budget: int | str | None,
    expected: int | None,
    share: Share | None,
) -> Looked:
    """What one process sees for itself."""
    as_loss(loss_fn)  # an unknown one is refused before the data is read
    view = ModelView(model, parameters)
    refuse_training_mode(view.model)
    device = view.device
    if share is None:
        check_repeatable(data, expected)
        check_expected(data, expected)
    elif expected is not None and share.total not in (None, expected):
        raise InvalidData(unexpected(expected, share.total or 0))
    stream = iter(data if share is None or share.whole is None else share.whole)
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
    looked, rest = time.perf_counter() - began, (read_batch(batch, device) for batch in stream)
    memory_budget(device, budget)
    return Looked(problem, few, itertools.chain(seen, rest), looked)


def declared(
    problem: Problem, wanted: Wanted, damping: float | None, share: Share | None
) -> dict[str, str | float | int | None]:
    """What all processes of a fit must have in common, and a fit that goes on with the one before."""
    mark = Fingerprint.of(problem)
    return {
        "model": f"{mark.theta[:16]} {mark.rest[:16]}",
        "choice of parameters": ", ".join(problem.layout.names),
        "loss": problem.loss.name,
        "choice of settings": str(wanted),
        "damping": damping,
        "number of samples": None if share is None else share.total,
        "version of the libraries": ", ".join(f"{name} {number}" for name, number in versions().items()),
        THREADS: torch.get_num_threads(),
    }


def _refuse_shared(several: int, counted: Counted, expected: int | None) -> None:
    if several and expected is None:
        raise InvalidData(
            f"{several:,} samples came to more than one process, of {counted.total:,} in all: each must be read by "
            "one. Give each process its own part, or a loader over all of the data, which is dealt out. If it is "
            f"meant, pass n={counted.total}."
        )


def fit_structure(prepared: Prepared, data: Iterable[Any], damping: float, progress: bool = True) -> Fitted:
    problem, plan = prepared.problem, prepared.plan
    # Rows that are kept are found again by their sample; the salt ties those digests to this model.
    salt = bytes.fromhex(Fingerprint.of(problem).theta)[:16] if plan.structure.knows_samples else b""
    ground = Ground(
        problem.layout, problem.linear, plan.blocks, plan.dtype, problem.device, prepared.total, damping, salt,
        prepared.budget,
    )  # fmt: skip
    builder = plan.structure.builder(ground)
    if isinstance(plan.structure, MatrixFree):
        return _fit_matrix_free(prepared, data, plan.structure, builder, damping, progress)
    assert builder is not None
    sums, probe, group = Sums(), None, prepared.group
    with group.together():
        keeper = prepared.keeping(builder, sums)
    with group.together(), watching(group) as watch, keeper.listening():
        for batch in _passing(prepared, watch, progress):
            rows, measured = measure_held(problem, plan.kind, batch, salt or None)
            builder.add(rows)
            sums.add(measured, problem.loss.class_weights(batch[1]))
            probe = measured.gradient if probe is None else probe
            keeper.passed(measured.count)
    sums = sums.pooled(group, problem.layout.dim)
    gradient = sums.checked_gradient()
    counted, notes = prepared.check_samples(data)
    with waiting("factorising", progress):
        structure = _built(builder, sums.count * damping, group)
    _check_precision(structure, group.spread((gradient if probe is None else probe).to(problem.dtype), 0))
    keeper.remove()
    return Fitted.of(sums, structure, plan, gradient.to(problem.dtype), counted.repeats, notes)


def _passing(prepared: Prepared, watch: Watch, progress: bool) -> Iterator[Batch]:
    """All that is to be read here, until another process fails."""
    plan = prepared.plan
    # Consecutive samples that share a row must be of one shape, or which of them do would depend on their padding.
    groups = regroup(watch.while_all_work(prepared.batches), plan.group, ragged=plan.kind.per_batch == 1)
    return track(groups, prepared.total, "curvature", progress)


def _built(builder: Builder, ridge: float, group: Group) -> Structure:
    return builder.build(ridge) if group.alone else build_together(builder, ridge, group)


class KeptRows:
    """The rows of a linear model while they fit into half of the memory budget; of other models none.

    `whole`: whether all of them pass by.
    """

    def __init__(self, problem: Problem, budget: int, whole: bool = True):
        self._rows: list[Rows] | None = [] if problem.linear is not None and whole else None
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
    processes = current_group(problem.device)
    with processes.together():
        if processes.alone:
            check_repeatable(data)
        else:
            data = deal(data, processes, 1).data
    source = row_source(problem, kind, data, group)
    count, loss, kept = 0, 0.0, KeptRows(problem, spare_memory(problem.device))
    with processes.together(), watching(processes) as watch:
        read = (read_batch(b, problem.device) for b in watch.while_all_work(data))
        for batch in regroup(read, group):
            measured = measure(problem, kind, batch)
            count, loss = count + measured.count, loss + measured.loss
            kept.add(measured.rows)
            advance(measured.count)
    told = processes.numbers(count, loss).sum(0)
    count, loss = int(told[0]), float(told[1])
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
    return structure.bound(kept.source() or source, processes)


def _fit_matrix_free(
    prepared: Prepared,
    data: Iterable[Any],
    chosen: MatrixFree,
    builder: Builder | None,
    damping: float,
    progress: bool,
) -> Fitted:
    """The sums over the data, the preconditioner, and the rows themselves where they are small."""
    problem, plan = prepared.problem, prepared.plan
    if problem.linear is None:  # later products must see θ* even if the user's model has moved on
        problem = problem.copied()
    mine = data if prepared.share is None or prepared.share.whole is None else prepared.share.whole
    source = row_source(problem, plan.kind, mine, plan.group)  # before the long pass: it refuses what ends after one
    sums, group = Sums(), prepared.group
    with group.together():
        keeper = prepared.keeping(builder, sums)
    kept = KeptRows(problem, min(prepared.budget, spare_memory(problem.device)), whole=not keeper.resumed)
    with group.together(), watching(group) as watch, keeper.listening():
        for batch in _passing(prepared, watch, progress):
            measured = measure(problem, plan.kind, batch)
            if builder is not None:
                builder.add(held_rows(measured.rows))
            kept.add(measured.rows)
            sums.add(measured, problem.loss.class_weights(batch[1]))
            keeper.passed(measured.count)
    sums = sums.pooled(group, problem.layout.dim)
    gradient = sums.checked_gradient()
    counted, notes = prepared.check_samples(data)
    ridge = sums.count * damping
    preconditioner = None if builder is None else _built(builder, ridge, group)
    structure = MatrixFreeStructure(
        kept.source() or source, ridge, preconditioner, chosen.tolerance, chosen.max_iterations, group=group
    )
    keeper.remove()
    return Fitted.of(sums, structure, plan, gradient.to(problem.dtype), counted.repeats, notes)


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
