"""Figures. Colours are Okabe and Ito's, told apart without colour by line style and marker too.

Every room draws its own figures with these: `figure.savefig("curve.svg")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ssse.errors import InvalidSetting

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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidSetting("Figures need matplotlib: pip install matplotlib.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes
