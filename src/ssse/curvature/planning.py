"""Before the long pass: what will it cost, what fits, and what `auto` picks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ssse.errors import DoesNotFit, InvalidModel, InvalidSetting
from ssse.problem.losses import CrossEntropy, CustomLoss
from ssse.problem.parameters import (
    Block,
    BlockSpec,
    Layout,
    LinearShape,
    make_blocks,
)
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind
from ssse.system.memory import human_bytes

STRUCTURES = ("dense", "lowrank", "matrix_free", "diagonal", "recurrence")
BLOCKED = ("dense", "lowrank", "recurrence")
WORKING_DTYPES = (torch.float32, torch.float64)  # those with a Cholesky factor
LINEAR_GROUP = 4096  # samples at a time where rows have a closed form
BLOCK_SIZES = (16384, 8192, 4096, 2048, 1024, 512)
PATIENCE_SECONDS = 2 * 3600.0  # `auto` passes over what would take longer


@dataclass(frozen=True)
class Wanted:
    """The user's choices; "auto" and None are open."""

    rows: str = "auto"
    rows_per_batch: int = 1
    seed: int = 0
    structure: str = "auto"
    blocks: BlockSpec = "auto"
    rank: int | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Plan:
    """One way to fit, with its estimated cost.

    Attributes:
        group: samples taken at a time. fit_bytes: peak memory of the fit besides model and data.
        artefact_bytes: size on disk. operations: floating-point operations of the fit, rows excepted.
        seconds: those at the speed of a matrix product here, and the rows at the speed of a trial.
    """

    kind: RowKind
    structure: str
    blocks: tuple[Block, ...]
    block_spec: BlockSpec
    rank: int | None
    dtype: torch.dtype
    group: int
    fit_bytes: int
    artefact_bytes: int
    operations: float
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        shape = f"{len(self.blocks)} block{'s' if len(self.blocks) > 1 else ''}" if self.blocks else ""
        rank = f"rank {self.rank}" if self.rank else ""
        per = f" in mini-batches of {self.kind.per_batch}" if self.kind.per_batch > 1 else ""
        what = ", ".join(part for part in (self.structure, shape, rank) if part)
        return (
            f"{self.kind.name} rows{per}, {what}, {str(self.dtype).removeprefix('torch.')}: "
            f"{human_bytes(self.fit_bytes)} to fit, {human_bytes(self.artefact_bytes)} on disk, "
            f"{human_seconds(self.seconds)}"
        )


@dataclass(frozen=True)
class Task:
    """What has to be fitted, and on what.

    Attributes:
        n: samples, where known. budget: bytes of memory.
        row_seconds: to compute one row of a model that is not linear in θ, measured.
    """

    problem: Problem
    n: int | None
    budget: int
    row_seconds: float = 0.0

    def speed(self, dtype: torch.dtype) -> float:
        return _operations_per_second(self.problem.device, dtype)


def make_plan(task: Task, wanted: Wanted) -> Plan:
    """The first way, best first, that agrees with the user's choices and fits the budget.

    Raises:
        DoesNotFit: names what was asked, what it would take, and what would fit.
    """
    problem, budget = task.problem, task.budget
    _check_wanted(wanted, task.n, problem.dtype)
    passed: list[Plan] = []
    open_choice = "auto" in (wanted.rows, wanted.structure, wanted.blocks)
    for candidate in _candidates(task, wanted):
        plan = _estimate(task, candidate)
        slow = open_choice and plan.seconds > PATIENCE_SECONDS
        if plan.fit_bytes <= budget and not slow:
            return replace(plan, reason=_reason(passed, budget))
        passed.append(plan)
    alternatives = [
        plan
        for candidate in itertools.chain(
            _candidates(task, Wanted(dtype=wanted.dtype)),
            itertools.islice(_candidates(task, Wanted(structure="matrix_free", dtype=wanted.dtype)), 1),
        )
        if (plan := _estimate(task, candidate)).fit_bytes <= budget
    ]
    asked = "\n  ".join(str(plan) for plan in passed) or "nothing that fits the choices"
    fits = "\n  ".join(str(plan) for plan in alternatives) or 'nothing for all of θ; try parameters="head"'
    raise DoesNotFit(
        f"The curvature of {problem.layout.dim:,} parameters does not fit the memory budget of "
        f"{human_bytes(budget)}.\nAsked for:\n  {asked}\nThis would fit:\n  {fits}\n"
        "Or pass a larger memory_budget."
    )


