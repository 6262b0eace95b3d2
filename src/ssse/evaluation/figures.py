"""The table of an evaluation as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssse.rendering.plotting import FILLS, STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Measured(Protocol):
    """What is drawn of an evaluation: its fields of the same names."""

    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def measures(self) -> tuple[Any, ...]: ...
    @property
    def cells(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def floors(self) -> dict[str, float]: ...
    def __getitem__(self, place: tuple[str, str], /) -> float | None: ...


def evaluation_figure(evaluation: Measured) -> Figure:
    """Accuracy on each split as dots, one colour and marker a model; beside it the gaps, with the noise floor."""
    splits = [m for m in evaluation.measures if m.key.startswith("accuracy_")]
    gaps = [m for m in evaluation.measures if m.key == "mean_gap" or m.key.startswith("kl_")]
    figure, axes = new_figure(4.2 + 3.4 * bool(gaps), 0.6 + 0.55 * max(len(splits) + 1, len(gaps) + 1), 1 + bool(gaps))
    _dots(axes[0], evaluation, splits, "accuracy, %")
    if gaps:
        _dots(axes[1], evaluation, gaps, "difference to retrained\n(accuracy in points, KL in nats)")
        _wide_scale(axes[1], evaluation, gaps)
        for y, measure in enumerate(gaps):
            if measure.key in evaluation.floors:
                floor = evaluation.floors[measure.key]
                axes[1].plot(
                    [floor, floor],
                    [y - 0.4, y + 0.4],
                    color="black",
                    linewidth=1.2,
                    label="noise floor" if y == 0 else None,
                )
    handles, labels = axes[-1].get_legend_handles_labels() if gaps else axes[0].get_legend_handles_labels()
    first, names = axes[0].get_legend_handles_labels()
    merged = dict(zip(names + labels, first + handles, strict=True))
    figure.legend(
        merged.values(), merged.keys(), loc="outside lower center", ncols=min(4, len(merged)), fontsize=8, frameon=False
    )
    return figure


def _wide_scale(ax: Axes, evaluation: Measured, measures: list[Any]) -> None:
    """Decades from the smallest gap on; below them zero has its place."""
    keys = [measure.key for measure in measures]
    shown = [evaluation[name, key] for name in evaluation.models for key in keys]
    positive = [v for v in (*shown, *(evaluation.floors.get(key) for key in keys)) if v is not None and v > 0]
    lowest = 10.0 ** np.floor(np.log10(np.clip(min(positive, default=1e-3), 1e-6, 1.0)))
    highest = max(lowest, max(positive, default=1.0))  # gaps may be of rounding alone
    ax.set_xscale("symlog", linthresh=lowest)
    ax.set_xlim(-0.3 * lowest, 2 * highest)
    decades = 10.0 ** np.arange(np.log10(lowest), np.log10(highest) + 1)
    ax.set_xticks([0, *decades[:: -(-len(decades) // 4)]])


def _dots(ax: Axes, evaluation: Measured, measures: list[Any], title: str) -> None:
    for i, name in enumerate(evaluation.models):
        color, _, marker = STYLES[i % len(STYLES)]
        fill = FILLS[i // len(STYLES) % len(FILLS)]
        shift = 0.5 * (i - (len(evaluation.models) - 1) / 2) / max(len(evaluation.models), 1)
        shown = [(evaluation[name, m.key], y + shift) for y, m in enumerate(measures)]
        points = [(x, y) for x, y in shown if x is not None]
        if points:
            x, y = zip(*points, strict=True)
            ax.plot(x, y, linestyle="", marker=marker, color=color, fillstyle=fill, markersize=6, label=name)
        for y, measure in enumerate(measures):
            cell = evaluation.cells[measure.key].get(name)
            if cell is not None and cell.value is not None and cell.spread:
                ends = [cell.value - cell.spread, cell.value + cell.spread]
                ax.plot(ends, [y + shift] * 2, color=color, linewidth=1)
    ax.set_yticks(range(len(measures)), [m.title.replace("KL(retrained ‖ model), ", "KL on ") for m in measures])
    ax.set_ylim(len(measures) - 0.5, -0.5)
    ax.set_xlabel(title)
