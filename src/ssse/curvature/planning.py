"""Before the long pass: what will it cost, what fits, and what `auto` picks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ssse.curvature.choices import Choice, Dense, LowRank, MatrixFree
from ssse.curvature.estimates import Plan, Task, Wanted, estimate
from ssse.errors import DoesNotFit, InvalidModel, InvalidSetting
from ssse.problem.parameters import BlockChoice, Layout, make_blocks
from ssse.problem.token_losses import TokenLoss
from ssse.problem.weighted_loss import unweighted
from ssse.rows.kinds import RowName
from ssse.system.memory import human_bytes

WORKING_DTYPES = (torch.float32, torch.float64)  # those with a Cholesky factor
BLOCK_SIZES = (16384, 8192, 4096, 2048, 1024, 512)
MANY_OUTPUTS = 100  # from which on a network is never given expected rows: as many backward passes a sample
# What `auto` spends, in floating-point operations: they are counted, so that the same problem gets the same plan
# whatever else the machine does. Seconds are measured too, and only told.
SOON, SOON_ON_A_GPU = 1e13, 1e15  # on several rows a sample of a network, where one will do: a minute or two
LATEST, LATEST_ON_A_GPU = 1e15, 1e17  # on anything: hours


def make_plan(task: Task, wanted: Wanted, parts: Callable[[], list[Plan]] = list) -> Plan:
    """The first way, best first, that agrees with the user's choices and fits the budget.

    It depends on the problem, the budget and the kind of device, and on nothing that changes from one moment to the
    next: where too little memory is free for it, that is said, and no other way is taken.

    Args:
        parts: plans of parts of θ that fit, to be offered where all of it does not.

    Raises:
        DoesNotFit: names what was asked, what it would take, and what would fit.
    """
    _check_wanted(wanted, task.n, task.problem.dtype)
    plans = [estimate(task, way) for way in _candidates(task, wanted)]
    plan = _first(task, wanted, plans)
    if plan is not None:
        _check_free(task, wanted, plan)
        return replace(plan, others=(*plans, *(_by_steps(task, wanted) if wanted.structure is None else ())))
    given = "\n  ".join(str(plan) for plan in plans) or "nothing that fits the choices"
    offered = [*_that_fit(task, wanted, plans), *map(str, parts())]
    fits = "\n  ".join(offered) or "nothing"
    raise DoesNotFit(
        f"The curvature of {task.layout.dim:,} parameters does not fit the memory budget of "
        f"{human_bytes(task.budget)}.\nAsked for:\n  {given}\nThis would fit:\n  {fits}\n"
        "Or pass a larger memory_budget."
    )


def best_plan(task: Task, wanted: Wanted) -> Plan | None:
    """The first that fits, of a part of the model that is only offered; None where none does."""
    return _first(task, wanted, [estimate(task, way) for way in _candidates(task, wanted)])


def _by_steps(task: Task, wanted: Wanted) -> list[Plan]:
    """Conjugate gradients, which auto leaves to be asked for: every request then reads the training data."""
    ways = _candidates(task, replace(wanted, structure=MatrixFree(), blocks="auto"))
    return [estimate(task, way) for way in itertools.islice(ways, 1)]


def _that_fit(task: Task, wanted: Wanted, plans: list[Plan]) -> list[str]:
    """Of all that there is, whatever was asked for."""
    free = Wanted(dtype=wanted.dtype)
    others = plans if wanted == free else [estimate(task, way) for way in _candidates(task, free)]
    return [str(plan) for plan in (*others, *_by_steps(task, free)) if plan.fit_bytes <= task.budget]


def _first(task: Task, wanted: Wanted, plans: list[Plan]) -> Plan | None:
    for place, plan in enumerate(plans):
        if plan.fit_bytes <= task.budget and plan.operations <= _most_operations(task, wanted, plan):
            return replace(plan, reason=_reason(task, wanted, plan, plans[:place]))
    return None


def _most_operations(task: Task, wanted: Wanted, plan: Plan) -> float:
    """That may be spent on this plan: no end of them where the user left nothing open."""
    problem, gpu = task.problem, task.problem.device.type != "cpu"
    if wanted.structure is not None and "auto" not in (wanted.rows, wanted.blocks):
        return float("inf")
    several = plan.kind.rows_per_sample(problem.loss, problem.outputs) > 1
    if wanted.rows == "auto" and several and task.linear is None and problem.loss.one_margin:
        return SOON_ON_A_GPU if gpu else SOON
    return LATEST_ON_A_GPU if gpu else LATEST


def _check_free(task: Task, wanted: Wanted, plan: Plan) -> None:
    if task.free is None or plan.fit_bytes <= task.free:
        return
    most = task.free // 2**20
    smaller = replace(task, budget=most * 2**20)
    less = _first(smaller, wanted, [estimate(smaller, way) for way in _candidates(smaller, wanted)])
    instead = f'pass memory_budget="{most}MiB" for a smaller plan:\n  {less}' if less else "take fewer parameters."
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
        name = _row_name(wanted, rows)
        for held in _precisions(task, wanted, name, structure):
            cut = blocks if wanted.blocks == "auto" else wanted.blocks
            way = replace(wanted, rows=name, structure=held, blocks=cut)
            if way not in given:
                given.append(way)
                yield way


def _precisions(task: Task, wanted: Wanted, rows: RowName, structure: Choice) -> tuple[Choice, ...]:
    """The margin rows of a network get a kernel in float64, if it fits: float32 loses their stiffest directions."""
    if not isinstance(structure, LowRank) or structure.kernel != "auto" or structure.rank is not None:
        return (structure,)
    if rows != "margin" or task.linear is not None or (wanted.dtype or task.problem.dtype) == torch.float64:
        return (structure,)
    return replace(structure, kernel="float64"), replace(structure, kernel="rows")


def _ways(task: Task) -> Iterator[tuple[RowName, Choice, BlockChoice]]:
    """Rows, structure and blocks, the most faithful first; never rows whose scale would have to be measured."""
    problem, linear = task.problem, task.linear
    one_margin, tokens = problem.loss.one_margin, isinstance(unweighted(problem.loss), TokenLoss)
    if linear is None:
        if tokens and (task.n or 0) * problem.loss.drawn(problem.outputs) > task.layout.dim:
            yield "sampled", Dense(), "one"  # as exact as the rows themselves, and smaller
        if not tokens and (not one_margin or problem.outputs < MANY_OUTPUTS):
            yield "expected", Dense(), "one"
            yield "expected", LowRank(), "one"
        # Of many tokens with a drawn label each, all of the curvature is there on average; margin rows leave some out.
        least: RowName = "sampled" if tokens else "margin" if one_margin else "expected"
        yield least, LowRank(), "one"
        yield least, Dense(), "one"
        for size in BLOCK_SIZES:
            if size < task.layout.dim:
                yield least, Dense(), size
        return
    # The outputs of logistic and least-squares models do not interact: a block for each is exact.
    if problem.loss.coupled and problem.outputs > 1:
        yield "expected", Dense(), "one"
    yield "expected", Dense(), "output"
    for size in BLOCK_SIZES:
        if size < linear.inputs:
            yield "expected", Dense(), size
    yield "expected", LowRank(), "one"
    if one_margin:  # one row a sample: a kernel of n rows, whatever the number of classes
        yield "margin", LowRank(), "one"


def _row_name(wanted: Wanted, proposed: RowName) -> RowName:
    if wanted.rows != "auto":
        return wanted.rows
    return "empirical" if wanted.rows_per_batch > 1 else proposed


def _reason(task: Task, wanted: Wanted, plan: Plan, passed: list[Plan]) -> str:
    better = [other for other in passed if (other.kind, len(other.blocks) > 1) != (plan.kind, len(plan.blocks) > 1)]
    if not passed:
        return "the most faithful of the possible ones"
    # The one that was nearest to being chosen: it fits and is too slow, or it lacks the least memory.
    other = min(better or passed, key=lambda one: max(one.fit_bytes, task.budget))
    cut = f" in {len(other.blocks)} block{'s' if len(other.blocks) > 1 else ''}" if other.blocks else ""
    finer = other.structure.working(other.dtype) != plan.structure.working(plan.dtype)
    faithful = "more exact" if finer and not better else f"{'more' if better else 'as'} faithful"
    what = f"{other.structure} with {other.kind.name} rows{cut} would be {faithful} but"
    if other.fit_bytes > task.budget:
        return f"{what} needs {human_bytes(other.fit_bytes)}; the memory budget is {human_bytes(task.budget)}"
    most, ask = _most_operations(task, wanted, other), f"rows='{other.kind.name}', structure='{other.structure.kind}'"
    return f"{what} takes {other.operations:.1e} operations, and auto spends {most:.0e} of them; {ask} asks for it"
