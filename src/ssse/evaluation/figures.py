"""The table of an evaluation, and what was measured along a step, as figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssse.evaluation.splits import SPLITS
from ssse.rendering.plotting import BLUE, FILLS, GREY, RED, STYLES, new_figure, plot_series, positive_range, scale_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MEANING = {
    "γ": "similarity ratio γ\n(1 = retrained)",
    "δ": "normalised confusion distance δ\n(0 = retrained)",
    "KL": "KL of the predictions on S\n(0 = retrained)",
}


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
        scale_axis(ax, scan.scales)
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


def _ratio(ax: Axes, scan: Curves) -> None:
    _curve(ax, scan, scan.ratio, MEANING[scan.ratio_name])
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")


def _divergence(ax: Axes, scan: Curves) -> None:
    assert scan.divergence is not None
    _curve(ax, scan, scan.divergence, MEANING["KL"])
    before = scan.original_divergence
    shown = np.append(scan.divergence, np.nan if before is None else before)
    low, high = positive_range(shown)
    ax.set_yscale("log")
    ax.set_ylim(low / 1.2, high * 1.2)
    if before is not None and before > 0:
        ax.axhline(before, color=RED, linewidth=1, linestyle="--", label="before erasing")
        ax.legend(fontsize=8, frameon=False)


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
    for index, (split, values) in enumerate(scan.accuracy.items()):
        shown = values if scan.retrained is None else np.abs(values - scan.retrained[split])
        plot_series(ax, scan.scales, 100 * shown, SPLITS[split], index=index)
    title = "accuracy, %" if scan.retrained is None else "accuracy difference to\nretrained, points"
    ax.set_ylabel(title)
    top = 100.0 if scan.retrained is None else max(1.0, ax.get_ylim()[1])
    ax.set_ylim(-0.02 * top, 1.02 * top)
    ax.legend(fontsize=8, frameon=False)
