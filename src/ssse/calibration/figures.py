"""What decided over λ and ε."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssse.errors import InvalidSetting
from ssse.evaluation.figures import MEANING, Curves
from ssse.rendering.plotting import new_figure, positive_range, scale_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def heat_map(calibration: Chosen) -> Figure:
    """What decided, γ, δ or the KL, over λ and ε, the chosen pair marked: how sensitive the choice is."""
    scan, grid, name = calibration.scan, calibration.grid, calibration.grid_name
    if grid is None or scan is None or name is None:
        raise InvalidSetting("There is no grid over λ: pass dampings= to ssse.calibrate.")
    order = np.argsort(calibration.dampings)
    dampings = np.array(calibration.dampings)[order]
    figure, (ax,) = new_figure(6.4, 1.2 + 0.36 * max(len(dampings), 5))
    low, high = (0.0, 1.0) if name != "KL" else positive_range(grid)
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
    scale_axis(ax, scan.scales)
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


def _cell_edges(values: np.ndarray) -> np.ndarray:
    """Borders of cells around the values, midway between neighbours on a log scale."""
    logs = np.log(values)
    middle = (logs[1:] + logs[:-1]) / 2
    half = np.diff(logs)[[0, -1]] / 2 if len(logs) > 1 else np.array([0.5, 0.5])
    return np.exp(np.concatenate([[logs[0] - half[0]], middle, [logs[-1] + half[1]]]))
