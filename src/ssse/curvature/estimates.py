"""What one way to fit costs: memory, disk, and seconds of the fit and of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ssse.curvature.choices import Choice, LowRank, MatrixFree
from ssse.curvature.conjugate_gradients import usual_tolerance
from ssse.curvature.costs import speeds_of
from ssse.curvature.extent import Extent
from ssse.curvature.trial import Pace, Trial
from ssse.curvature.wire import cost_together, wire_of_fit
from ssse.problem.derivatives.vectorised import AT_A_TIME
from ssse.problem.parameters import Block, BlockChoice, Layout, LinearShape, make_blocks
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowChoice, RowKind
from ssse.system.memory import human_bytes

MOST_SAMPLES = 4096  # of a linear model at a time; of other models a quarter, since their rows are formed
SHARE = 0.1  # of the memory budget, for the samples at a time
MOST_BYTES = {"cpu": 2**30, "cuda": 2**32}  # for these
ASKED = 100  # samples of the request that seconds are told of, or one in a hundred where that is less
REFIT_PASSES = 150  # of L-BFGS from the old weights until it is as near as the step: benchmarks/multi_attribute.py
STEPS_IN_BLOCKS = 25  # of conjugate gradients to 1e-4 with a dense block per output: benchmarks/matrix_free.py has 22


@dataclass(frozen=True)
class Wanted:
    """The user's choices; "auto" and None are open."""

    rows: RowChoice = "auto"
    rows_per_batch: int = 1
    seed: int = 0
    structure: Choice | None = None
    blocks: BlockChoice = "auto"
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Plan:
    """One way to fit, with its estimated cost.

    Attributes:
        kind: of the rows. structure: with its options. blocks: what θ is cut into; none where all of it is one.
        group: samples taken at a time. fit_bytes: peak memory of the fit besides model and data.
        stored_bytes: size on disk. operations: floating-point operations of the fit.
        seconds: of the fit, at the speed of matrix products here, and of a trial for the rows.
        asked: samples of a request. request_seconds: of such a request, `ssse.erase`; None where it is not known.
        refit_seconds: of a refit of all samples from the old weights, by L-BFGS: of a model linear in θ, that such a
            request is compared with; None of others.
        steps: of conjugate gradients that it is reckoned with, where it is solved by them.
        way: how rows are taken, where it is not the usual way.
        part: of the parameters that were asked about, in the word that `parameters=` takes; empty: all of them.
        size: numbers in θ.
        processes: that fit together: memory and seconds are of each, `stored_bytes` of all.
        wire_bytes: that each of them sends.
        reason: why this one. others: the ways that were compared with it, the most faithful first.
    """

    kind: RowKind
    structure: Choice
    blocks: tuple[Block, ...]
    dtype: torch.dtype
    group: int
    fit_bytes: int
    stored_bytes: int
    operations: float
    seconds: float
    asked: int = 0
    request_seconds: float | None = None
    refit_seconds: float | None = None
    steps: int | None = None
    way: str = ""
    part: str = ""
    size: int = 0
    processes: int = 1
    wire_bytes: int = 0
    reason: str = ""
    others: tuple[Plan, ...] = ()

    def __str__(self) -> str:
        part = f"{self._part()}: " if self.part else ""
        return f"{part}{self.in_words}, {human_seconds(self.seconds)}{self._request()}"

    @property
    def in_words(self) -> str:
        """The same whenever and wherever the same is planned: without how long it may take here."""
        return (
            f"{self._rows()}, {self._structure()}, {str(self.dtype).removeprefix('torch.')}: "
            f"{human_bytes(self.fit_bytes)} to fit{self._each()}, {human_bytes(self.stored_bytes)} on disk"
        )

    def table(self) -> str:
        """Every way that was compared, the most faithful first, the chosen one marked."""
        samples = f"{self.asked:,} sample{'s' if self.asked > 1 else ''}" if self.asked else "some samples"
        lines = [("", "θ", "rows", "structure", "memory", "on disk", "fit", f"request of {samples}", "sent")]
        for plan in self.others:
            asked = "not known" if plan.request_seconds is None else human_seconds(plan.request_seconds)
            steps = f" ({plan.steps} steps)" if plan.steps is not None and plan.request_seconds is not None else ""
            memory, disk = human_bytes(plan.fit_bytes), human_bytes(plan.stored_bytes)
            lines.append(
                ("→" if picked(self, plan) else "", plan._part(), plan._rows(), plan._structure(), memory, disk,
                 human_seconds(plan.seconds), asked + steps + plan._refit(), human_bytes(plan.wire_bytes))
            )  # fmt: skip
        if self.processes == 1:
            lines = [line[:-1] for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def _each(self) -> str:
        several = f" on each of {self.processes} processes, {human_bytes(self.wire_bytes)} sent by each"
        return several if self.processes > 1 else ""

    def _part(self) -> str:
        size = human_count(self.size)
        return f'parameters="{self.part}" ({size})' if self.part else size

    def _rows(self) -> str:
        per = f" in mini-batches of {self.kind.per_batch}" if self.kind.per_batch > 1 else ""
        return f"{self.kind.name} rows{per}" + (f" ({self.way})" if self.way else "")

    def _structure(self) -> str:
        cut = f", {len(self.blocks)} block{'s' if len(self.blocks) > 1 else ''}" if self.blocks else ""
        return f"{self.structure}{cut}"

    def _request(self) -> str:
        if not self.asked or self.request_seconds is None:
            return ""
        samples = f"{self.asked:,} sample{'s' if self.asked > 1 else ''}"
        steps = f" in {self.steps} steps" if self.steps is not None else ""
        return f", then {human_seconds(self.request_seconds)}{steps} for a request of {samples}{self._refit()}"

    def _refit(self) -> str:
        """Where it is cheaper; it needs the samples that stay."""
        return f" (a refit: {human_seconds(self.refit_seconds or 0.0)})" if self.refit_cheaper else ""

    @property
    def refit_cheaper(self) -> bool:
        """Whether a request takes longer than to refit the model with the samples that stay."""
        known = self.refit_seconds is not None and self.request_seconds is not None
        return known and self.request_seconds > self.refit_seconds  # type: ignore[operator]


def picked(plan: Plan, other: Plan) -> bool:
    """Whether both are the same way."""
    return (plan.kind, plan.structure, plan.blocks, plan.part) == (
        other.kind, other.structure, other.blocks, other.part,
    )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What has to be fitted, and on what.

    Attributes:
        layout, linear: of θ; the problem's, unless a part of its parameters is weighed.
        n: samples, where known. budget: bytes of memory that a plan may take. trial: what one sample costs.
        free: bytes at this moment, which a plan is held against once it is made; None: not asked.
        damping: λ, where it is known: it decides how many steps conjugate gradients take.
        processes: that fit together; `budget` and `free` are of each.
        asked: samples of a request; None: as many as are usual.
    """

    problem: Problem
    layout: Layout
    linear: LinearShape | None
    n: int | None
    budget: int
    trial: Trial
    free: int | None = None
    damping: float | None = None
    processes: int = 1
    asked: int | None = None


def estimate(task: Task, way: Wanted) -> Plan:
    """Of a way whose rows and structure are chosen."""
    problem, n = task.problem, task.n
    assert way.structure is not None
    assert way.rows != "auto"
    kind, dtype = RowKind(way.rows, way.rows_per_batch, way.seed), way.dtype or problem.dtype
    size = torch.empty((), dtype=dtype).element_size()
    dim, samples = task.layout.dim, n or 0
    per_sample = kind.rows_per_sample(problem.loss, problem.outputs)
    linear = task.linear if kind.per_batch == 1 else None
    formed = not isinstance(way.structure, MatrixFree)
    each = _numbers_at_work(task, kind, linear, formed) * size
    group = _group_size(task, each, kind.per_batch, linear is not None or not formed)
    blocks = make_blocks(task.layout, way.blocks, task.linear) if way.structure.takes_blocks else ()
    if isinstance(way.structure, LowRank) and way.blocks == "one":
        blocks = ()  # one kernel of whole rows: nothing is cut
    rows = samples * per_sample // kind.per_batch
    width = dim if linear is None else linear.inputs + linear.bias
    numbers = width + kind.core_numbers(problem.loss, problem.outputs) if linear else per_sample * width
    kept = samples * numbers if kind.per_batch == 1 else rows * dim
    asked = task.asked or max(1, min(ASKED, samples // 100))
    extent = Extent(
        samples, rows, math.ceil(samples / group), dim, kept, linear, blocks, size, task.budget, asked, dtype
    )
    cost = way.structure.cost(extent)
    if task.processes > 1:
        cost = cost_together(way.structure, extent, cost, task.processes)
    wire = wire_of_fit(way.structure, extent, weighted=kind.name == "margin" and linear is None)
    here = math.ceil(samples / task.processes)
    trial, speeds = task.trial, speeds_of(problem.device, way.structure.working(dtype))
    backward = per_sample if formed else 1  # rows that are not formed take one backward pass, whatever their number
    pace, calls = _pace_of_rows(trial, kind, linear, per_sample if formed else 0), math.ceil(here / group)
    read = pace.seconds(here, calls)
    steps = _steps(task, extent, way.structure) if isinstance(way.structure, MatrixFree) else None
    request = trial.start_seconds + speeds.seconds(cost.request) + (pace + trial.forward * 3).seconds(asked, 1)
    if isinstance(way.structure, MatrixFree):
        step = None if trial.product is None else trial.product.seconds(here + asked, calls + 1)
        if linear is not None:
            step = speeds.seconds(way.structure.solving(extent)) / task.processes
        # The training data is read once more, since a stored curvature does not know it.
        request = None if steps is None or step is None else request + (steps + 1) * step + read
    return Plan(
        kind=kind,
        structure=way.structure,
        blocks=blocks,
        dtype=dtype,
        group=group,
        fit_bytes=int(cost.held + cost.spare + _bytes_of_a_group(problem, kind, formed, min(group, n or group), each)),
        stored_bytes=int(cost.stored),
        operations=cost.work.operations + samples * (1 if linear is not None else 1 + 2 * backward) * trial.operations,
        seconds=speeds.seconds(cost.work) + read,
        asked=asked if samples else 0,
        request_seconds=request if samples else None,
        refit_seconds=None
        if linear is None or not samples
        else REFIT_PASSES * (trial.forward * 3).seconds(samples, calls),
        steps=steps,
        way="" if linear is not None or isinstance(way.structure, MatrixFree) else problem.derivatives.in_words,
        size=dim,
        processes=task.processes,
        wire_bytes=int(wire.sent(task.processes)),
    )


def _pace_of_rows(trial: Trial, kind: RowKind, linear: LinearShape | None, rows: int) -> Pace:
    """Until its rows are formed, where they are; of a sample's outputs and gradient where they are not (rows = 0)."""
    if linear is not None:
        return trial.forward
    alone = trial.forward + trial.gradient  # `measure`
    if not rows:
        return alone
    formed = trial.row + trial.row.less(trial.forward) * (rows - 1)  # after one forward pass
    return formed if kind.name in ("empirical", "margin") else alone + formed


def _numbers_at_work(task: Task, kind: RowKind, linear: LinearShape | None, formed: bool) -> int:
    """That one sample takes while its group is computed: inputs, layers, outputs, cores, gradients, copies of them."""
    problem, trial = task.problem, task.trial
    outputs, rows = problem.outputs, kind.rows_per_sample(problem.loss, problem.outputs)
    if linear is not None:
        cores = kind.core_numbers(problem.loss, outputs)
        return trial.inputs + 2 * trial.widest + 3 * (linear.inputs + linear.bias) + 14 * outputs + 3 * cores
    cores = 3 * (rows * outputs if formed and kind.name == "expected" else outputs)
    layers = trial.inputs + 3 * trial.activations + cores
    return layers + (rows * (3 * task.layout.dim + trial.widest) if formed else 0)


def _bytes_of_a_group(problem: Problem, kind: RowKind, formed: bool, samples: int, bytes_each: int) -> int:
    """Of samples at a time: few are never a whole group."""
    rows, parts = kind.rows_per_sample(problem.loss, problem.outputs), 0
    if formed and kind.name == "margin" and rows > 1:  # margins with a part of the outputs each, made whole in turn
        parts = min(AT_A_TIME, samples * rows * problem.outputs) * torch.finfo(problem.dtype).bits // 8
    return samples * bytes_each + parts


def _group_size(task: Task, bytes_each: int, per_batch: int, many: bool) -> int:
    """As many samples as a tenth of the budget holds (a gibibyte at most, four on a GPU), in whole mini-batches."""
    most = MOST_BYTES[task.problem.device.type]
    fitting = max(1, int(min(most, SHARE * task.budget) / max(bytes_each, 1)))
    return max(per_batch, min(MOST_SAMPLES if many else MOST_SAMPLES // 4, fitting) // per_batch * per_batch)


def _steps(task: Task, extent: Extent, chosen: MatrixFree) -> int | None:
    """Of conjugate gradients, from what the trial showed of the spectrum of RᵀR/n.

    ½√(κ+1) log(2/tolerance), the bound of Chebyshev polynomials, with κ the largest eigenvalue over the damping. What
    few samples show as the largest is of few samples: with m rows in k dimensions of the same trace it is nearer to
    tr/k (1 + √(k/m))², as Marchenko and Pastur have it. Between k = d and k = tr²/tr(C²), the dimensions that the
    samples share, the truth is nearer to the first: two thirds of the way, by benchmarks/plan_accuracy.py.
    """
    tolerance = chosen.tolerance or usual_tolerance(extent.dtype)
    if extent.linear is not None:
        return min(chosen.max_iterations, math.ceil(STEPS_IN_BLOCKS * math.log(2 / tolerance) / math.log(2e4)))
    spectrum, few, rows = task.trial.spectrum, len(task.trial.spectrum), max(extent.rows, 1)
    if task.damping is None or not spectrum:
        return None
    trace = sum(spectrum)
    # tr(C²) without the squares of single rows, which say nothing of what they share
    shared = (few * sum(v * v for v in spectrum) - trace**2) / (few - 1) if few > 1 else 0.0
    narrow = min(extent.dim, max(1.0, trace**2 / shared)) if shared > 0 else extent.dim

    def steps(dimensions: float) -> float:
        largest = trace / dimensions * (1 + math.sqrt(dimensions / rows)) ** 2
        return math.sqrt(largest / task.damping + 1) / 2 * math.log(2 / tolerance) if task.damping else math.inf

    found = steps(extent.dim) ** (2 / 3) * steps(narrow) ** (1 / 3)
    return max(1, min(chosen.max_iterations, rows + 1, math.ceil(found)))


def human_count(count: int) -> str:
    return f"{count:,}" if count < 10**6 else f"{count / 1e6:.1f} M"


def human_seconds(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"
