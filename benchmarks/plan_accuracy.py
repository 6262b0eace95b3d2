"""What a plan says against what is done: seconds of the fit and of a request, for every structure, and memory.

Seconds of a plan come from a trial on a few samples. Every way is planned, fitted and erased from in turn, several
times over, and a ratio is that of the medians. Memory is the growth of the process at its peak, in one of its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import networks
import ssse
from record import Report, grown_by, run_alone, seconds_of
from ssse.errors import DoesNotFit

DECAY, ROUNDS, WITHIN = 1e-2, 3, 2.0
TOO_LONG = 15.0  # seconds of a way, from which on it is left out
SOON = 0.1  # seconds below which nobody asks how long it takes: there the targets do not look
BUDGET = "500MiB"
WAYS: dict[str, dict[str, Any]] = {
    "expected, dense": {"rows": "expected", "structure": "dense", "blocks": "one"},
    "expected, lowrank": {"rows": "expected", "structure": "lowrank", "blocks": "one"},
    "margin, dense": {"rows": "margin", "structure": "dense", "blocks": "one"},
    "margin, lowrank": {"rows": "margin", "structure": "lowrank", "blocks": "one"},
    "margin, dense, blocks of 1,024": {"rows": "margin", "structure": "dense", "blocks": 1024},
    "margin, matrix_free": {"rows": "margin", "structure": "matrix_free"},
}
LARGE = {"ResNet-18, 11.2 M": networks.eleven_million, "MLP, 16.8 M": networks.sixteen_million}

Seen = dict[str, float]


def measure(case: networks.Case, how: dict[str, Any], rounds: int = ROUNDS) -> Seen | None:
    """Medians over the rounds; None where it does not apply, or takes too long."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        try:
            took, plan = seconds_of(lambda: ssse.plan(case.model, case.loss, case.data, weight_decay=DECAY, **how))
        except ssse.SSSEError:
            return None
        asked = (plan.request_seconds or 0.0) * case.asked / plan.asked
        if plan.seconds > TOO_LONG or asked > TOO_LONG:
            return None
        began: list[float] = []
        curvature = ssse.Curvature.fit(
            case.model, case.loss, case.data, weight_decay=DECAY, progress=False,
            on_plan=lambda _, began=began: began.append(time.perf_counter()), **how,
        )  # fmt: skip
        fitted = time.perf_counter() - began[0]
        data: dict[str, Any] = {"data": case.data} if curvature.structure.reads_data else {}
        start = time.perf_counter()
        erasure = ssse.erase(
            case.model, curvature, case.loss, case.forget, **data, override=ssse.BOUNDS, progress=False
        )
        request = time.perf_counter() - start
        values = {"plan": took, "fit planned": plan.seconds, "fit": fitted, "request": request}
        for name, value in values.items():
            seen[name].append(value)
        if plan.request_seconds is not None:
            seen["request planned"].append(plan.request_seconds)
        if plan.steps is not None:
            seen["steps planned"].append(plan.steps)
            seen["steps"].append(next(int(n.split()[0]) for n in erasure.diagnostics.notes if "conjugate" in n))
    return {name: statistics.median(values) for name, values in seen.items()}


def ratio(seen: Seen, what: str) -> float:
    """Planned over measured."""
    return seen[f"{what} planned"] / seen[what]


def off(seen: Seen, what: str) -> float:
    """By what factor, either way; 1 where both are next to nothing."""
    found = max(seen[f"{what} planned"], SOON) / max(seen[what], SOON)
    return max(found, 1 / found)


def plan_alone(name: str) -> dict[str, Any]:
    """Seconds, and MiB by which the process grows, of a plan of a large model in a process that has trained it."""
    command = [sys.executable, __file__, "--plan-of", name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def in_a_process(name: str) -> None:
    case = LARGE[name]()
    for _ in range(2):  # the first loads what torch.func needs, once a process
        small = networks.mlp()
        ssse.plan(small.model, small.loss, small.data, weight_decay=DECAY)

    def plan() -> str:
        try:
            ssse.plan(case.model, case.loss, case.data, weight_decay=DECAY, memory_budget=BUDGET)
        except DoesNotFit as error:
            return str(error).split("This would fit:")[1]
        return ""

    began, busy = time.perf_counter(), time.process_time()
    grown, offered = grown_by(plan)
    took, busy = time.perf_counter() - began, time.process_time() - busy
    print(json.dumps({"seconds": took, "busy": busy, "MiB": grown, "offered": offered}))


def main(_: Path) -> None:
    report = Report("plan_accuracy", "Plans against what is done, float32, requests of one sample in a hundred")
    warnings.simplefilter("ignore", ssse.DoubtfulSetting)
    rows, worst = [], {"fit": 1.0, "request": 1.0}
    for name, make in networks.SMALL.items():
        torch.manual_seed(0)
        case = make()
        for way, how in WAYS.items():
            seen = measure(case, how)
            if seen is None:
                continue
            ratios = {what: ratio(seen, what) for what in worst}
            worst = {what: max(worst[what], off(seen, what)) for what in worst}
            rows.append(
                (name, way, seen["fit planned"], seen["fit"], ratios["fit"], seen["request planned"], seen["request"],
                 ratios["request"], seen["plan"])
            )  # fmt: skip
            report.numbers[f"{name}: {way}"] = seen
    report.table(
        f"Seconds planned and measured, medians of {ROUNDS} rounds",
        ("model", "way", "fit planned", "fit", "ratio", "request planned", "request", "ratio", "the plan itself"),
        rows,
    )
    large = {name: plan_alone(name) for name in LARGE}
    report.table(
        f"A plan of a large model within {BUDGET}, in a process that has planned before",
        ("model", "seconds", "of them on the CPU", "MiB grown at the peak"),
        [(name, found["seconds"], found["busy"], found["MiB"]) for name, found in large.items()],
    )
    for what, found in worst.items():
        report.at_most(f"seconds of a {what}, planned against measured, the worst", found, WITHIN, "×")
    report.at_most("seconds of a plan of a large model", max(found["seconds"] for found in large.values()), 2, " s")
    report.at_most("memory of a plan of a large model", max(found["MiB"] for found in large.values()), 500, " MiB")
    report.notes.append(
        f"To the targets, seconds below {SOON:g} are {SOON:g}; ratios in the table are plain. Ways that would take "
        f"more than {TOO_LONG:.0f} s are left out. What would fit of the large ones, as the plan says it:"
    )
    for name, found in large.items():
        lines = found["offered"].strip().splitlines()[:-1]
        report.notes.append(f"{name}: {' · '.join(line.strip() for line in lines)}")
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plan-of"]:
        in_a_process(sys.argv[2])
    else:
        run_alone(main, __doc__)
