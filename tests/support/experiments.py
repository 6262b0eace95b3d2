"""An experiment that is none: a small result with everything in it that can go wrong on a page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from ssse.paper.result import Finding, Result, SummaryRow, Target
from ssse.paper.settings import Settings
from ssse.rendering.document import PageFigure, PageTable
from ssse.rendering.plotting import BLUE, RED, new_figure

NASTY = "<script>alert(1)</script> & \"a|b\" 'c' θ*₋S"


def drawn(name: str, paper: str = "") -> PageFigure:
    figure, axes = new_figure(7.4, 3.1, 2)
    x = np.linspace(0.01, 2, 50)
    for ax, color in zip(axes, (BLUE, RED), strict=True):
        ax.plot(x, np.exp(-((x - 1) ** 2)), color=color, label="SSSE", marker="o")
        ax.set_xlabel("scale ε")
        ax.set_ylabel("similarity ratio γ\n(1 = retrained)")
        ax.legend()
    axes[0].bar([0.5], [0.6], hatch="//", facecolor="#123456")
    axes[1].pcolormesh(x[:9].reshape(3, 3), rasterized=True)
    return PageFigure(name, f"The ratio & {name}", f"Caption: {NASTY}", paper, figure)


def summary_row(data: str, removed: str, method: str, **more: float | None) -> SummaryRow:
    values: dict[str, float | None] = {"gap": 0.342, "gap_spread": 0.1, "ratio": 0.981, "distance": 0.1234} | more
    return SummaryRow(
        data,
        removed,
        method,
        "best of 33: 0.4–1.3",
        values["gap"],
        values["gap_spread"],
        "γ",
        values["ratio"],
        values["distance"],
        erase_seconds=0.01234,
        retrain_seconds=12.3,
    )


def result(experiment: str = "illustrative") -> Result:
    grid = PageTable(
        "Accuracy on four splits",
        ("model", "D∖S, %", "loss", "requests"),
        [("original", 98.1234, None, 10), ("erased <b>", float("nan"), 2.6e-5, 10), ("a|b", 12345.6, -0.5, 50_000)],
        paper="Table 1",
        note="Averages over the requests.",
    )
    lines = [
        summary_row("digits", "all of a class", "SSSE (the paper's)"),
        summary_row("digits", "half of a class", "SSSE (the paper's)", gap_spread=None),
        summary_row("digits", "all of a class", "expected rows, ε = 1", gap=None, ratio=float("nan"), distance=None),
    ]
    return Result(
        experiment,
        f"The title of {experiment}",
        "small",
        stand_in=True,
        data=["scikit-learn's digits: 1,797 images of 8×8 points, 10 classes"],
        differs=["Digits instead of faces.", f"Ten classes, not forty attributes. {NASTY}"],
        figures=[drawn("ratio", "Figure 2a"), drawn("distance")],
        tables=[grid],
        findings=[
            Finding("SSSE comes near to retraining.", "Mean gap 0.34 points.", "Figure 2a", "yes"),
            Finding("ε must be chosen.", NASTY, "Table 1", "partly", reason="with expected rows it is 1"),
            Finding("Scrubbing fails.", "It does not here.", "Summary", "no"),
        ],
        targets=[
            Target("erasing is faster than retraining", "at least 100×", "997×", True),
            Target("γ at the best ε", "at least 0.99", "0.981", False, reason="few samples"),
        ],
        summary=lines,
        notes=[f"A note. {NASTY}"],
        numbers={"gaps": np.array([0.1, np.nan]), "many": list(range(5))},
    )


def install(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[Settings], Result]) -> None:
    """Put it in the place of an experiment's module."""
    module = ModuleType(f"ssse.paper.{name}.run")
    module.run = run  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, module.__name__, module)