def _check_wanted(wanted: Wanted, n: int | None, dtype: torch.dtype) -> None:
    if wanted.dtype not in (None, *WORKING_DTYPES):
        raise InvalidSetting(f"dtype must be torch.float32 or torch.float64, not {wanted.dtype}.")
    if dtype not in WORKING_DTYPES:
        raise InvalidModel(
            f"The model is in {dtype}; a curvature needs torch.float32 or torch.float64. Use model.float()."
        )
    make_blocks(Layout((), ()), "one" if wanted.blocks in ("auto", "output") else wanted.blocks, None)
    if wanted.rank is not None and wanted.rank < 1:
        raise InvalidSetting(f"rank must be at least 1, not {wanted.rank}.")
    if wanted.structure not in ("auto", *STRUCTURES):
        raise InvalidSetting(f"structure must be 'auto' or one of {', '.join(STRUCTURES)}, not {wanted.structure!r}.")
    if wanted.rank is not None and wanted.structure != "lowrank":
        raise InvalidSetting('rank truncates structure="lowrank"; name that structure with it.')
    if wanted.blocks != "auto" and wanted.structure not in ("auto", *BLOCKED):
        raise InvalidSetting(
            f"blocks belong to structure='dense' and structure='lowrank'; structure={wanted.structure!r} has none."
        )
    if wanted.blocks not in ("auto", "one") and wanted.rank is not None:
        raise InvalidSetting(
            f"rank={wanted.rank} keeps leading directions of all of θ and has no blocks; leave out rank= or blocks=."
        )
    if wanted.structure in ("recurrence", "lowrank") and n is None:
        raise InvalidSetting(
            f"structure='{wanted.structure}' needs the number of samples before it starts; pass a DataLoader or a "
            "list of batches."
        )
    if wanted.rows_per_batch > 1 and wanted.rows not in ("auto", "empirical"):
        raise InvalidSetting("rows_per_batch joins gradients of true labels: use it with rows='empirical'.")
    if wanted.rows_per_batch > 1 and wanted.structure == "matrix_free":
        raise InvalidSetting("matrix_free works on single samples: use it with rows_per_batch=1.")


def _candidates(task: Task, wanted: Wanted) -> Iterator[Wanted]:
    """Ways to fit, the most faithful first, that agree with what the user fixed."""
    problem, outputs, n = task.problem, task.problem.outputs, task.n
    if problem.linear is not None:
        # The outputs of logistic and least-squares models do not interact: a block for each is exact.
        coupled = isinstance(problem.loss, (CrossEntropy, CustomLoss)) and outputs > 1
        ways = [("expected", "dense", spec) for spec in (("one", "output") if coupled else ("output",))]
        ways += [("expected", "dense", size) for size in BLOCK_SIZES if size < problem.linear.inputs]
        ways += [("expected", "lowrank", "one")]
    else:
        ways = [("expected", "dense", "one"), ("expected", "lowrank", "one"), ("empirical", "lowrank", "one")]
        ways += [("empirical", "dense", "one")]
        ways += [("empirical", "dense", size) for size in BLOCK_SIZES if size < problem.layout.dim]
    for rows, structure, blocks in ways:
        if structure == "lowrank" and n is None:
            continue
        if wanted.structure not in ("auto", structure):
            if wanted.structure == "lowrank" or structure == "lowrank":
                continue
            structure = wanted.structure  # the other structures share dense's choices of rows and blocks
        yield Wanted(
            rows=_rows_name(wanted, rows),
            rows_per_batch=wanted.rows_per_batch,
            seed=wanted.seed,
            structure=structure,
            blocks=blocks if wanted.blocks == "auto" else wanted.blocks,
            rank=wanted.rank,
            dtype=wanted.dtype,
        )


def _rows_name(wanted: Wanted, proposed: str) -> str:
    if wanted.rows != "auto":
        return wanted.rows
    return "empirical" if wanted.rows_per_batch > 1 else proposed


