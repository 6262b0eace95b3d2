"""Curves against ε with their mean and band over the requests, as the paper draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssse.evaluation.splits import SPLITS
from ssse.paper.study import Curve, differences, numbers
from ssse.rendering.plotting import GREY, new_figure, plot_series

Answers = Sequence[dict[str, Any]]
Values = Callable[[Curve, dict[str, Any]], np.ndarray]


@dataclass(frozen=True)
class Series:
    """Mean and standard deviation over requests at every ε. `chosen`: an ε to mark."""

    label: str
    scales: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    chosen: float | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    ylabel: str
    series: Sequence[Series]
    xlabel: str = "scale ε"
    limits: tuple[float, float] | None = None
    points: bool = False  # differences in points: small ones matter, large ones must fit
    level: float | None = None
    floor: float | None = None  # the noise floor, as a line
    span: tuple[float, float] | None = None  # of ε; all of it if not given
    styles: Sequence[int] = field(default_factory=tuple)


def over_requests(answers: Answers, key: str, rate: float, label: str, values: Values, mark: bool = False) -> Series:
    """One method at one removal rate; `mark`: the ε of the best mean, as the paper chooses it."""
    chosen = [a for a in answers if a["rate"] == rate and key in a["curves"]]
    scales, rows = common_scales([a["curves"][key] for a in chosen]), []
    for answer in chosen:
        curve = answer["curves"][key]
        rows.append(values(curve, answer)[np.isin(numbers(curve["scales"]), scales)])
    defined = [row for row in rows if np.isfinite(row).any()] or rows
    mean, spread = np.mean(defined, axis=0), np.std(defined, axis=0)  # no mean where one of them overflowed
    best = None
    if mark and np.isfinite(mean).any():
        loss = -mean if chosen[0]["curves"][key]["ratio_name"] == "γ" else mean
        best = float(scales[np.nanargmin(loss)])
    return Series(label, scales, mean, spread, best)


def common_scales(curves: Sequence[Curve]) -> np.ndarray:
    """A curve may hold an ε of its own beside the grid."""
    scales = numbers(curves[0]["scales"])
    for curve in curves[1:]:
        scales = np.intersect1d(scales, numbers(curve["scales"]))
    return scales


def values_of(name: str) -> Values:
    """NaN where it is not defined, as γ is not where all of S share every attribute."""
    return lambda curve, _: np.full(len(curve["scales"]), np.nan) if curve[name] is None else numbers(curve[name])


def differences_on(split: str) -> Values:
    return lambda curve, answer: differences(curve, split, answer["retrained"])


def split_panels(
    make: Callable[[str], Sequence[Series]], splits: Sequence[str] = tuple(SPLITS), **how: Any
) -> list[Panel]:
    """A panel a split: the accuracy difference to the retrained model."""
    named = [split for split in splits if split != "test"]
    return [
        Panel(SPLITS[split], "|accuracy − retrained|, points" if i == 0 else "", make(split), points=True, **how)
        for i, split in enumerate(named)
    ]


def draw(panels: Sequence[Panel], columns: int, width: float = 3.3, height: float = 2.7) -> Figure:
    """Panels in a grid, with one legend for all below them."""
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(width * columns, height * rows + 0.5, columns, rows)
    for ax, panel in zip(axes, panels, strict=False):
        _draw_panel(ax, panel)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    room = int(14 * width * columns)  # letters that fit side by side, with their markers
    beside = max(1, min(len(handles), room // (max(map(len, handles), default=1) + 6)))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=beside, fontsize=8, frameon=False)
    return figure


def _draw_panel(ax: Axes, panel: Panel) -> None:
    for i, series in enumerate(panel.series):
        style = panel.styles[i] if panel.styles else None
        color = plot_series(ax, series.scales, series.mean, series.label, index=i, style=style)
        low, high = series.mean - series.spread, series.mean + series.spread
        ax.fill_between(series.scales, np.maximum(low, 0), high, color=color, alpha=0.13, linewidth=0)
        if series.chosen is not None:
            at = int(np.argmin(np.abs(series.scales - series.chosen)))
            ax.plot(
                series.scales[at],
                series.mean[at],
                marker="*",
                markersize=12,
                color=color,
                markeredgecolor="black",
                markeredgewidth=0.7,
                linestyle="",
                zorder=5,
            )
    if panel.level is not None:
        ax.axhline(panel.level, color=GREY, linewidth=0.8, linestyle=":")
    if panel.floor:
        ax.axhline(panel.floor, color="black", linewidth=1, linestyle=(0, (1, 1)), label="noise floor of two seeds")
    ax.set_xscale("log")
    if panel.series:
        ax.set_xlim(*(panel.span or (panel.series[0].scales[0], panel.series[0].scales[-1])))
    if panel.points:
        ax.set_yscale("symlog", linthresh=1.0, linscale=0.6)
        ax.set_ylim(0, 105)
        ax.set_yticks([0, 0.5, 1, 3, 10, 30, 100], ["0", "0.5", "1", "3", "10", "30", "100"])
        ax.set_yticks([], minor=True)
    elif panel.limits is not None:
        ax.set_ylim(*panel.limits)
    ax.set_title(panel.title, fontsize=9)
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
