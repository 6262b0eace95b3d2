"""Before the long pass: what will it cost, what fits, and what `auto` picks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ssse.curvature.choices import Choice, Dense, Extent, LowRank, MatrixFree
from ssse.errors import DoesNotFit, InvalidModel, InvalidSetting
from ssse.problem.batches import Batch
from ssse.problem.losses import CrossEntropy, CustomLoss
from ssse.problem.parameters import Block, BlockChoice, Layout, make_blocks
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowChoice, RowKind, RowName
from ssse.system.memory import human_bytes

WORKING_DTYPES = (torch.float32, torch.float64)  # those with a Cholesky factor
LINEAR_GROUP = 4096  # samples at a time where rows have a closed form
BLOCK_SIZES = (16384, 8192, 4096, 2048, 1024, 512)
# What `auto` spends, in floating-point operations: they are counted, so that the same problem gets the same plan
# whatever else the machine does. Seconds are measured too, and only told.
SOON, SOON_ON_A_GPU = 1e13, 1e15  # on several rows a sample of a network, where one will do: a minute or two
LATEST, LATEST_ON_A_GPU = 1e15, 1e17  # on anything: hours


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
        seconds: at the speed of a matrix product here, and of a trial for the rows.
        reason: why this one. way: how rows are taken, where it is not the usual way.
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
    reason: str = ""
    way: str = ""

    def __str__(self) -> str:
        return f"{self.in_words}, {human_seconds(self.seconds)}"

    @property
    def in_words(self) -> str:
        """The same whenever and wherever the same is planned: without how long it may take here."""
        return (
            f"{self._rows()}, {self._structure()}, {str(self.dtype).removeprefix('torch.')}: "
            f"{human_bytes(self.fit_bytes)} to fit, {human_bytes(self.stored_bytes)} on disk"
        )

    def _rows(self) -> str:
        per = f" in mini-batches of {self.kind.per_batch}" if self.kind.per_batch > 1 else ""
        return f"{self.kind.name} rows{per}" + (f" ({self.way})" if self.way else "")

    def _structure(self) -> str:
        cut = f", {len(self.blocks)} block{'s' if len(self.blocks) > 1 else ''}" if self.blocks else ""
        return f"{self.structure}{cut}"


@dataclass(frozen=True)
class Task:
    """What has to be fitted, and on what.

    Attributes:
        n: samples, where known. budget: bytes of memory that a plan may take.
        free: bytes at this moment, which a plan is held against once it is made; None: not asked.
        forward_operations: of one sample, of a model that is not linear in θ.
        row_seconds: to compute one row of such a model, measured.
    """

    problem: Problem
    n: int | None
    budget: int
    free: int | None = None
    forward_operations: float = 0.0
    row_seconds: float = 0.0

    def speed(self, dtype: torch.dtype) -> float:
        return _operations_per_second(self.problem.device, dtype)


def make_plan(task: Task, wanted: Wanted) -> Plan:
    """The first way, best first, that agrees with the user's choices and fits the budget.

    It depends on the problem, the budget and the kind of device, and on nothing that changes from one moment to the
    next: where too little memory is free for it, that is said, and no other way is taken.

    Raises:
        DoesNotFit: names what was asked, what it would take, and what would fit.
    """
    problem, budget = task.problem, task.budget
    _check_wanted(wanted, task.n, problem.dtype)
    plan, passed = _first(task, wanted)
    if plan is not None:
        _check_free(task, wanted, plan)
        return plan
    others = itertools.chain(
        _candidates(task, Wanted(dtype=wanted.dtype)),
        itertools.islice(_candidates(task, Wanted(structure=MatrixFree(), dtype=wanted.dtype)), 1),
    )
    alternatives = [plan for plan in (_estimate(task, other) for other in others) if plan.fit_bytes <= budget]
    asked = "\n  ".join(str(plan) for plan in passed) or "nothing that fits the choices"
    fits = "\n  ".join(str(plan) for plan in alternatives) or 'nothing for all of θ; try parameters="head"'
    raise DoesNotFit(
        f"The curvature of {problem.layout.dim:,} parameters does not fit the memory budget of "
        f"{human_bytes(budget)}.\nAsked for:\n  {asked}\nThis would fit:\n  {fits}\n"
        "Or pass a larger memory_budget."
    )


def _first(task: Task, wanted: Wanted) -> tuple[Plan | None, list[Plan]]:
    """The plan, and those that were passed over for it."""
    passed: list[Plan] = []
    for candidate in _candidates(task, wanted):
        plan = _estimate(task, candidate)
        most = _most_operations(task, wanted, plan)
        if plan.fit_bytes <= task.budget and plan.operations <= most:
            return replace(plan, reason=_reason(task, wanted, plan, passed)), passed
        passed.append(plan)
    return None, passed


def _most_operations(task: Task, wanted: Wanted, plan: Plan) -> float:
    """That may be spent on this plan: no end of them where the user left nothing open."""
    problem, gpu = task.problem, task.problem.device.type != "cpu"
    if wanted.structure is not None and "auto" not in (wanted.rows, wanted.blocks):
        return float("inf")
    several = plan.kind.rows_per_sample(problem.loss, problem.outputs) > 1
    if wanted.rows == "auto" and several and problem.linear is None and isinstance(problem.loss, CrossEntropy):
        return SOON_ON_A_GPU if gpu else SOON
    return LATEST_ON_A_GPU if gpu else LATEST


def _check_free(task: Task, wanted: Wanted, plan: Plan) -> None:
    if task.free is None or plan.fit_bytes <= task.free:
        return
    most = task.free // 2**20
    less, _ = _first(replace(task, budget=most * 2**20), wanted)
    instead = f'pass memory_budget="{most}MiB" for a smaller plan:\n  {less}' if less else 'take parameters="head"'
    raise DoesNotFit(
        f"The plan is:\n  {plan}\nIt is within the memory budget of {human_bytes(task.budget)} (60 % of the memory "
        f"there is), but only {human_bytes(task.free)} are free at this moment. Free some, or {instead}"
    )


def _check_wanted(wanted: Wanted, n: int | None, dtype: torch.dtype) -> None:
    if wanted.dtype not in (None, *WORKING_DTYPES):
        raise InvalidSetting(f"dtype must be torch.float32 or torch.float64, not {wanted.dtype}.")
    if dtype not in WORKING_DTYPES:
        raise InvalidModel(
            f"The model is in {dtype}; a curvature needs torch.float32 or torch.float64. Use model.float()."
        )
    make_blocks(Layout((), ()), "one" if wanted.blocks in ("auto", "output") else wanted.blocks, None)
    structure = wanted.structure
    if structure is not None and wanted.blocks != "auto" and not structure.takes_blocks:
        raise InvalidSetting(
            f"blocks belong to structure='dense', 'lowrank' and 'recurrence'; structure='{structure.kind}' has none."
        )
    if isinstance(structure, LowRank) and structure.rank is not None and wanted.blocks not in ("auto", "one"):
        raise InvalidSetting(
            f"rank={structure.rank} keeps leading directions of all of θ and has no blocks; leave out rank= or blocks=."
        )
    if structure is not None and structure.needs_count and n is None:
        raise InvalidSetting(
            f"structure='{structure.kind}' needs the number of samples before it starts; pass a DataLoader or a "
            "list of batches."
        )
    if wanted.rows_per_batch > 1 and wanted.rows not in ("auto", "empirical"):
        raise InvalidSetting("rows_per_batch joins gradients of true labels: use it with rows='empirical'.")
    if wanted.rows_per_batch > 1 and isinstance(structure, MatrixFree):
        raise InvalidSetting("matrix_free works on single samples: use it with rows_per_batch=1.")


def _candidates(task: Task, wanted: Wanted) -> Iterator[Wanted]:
    """Ways to fit that agree with what the user fixed, each once."""
    given: list[Wanted] = []
    for rows, structure, blocks in _ways(task):
        if structure.needs_count and task.n is None:
            continue
        if wanted.structure is not None:
            if isinstance(wanted.structure, LowRank) != isinstance(structure, LowRank):
                continue
            structure = wanted.structure  # the other structures share dense's choices of rows and blocks
        way = replace(
            wanted,
            rows=_row_name(wanted, rows),
            structure=structure,
            blocks=blocks if wanted.blocks == "auto" else wanted.blocks,
        )
        if way not in given:
            given.append(way)
            yield way


def _ways(task: Task) -> Iterator[tuple[RowName, Choice, BlockChoice]]:
    """Rows, structure and blocks, the most faithful first; never rows whose scale would have to be measured."""
    problem = task.problem
    if problem.linear is None:
        yield "expected", Dense(), "one"
        yield "expected", LowRank(), "one"
        least: RowName = "margin" if isinstance(problem.loss, CrossEntropy) else "expected"
        yield least, LowRank(), "one"
        yield least, Dense(), "one"
        for size in BLOCK_SIZES:
            if size < problem.layout.dim:
                yield least, Dense(), size
        return
    # The outputs of logistic and least-squares models do not interact: a block for each is exact.
    if isinstance(problem.loss, (CrossEntropy, CustomLoss)) and problem.outputs > 1:
        yield "expected", Dense(), "one"
    yield "expected", Dense(), "output"
    for size in BLOCK_SIZES:
        if size < problem.linear.inputs:
            yield "expected", Dense(), size
    yield "expected", LowRank(), "one"


def _row_name(wanted: Wanted, proposed: RowName) -> RowName:
    if wanted.rows != "auto":
        return wanted.rows
    return "empirical" if wanted.rows_per_batch > 1 else proposed


def _estimate(task: Task, way: Wanted) -> Plan:
    problem, n, budget = task.problem, task.n, task.budget
    assert way.structure is not None
    assert way.rows != "auto"
    kind = RowKind(way.rows, way.rows_per_batch, way.seed)
    dtype = way.dtype or problem.dtype
    size = torch.empty((), dtype=dtype).element_size()
    dim, samples = problem.layout.dim, n or 0
    per_sample = kind.rows_per_sample(problem.loss, problem.outputs)
    linear = problem.linear if kind.per_batch == 1 else None
    row_numbers = (linear.inputs + per_sample * problem.outputs) if linear else per_sample * dim
    group = LINEAR_GROUP if linear else _group_size(problem.device, per_sample * dim * size, kind.per_batch, budget)
    # Gradients as they come, flattened, and the model's own memory; a small data set is never a whole group.
    chunk = 3 * min(group, n or group) * row_numbers * size
    blocks = make_blocks(problem.layout, way.blocks, problem.linear) if way.structure.takes_blocks else ()
    if isinstance(way.structure, LowRank) and way.blocks == "one":
        blocks = ()  # one kernel of whole rows: nothing is cut
    rows = samples * per_sample // kind.per_batch
    kept = samples * row_numbers if kind.per_batch == 1 else rows * dim
    cost = way.structure.cost(Extent(samples, rows, dim, kept, linear, blocks, size, budget))
    backward = 1 if isinstance(way.structure, MatrixFree) else per_sample  # its rows are never formed
    return Plan(
        kind=kind,
        structure=way.structure,
        blocks=blocks,
        dtype=dtype,
        group=group,
        fit_bytes=int(cost.held + cost.spare + chunk),
        stored_bytes=int(cost.stored),
        operations=float(cost.operations) + samples * (1 + 2 * backward) * task.forward_operations,
        seconds=float(cost.operations) / task.speed(dtype) + samples * backward * task.row_seconds,
        way="" if isinstance(way.structure, MatrixFree) else problem.derivatives.in_words,
    )


def _group_size(device: torch.device, bytes_per_sample: int, per_batch: int, budget: int) -> int:
    """As many samples as a tenth of the budget holds (a gibibyte at most, four on a GPU), in whole mini-batches."""
    most = 2**30 if device.type == "cpu" else 2**32
    fitting = int(min(most, 0.1 * budget) / (3 * max(bytes_per_sample, 1)))
    return max(per_batch, min(1024, max(1, fitting)) // per_batch * per_batch)


def _reason(task: Task, wanted: Wanted, plan: Plan, passed: list[Plan]) -> str:
    better = [other for other in passed if (other.kind, len(other.blocks) > 1) != (plan.kind, len(plan.blocks) > 1)]
    if not passed:
        return "the most faithful of the possible ones"
    # The one that was nearest to being chosen: it fits and is too slow, or it lacks the least memory.
    other = min(better or passed, key=lambda one: max(one.fit_bytes, task.budget))
    cut = f" in {len(other.blocks)} block{'s' if len(other.blocks) > 1 else ''}" if other.blocks else ""
    what = f"{other.structure} with {other.kind.name} rows{cut} would be {'more' if better else 'as'} faithful but"
    if other.fit_bytes > task.budget:
        return f"{what} needs {human_bytes(other.fit_bytes)}; the memory budget is {human_bytes(task.budget)}"
    most, ask = _most_operations(task, wanted, other), f"rows='{other.kind.name}', structure='{other.structure.kind}'"
    return f"{what} takes {other.operations:.1e} operations, and auto spends {most:.0e} of them; {ask} asks for it"


def forward_operations(problem: Problem, batch: Batch) -> float:
    """Floating-point operations of one sample's outputs, as torch counts those of products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        problem.forward(batch[0])
    return counter.get_total_flops() / len(batch[1])


_SPEEDS: dict[tuple[str, torch.dtype], float] = {}


def _operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a medium matrix product here, measured once."""
    key = (device.type, dtype)
    if key not in _SPEEDS:
        size = 512 if device.type == "cpu" else 4096
        a = torch.ones(size, size, dtype=dtype, device=device)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            (a @ a).sum().item()
            best = min(best, time.perf_counter() - start)
        _SPEEDS[key] = 2 * size**3 / best
    return _SPEEDS[key]


def human_seconds(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"