def _estimate(task: Task, way: Wanted) -> Plan:
    problem, outputs, n, budget = task.problem, task.problem.outputs, task.n, task.budget
    kind = RowKind(way.rows, way.rows_per_batch, way.seed)
    dtype = way.dtype or problem.dtype
    size = torch.empty((), dtype=dtype).element_size()
    d, samples = problem.layout.dim, n or 0
    per_sample = kind.rows_per_sample(problem.loss, outputs)
    linear = problem.linear if kind.per_batch == 1 else None
    row_numbers = (linear.inputs + per_sample * outputs) if linear else per_sample * d
    group = LINEAR_GROUP if linear else _group_size(problem.device, per_sample * d * size, kind.per_batch, budget)
    # Gradients as they come, flattened, and the model's own memory; a small data set is never a whole group.
    chunk = 3 * min(group, n or group) * row_numbers * size
    blocks = make_blocks(problem.layout, way.blocks, problem.linear) if way.structure in BLOCKED else ()
    if way.structure == "lowrank" and way.blocks == "one":
        blocks = ()  # one kernel of whole rows: nothing is cut
    rows = samples * per_sample // kind.per_batch
    if way.structure in ("dense", "recurrence"):
        squares = [block.size**2 for block in blocks]
        held, spare = sum(squares) * size, 2 * max(squares) * size
        # Closed form: one weighted product of the features per pair of outputs, r rows for the price of one.
        passes = samples if linear else rows
        operations = sum(passes * b.size**2 + b.size**3 / 3 for b in blocks)
        artefact = held
    elif way.structure == "lowrank":
        stored = samples * row_numbers * size if kind.per_batch == 1 else rows * d * size
        kernels = len(blocks) or 1
        held, spare = stored + kernels * rows**2 * size, 2 * rows**2 * size
        operations = rows**2 * _kernel_width(linear, blocks, d) + kernels * rows**3 / 3
        artefact = held
        if way.rank:
            spare, operations = spare + way.rank * d * size, operations + 9 * rows**3
            artefact = (way.rank * d + way.rank**2) * size
    elif way.structure == "matrix_free" and linear and fits_preconditioner(linear, size, budget):
        held = linear.outputs * (linear.inputs + linear.bias) ** 2 * size
        spare, operations, artefact = held // linear.outputs, samples * held / size, held
    else:
        held, spare, operations, artefact = d * size, d * size, samples * d, d * size
    return Plan(
        kind=kind,
        structure=way.structure,
        blocks=blocks,
        block_spec=way.blocks,
        rank=way.rank,
        dtype=dtype,
        group=group,
        fit_bytes=int(held + spare + chunk),
        artefact_bytes=int(artefact),
        operations=float(operations),
        seconds=float(operations) / task.speed(dtype) + samples * per_sample * task.row_seconds,
    )


def _kernel_width(linear: LinearShape | None, blocks: tuple[Block, ...], d: int) -> int:
    """Numbers that one entry of every block's RRᵀ is summed of; in closed form a product of features, one of cores."""
    if linear is None:
        return d
    shapes = [slab.shape for block in blocks for slab in linear.slabs(block)] or [linear]
    return sum(shape.inputs + shape.outputs for shape in shapes)


def fits_preconditioner(linear: LinearShape, size: int, budget: int) -> bool:
    """Whether conjugate gradients on a linear model get a dense block per output."""
    return linear.outputs * linear.inputs**2 * size < 0.4 * budget


def _group_size(device: torch.device, bytes_per_sample: int, per_batch: int, budget: int) -> int:
    """As many samples as a tenth of the budget holds (a gibibyte at most, four on a GPU), in whole mini-batches."""
    most = 2**30 if device.type == "cpu" else 2**32
    fitting = int(min(most, 0.1 * budget) / (3 * max(bytes_per_sample, 1)))
    return max(per_batch, min(1024, max(1, fitting)) // per_batch * per_batch)


def _reason(passed: list[Plan], budget: int) -> str:
    if not passed:
        return "the most faithful of the possible ones"
    best = passed[0]
    why = f"needs {human_bytes(best.fit_bytes)}" if best.fit_bytes > budget else f"takes {human_seconds(best.seconds)}"
    what = f"{best.structure} with {best.kind.name} rows"
    if best.blocks:
        what += f" in {len(best.blocks)} block{'s' if len(best.blocks) > 1 else ''}"
    return f"{what} would be more faithful but {why}; the memory budget is {human_bytes(budget)}"


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
