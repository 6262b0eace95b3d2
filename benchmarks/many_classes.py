"""A thousand classes: a head of 2,048 features and a linear model of 65, fitted and erased from in bounded memory.

Each in a process of its own, whose growth at its peak is held against the memory that the plan says. Margin rows of a
small network with a thousand classes are held against its empirical rows, in turn.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ssse
from networks import batched, labels, noise
from record import Report, grown_by, run_alone, seconds_of
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

CLASSES, DECAY, BUDGET = 1000, 1e-2, "2GiB"
CASES: dict[str, dict[str, Any]] = {
    "head, 2,048 features": {"features": 2048, "n": 3000, "hidden": True},
    "linear, 65 features": {"features": 65, "n": 2000, "hidden": False},
}
ROUNDS = 9


def in_a_process(name: str) -> None:
    """Print the plan's memory, the growth of the process, and seconds."""
    warnings.simplefilter("ignore", ssse.DoubtfulSetting)
    settings = CASES[name]
    features, n = settings["features"], settings["n"]
    head = nn.Linear(features, CLASSES)
    model = (nn.Sequential(nn.Linear(64, features), nn.ReLU(), head) if settings["hidden"] else head).eval()
    data = batched(noise(n, 64 if settings["hidden"] else features), labels(n, CLASSES))
    parameters = "head" if settings["hidden"] else "all"
    how: dict[str, Any] = {"parameters": parameters, "memory_budget": BUDGET, "weight_decay": DECAY}
    plan = ssse.plan(model, "cross_entropy", data, **how)
    fitted, (fit, curvature) = grown_by(
        lambda: seconds_of(lambda: ssse.Curvature.fit(model, "cross_entropy", data, progress=False, **how))
    )
    forget = [(data[0][0][:10], data[0][1][:10])]
    asked, (request, erasure) = grown_by(
        lambda: seconds_of(
            lambda: ssse.erase(model, curvature, "cross_entropy", forget, override=ssse.BOUNDS, progress=False)
        )
    )
    print(
        json.dumps(
            {
                "plan": plan.in_words, "planned": plan.fit_bytes / 2**20, "fit MiB": fitted,
                "request MiB": asked, "fit": fit, "request": request, "size": plan.size,
                "step": erasure.diagnostics.step_norm,
            }
        )
    )  # fmt: skip


def alone(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def margin_against_empirical() -> tuple[float, float]:
    """Median seconds of both kinds of rows of a batch, which took turns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)).eval()
    batch = (noise(64, 64), labels(64, CLASSES))
    problem = Problem(model, "cross_entropy", "all", batch)
    kinds = {name: RowKind(name) for name in ("margin", "empirical")}
    seen: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS + 1):
        for name, kind in kinds.items():
            seen[name].append(seconds_of(lambda kind=kind: measure_held(problem, kind, batch))[0])
    return statistics.median(seen["margin"][1:]), statistics.median(seen["empirical"][1:])


def main(_: Path) -> None:
    report = Report("many_classes", f"{CLASSES:,} classes, float32, memory budget {BUDGET}")
    found = {name: alone(name) for name in CASES}
    report.table(
        "Fit and a request of 10 samples",
        ("model", "parameters", "MiB planned", "MiB of the fit", "MiB more of the request", "fit s", "request s"),
        [
            (name, one["size"], one["planned"], one["fit MiB"], one["request MiB"], one["fit"], one["request"])
            for name, one in found.items()
        ],
    )
    for name, one in found.items():
        report.at_most(f"{name}: memory of the fit against the plan", one["fit MiB"] / one["planned"], 1, "×")
        report.notes.append(f"{name}: {one['plan']}.")
    margin, empirical = margin_against_empirical()
    report.table(
        f"Rows of 64 samples of a network of 69,160 parameters, medians of {ROUNDS} rounds in turn",
        ("rows", "seconds"),
        [("margin", margin), ("empirical", empirical)],
    )
    report.at_most("margin rows against empirical rows", margin / empirical, 1.1, "×")
    report.numbers = {**found, "margin": margin, "empirical": empirical}
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        in_a_process(sys.argv[2])
    else:
        run_alone(main, __doc__)
