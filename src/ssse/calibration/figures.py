"""Curves against ε, and what decided over λ and ε."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssse.errors import InvalidSetting
from ssse.evaluation.splits import SPLITS
from ssse.rendering.plotting import BLUE, GREY, RED, STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANING = {
    "γ": "similarity ratio γ\n(1 = retrained)",
    "δ": "normalised confusion distance δ\n(0 = retrained)",
    "KL": "KL of the predictions on S\n(0 = retrained)",
}


class Curves(Protocol):
    """What is drawn of a scan: its fields of the same names."""

    @property
    def scales(self) -> np.ndarray: ...
    @property
    def accuracy(self) -> dict[str, np.ndarray]: ...
    @property
    def retrained(self) -> dict[str, float] | None: ...
    @property
    def ratio_name(self) -> str: ...
    @property
    def ratio(self) -> np.ndarray | None: ...
    @property
    def divergence(self) -> np.ndarray | None: ...
    @property
    def distance(self) -> np.ndarray | None: ...
    @property
    def attack(self) -> np.ndarray | None: ...
    @property
    def original_attack(self) -> float | None: ...
    @property
    def original_divergence(self) -> float | None: ...


class Chosen(Protocol):
    """What is drawn of a calibration."""

    @property
    def scale(self) -> float: ...
    @property
    def damping(self) -> float: ...
    @property
    def scan(self) -> Curves | None: ...
    @property
    def dampings(self) -> tuple[float, ...]: ...
    @property
    def grid(self) -> np.ndarray | None: ...
    @property
    def grid_name(self) -> str | None: ...


def scan_figure(scan: Curves, chosen: float | None = None) -> Figure:
    """What changes with ε: γ or δ, the KL, the parameter distance, the attack, and the accuracy on each split."""
    panels: list[Any] = []
    if scan.ratio is not None:
        panels.append(lambda ax: _ratio(ax, scan))
    if scan.divergence is not None:
        panels.append(lambda ax: _divergence(ax, scan))
    if scan.distance is not None:
        panels.append(lambda ax: _curve(ax, scan, scan.distance, "normalised parameter distance\n(0 = retrained)"))
    if scan.attack is not None:
        panels.append(lambda ax: _attack(ax, scan))
    panels.append(lambda ax: _accuracies(ax, scan))
    figure, axes = new_figure(3.7 * len(panels), 3.1, len(panels))
    for ax, draw in zip(axes, panels, strict=True):
        draw(ax)
        _log_scale(ax, scan.scales)
        if len(scan.scales) > 1:
            ax.set_xlim(scan.scales[0], scan.scales[-1])
        ax.set_xlabel("scale ε")
        if chosen is not None and scan.scales[0] <= chosen <= scan.scales[-1]:
            ax.axvline(chosen, color="black", linewidth=1, linestyle=(0, (4, 2)))
            right = (
                chosen > (scan.scales[0] * scan.scales[-1] ** 3) ** 0.25
            )  # in the last quarter: the text would stick out
            ax.annotate(
                f"ε = {chosen:.3g}",
                (chosen, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if right else 3, -2),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
            )
    return figure


def heat_map(calibration: Chosen) -> Figure:
    """What decided, γ, δ or the KL, over λ and ε, the chosen pair marked: how sensitive the choice is."""
    scan, grid, name = calibration.scan, calibration.grid, calibration.grid_name
    if grid is None or scan is None or name is None:
        raise InvalidSetting("There is no grid over λ: pass dampings= to ssse.calibrate.")
    order = np.argsort(calibration.dampings)
    dampings = np.array(calibration.dampings)[order]
    figure, (ax,) = new_figure(6.4, 1.2 + 0.36 * max(len(dampings), 5))
    low, high = (0.0, 1.0) if name != "KL" else _positive_range(grid)
    image = ax.pcolormesh(
        _cell_edges(scan.scales),
        _cell_edges(dampings),
        grid[order],
        cmap="viridis" if name == "γ" else "viridis_r",
        norm="log" if name == "KL" else "linear",
        rasterized=True,
    )
    image.set_clim(low, high)
    ax.grid(False)
    _log_scale(ax, scan.scales)
    ax.set_yscale("log")
    ax.set_yticks(dampings, [f"{v:.2g}" for v in dampings])
    ax.set_yticks([], minor=True)
    ax.plot(calibration.scale, calibration.damping, marker="*", markersize=13, color="white", markeredgecolor="black")
    column = int(np.argmin(np.abs(scan.scales - calibration.scale)))
    row = int(np.argmin(np.abs(np.array(calibration.dampings) - calibration.damping)))
    value = f"{grid[row, column]:.3g}" if name == "KL" else f"{grid[row, column]:.3f}"
    ax.set_title(
        f"ε = {calibration.scale:.3g}, λ = {calibration.damping:.2g}: {name} = {value}", fontsize=8, loc="right"
    )
    ax.set_xlabel("scale ε")
    ax.set_ylabel("damping λ")
    bar = figure.colorbar(image, ax=ax)
    bar.set_label(MEANING[name], fontsize=8)
    return figure


def _log_scale(ax: Axes, scales: np.ndarray) -> None:
    """ε as plain numbers; below three decades between the powers of ten too, where matplotlib's own labels collide."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    few = scales[-1] < 1e3 * scales[0]
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12))
    ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _cell_edges(values: np.ndarray) -> np.ndarray:
    """Borders of cells around the values, midway between neighbours on a log scale."""
    logs = np.log(values)
    middle = (logs[1:] + logs[:-1]) / 2
    half = np.diff(logs)[[0, -1]] / 2 if len(logs) > 1 else np.array([0.5, 0.5])
    return np.exp(np.concatenate([[logs[0] - half[0]], middle, [logs[-1] + half[1]]]))


