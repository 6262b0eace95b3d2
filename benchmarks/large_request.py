"""A request of 100 samples to networks of 11 million parameters, by conjugate gradients over the training data.

When the first progress is shown, and how long the request takes, against what the plan says of it before the fit.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import ssse
from networks import Case, ResNet18, case, labels, noise
from record import Report, run_alone, seconds_of
from ssse.erasure import stages

DECAY, ASKED = 1e-2, 100
HOW: dict[str, Any] = {"structure": "matrix_free", "rows": "margin", "weight_decay": DECAY}


def perceptron() -> Case:
    model = nn.Sequential(
        nn.Linear(768, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2560), nn.ReLU(),
        nn.Linear(2560, 10),
    )  # fmt: skip
    return case(model, noise(1000, 768), labels(1000, 10), steps=20)


def residual() -> Case:
    return case(ResNet18(), noise(300, 3, 16, 16), labels(300, 10), steps=3)


CASES: dict[str, Callable[[], Case]] = {"MLP": perceptron, "ResNet-18, images of 16 × 16": residual}


@dataclass
class Shown:
    """Every movement of the bar of a request, in seconds since it began; a terminal is not needed for that."""

    began: float = field(default_factory=time.perf_counter)
    moments: list[float] = field(default_factory=list)

    @contextmanager
    def bar(self, *_: Any) -> Iterator[Callable[..., None]]:
        self.moments.append(time.perf_counter() - self.began)
        yield lambda *_, **__: self.moments.append(time.perf_counter() - self.began)

    @property
    def longest_pause(self) -> float:
        return max(b - a for a, b in zip([0.0, *self.moments], self.moments, strict=False))


def main(_: Path) -> None:
    report = Report("large_request", f"A request of {ASKED} samples to 11 million parameters, matrix_free, float32")
    warnings.simplefilter("ignore", ssse.DoubtfulSetting)
    rows = []
    for name, make in CASES.items():
        torch.manual_seed(0)
        one = make()
        plan = ssse.plan(one.model, one.loss, one.data, **HOW)
        fit, curvature = seconds_of(
            lambda one=one: ssse.Curvature.fit(one.model, one.loss, one.data, progress=False, **HOW)
        )
        x, y = (torch.cat(parts)[:ASKED] for parts in zip(*one.data, strict=True))
        shown = Shown()
        with mock.patch.object(stages, "bar", shown.bar):
            took, erasure = seconds_of(
                lambda one=one, c=curvature, x=x, y=y: ssse.erase(
                    one.model, c, one.loss, [(x, y)], data=one.data, override=ssse.BOUNDS
                )
            )
        assert plan.request_seconds is not None
        planned = plan.request_seconds
        steps = next(int(note.split()[0]) for note in erasure.diagnostics.notes if "conjugate" in note)
        rows.append((name, plan.size, plan.seconds, fit, planned, took, plan.steps, steps, shown.moments[1]))
        report.at_most(f"{name}: seconds of the request, planned against measured", off(planned / took), 2, "×")
        report.at_most(f"{name}: first progress", shown.moments[1], 2, " s")
        report.notes.append(f"{name}: the longest time without progress was {shown.longest_pause:.2g} s.")
    report.table(
        "Seconds",
        ("network", "parameters", "fit planned", "fit", "request planned", "request", "steps planned", "steps",
         "first progress"),
        rows,
    )  # fmt: skip
    report.finish()


def off(ratio: float) -> float:
    return max(ratio, 1 / ratio)


if __name__ == "__main__":
    run_alone(main, __doc__)
