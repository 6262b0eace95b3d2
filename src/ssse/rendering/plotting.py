"""Figures. Colours are Okabe and Ito's, told apart without colour by line style and marker too.

Every room draws its own figures with these: `figure.savefig("curve.svg")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ssse.system.extras import needed_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#666666",
)
STYLES = (
    (BLUE, "-", "o"),
    (RED, "--", "s"),
    (GREEN, "-.", "^"),
    (PURPLE, ":", "D"),
    (ORANGE, "-", "v"),
    (SKY, "--", "P"),
)
FILLS: tuple[Literal["full", "none", "left"], ...] = ("full", "none", "left")  # when the styles are used up


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    with needed_for("A figure"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes


def plot_series(ax: Axes, x: np.ndarray, y: np.ndarray, label: str, *, index: int, style: int | None = None) -> str:
    """One of several curves in a panel, in a style of its own, with some eight markers that do not coincide.

    Args: index: among the curves of the panel. style: which of `STYLES`; None: that of the index.
    Returns: its colour.
    """
    color, line, marker = STYLES[(index if style is None else style) % len(STYLES)]
    every = max(1, len(x) // 8)
    ax.plot(
        x,
        y,
        color=color,
        linestyle=line,
        linewidth=1.6,
        marker=marker,
        markevery=(index % every, every),
        markersize=4,
        label=label,
    )
    return color


def scale_axis(ax: Axes, scales: np.ndarray) -> None:
    """ε as plain numbers; below three decades between the powers of ten too, where matplotlib's own labels collide."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    few = scales[-1] < 1e3 * scales[0]
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12))
    ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def positive_range(values: np.ndarray) -> tuple[float, float]:
    """For an axis in powers of ten, never empty."""
    positive = values[np.isfinite(values) & (values > 0)]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.1, 1.0)
    return (low, high) if low < high else (low / 2, 2 * high)
