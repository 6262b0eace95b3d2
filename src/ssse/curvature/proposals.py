"""Parts of a model that would fit where all of it does not: between its head and conjugate gradients on everything."""

from __future__ import annotations

from dataclasses import replace

from ssse.curvature.estimates import Plan, Task, Wanted
from ssse.curvature.planning import BLOCK_SIZES, best_plan
from ssse.curvature.trial import trial_of_part
from ssse.problem.batches import Batch
from ssse.problem.parts import Part, parts

MOST = 3  # parts that are offered
NEARLY_ALL = 0.9  # of θ: a part of more is no other choice
USUAL = ("adapters", "last block", "head")


def propose_parts(task: Task, wanted: Wanted, batch: Batch) -> list[Plan]:
    """The best plan of each of a few parts of θ, the largest first: the largest that fits, its last block, its head.

    What fits is reckoned from the largest on; of those that are offered, the rows of two samples are timed.
    """
    if task.linear is not None:
        return []
    inside, most = set(task.layout.names), NEARLY_ALL * task.layout.dim
    if wanted.structure is None:  # nothing that is picked holds less of a parameter than the smallest block or kernel
        least = min(BLOCK_SIZES[-1], task.n or BLOCK_SIZES[-1]) * (wanted.dtype or task.problem.dtype).itemsize
        most = min(most, task.budget / least)
    smaller = [
        part for part in parts(task.problem.working.inner) if inside > set(part.parameters) and part.size <= most
    ]
    fits = next((i for i, part in enumerate(smaller) if best_plan(_task_of(task, part), wanted) is not None), None)
    if fits is None:
        return []
    offered = [smaller[fits], *(part for part in smaller[fits + 1 :] if part.name in USUAL)][:MOST]
    plans = []
    for part in offered:
        problem = task.problem.confined(part.parameters, batch[0])
        trial = trial_of_part(problem, task.trial, batch, task.budget)
        timed = replace(_task_of(task, part), problem=problem, linear=problem.linear, trial=trial)
        plan = best_plan(timed, wanted)
        if plan is not None:
            plans.append(replace(plan, part=part.name))
    return plans


def _task_of(task: Task, part: Part) -> Task:
    """As if it cost a sample as much as all of θ does."""
    return replace(task, layout=task.layout.restricted(part.parameters), linear=None)