def _ratio(ax: Axes, scan: Curves) -> None:
    _curve(ax, scan, scan.ratio, MEANING[scan.ratio_name])
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")


def _divergence(ax: Axes, scan: Curves) -> None:
    assert scan.divergence is not None
    _curve(ax, scan, scan.divergence, MEANING["KL"])
    before = scan.original_divergence
    shown = np.append(scan.divergence, np.nan if before is None else before)
    low, high = _positive_range(shown)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.2, high * 1.2)
    if before is not None and before > 0:
        ax.axhline(before, color=RED, linewidth=1, linestyle="--", label="before erasing")
        ax.legend(fontsize=8, frameon=False)


def _positive_range(values: np.ndarray) -> tuple[float, float]:
    """For an axis in powers of ten, never empty."""
    found = values[np.isfinite(values) & (values > 0)]
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.1, 1.0)
    return (low, high) if low < high else (low / 2, 2 * high)


def _attack(ax: Axes, scan: Curves) -> None:
    _curve(ax, scan, scan.attack, "AUC of telling S from held-out\n(0.5 = cannot)")
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    if scan.original_attack is not None:
        ax.axhline(scan.original_attack, color=RED, linewidth=1, linestyle="--", label="before erasing")
        ax.legend(fontsize=8, frameon=False)


def _curve(ax: Axes, scan: Curves, values: np.ndarray | None, title: str) -> None:
    if values is not None:
        ax.plot(scan.scales, values, color=BLUE, linewidth=1.8, marker="." if len(values) < 12 else None)
    ax.set_ylim(-0.02, 1.02)
    ax.set_ylabel(title)


def _accuracies(ax: Axes, scan: Curves) -> None:
    """The difference to the retrained model where there is one, else the accuracy itself."""
    for (split, values), (color, line, marker) in zip(scan.accuracy.items(), STYLES, strict=False):
        shown = values if scan.retrained is None else np.abs(values - scan.retrained[split])
        every = max(1, len(shown) // 8)
        ax.plot(
            scan.scales,
            100 * shown,
            color=color,
            linestyle=line,
            marker=marker,
            markevery=every,
            markersize=4,
            label=SPLITS[split],
        )
    title = "accuracy, %" if scan.retrained is None else "accuracy difference to\nretrained, points"
    ax.set_ylabel(title)
    top = 100.0 if scan.retrained is None else max(1.0, ax.get_ylim()[1])
    ax.set_ylim(-0.02 * top, 1.02 * top)
    ax.legend(fontsize=8, frameon=False)
