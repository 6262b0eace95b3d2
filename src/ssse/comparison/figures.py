"""A comparison as a figure: a row a method, so that names stand beside what is drawn and no colour needs a legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssse.evaluation.splits import SPLITS
from ssse.rendering.plotting import BLUE, GREY, RED, STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ssse.evaluation.table import Evaluation

ROW = 0.27  # inches


def comparison_figure(table: Evaluation) -> Figure:
    """Accuracy on each split; KL to the retrained models on S, beside the noise floor; seconds."""
    has_goal = "kl_forgotten" in table.cells
    names = list(table.models)
    figure, axes = new_figure(10.5 if has_goal else 7.5, 1.3 + ROW * len(names), 3 if has_goal else 2)
    _accuracies(axes[0], table, names)
    if has_goal:
        _divergence(axes[1], table, names)
    _seconds(axes[-1], table, names)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr]  # new_figure gives it one
    for place, ax in enumerate(axes):
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_yticks(range(len(names)), names if place == 0 else [""] * len(names))
        ax.tick_params(axis="y", length=0)
    return figure


def _accuracies(ax: Axes, table: Evaluation, names: Sequence[str]) -> None:
    """Small differences are the matter: the axis begins where the lowest is."""
    for style, (split, sign) in enumerate(SPLITS.items()):
        key = f"accuracy_{split}"
        if key not in table.cells:
            continue
        points = [(value, y) for y, name in enumerate(names) if (value := table[name, key]) is not None]
        if points:
            color, _, marker = STYLES[style]
            values, places = zip(*points, strict=True)
            ax.plot(values, places, linestyle="", marker=marker, color=color, markersize=6, label=sign)
    ax.set_xlabel("accuracy, %")
    ax.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, handletextpad=0.1)


def _divergence(ax: Axes, table: Evaluation, names: Sequence[str]) -> None:
    points = [(v, y) for y, name in enumerate(names) if (v := table[name, "kl_forgotten"]) is not None and v > 0]
    floor = table.floors.get("kl_forgotten")
    if points:
        values, places = zip(*points, strict=True)
        ax.plot(values, places, linestyle="", marker="o", color=BLUE, markersize=6)
        ax.set_xscale("log")
    if floor:
        ax.axvline(floor, color=GREY, linewidth=1.2, linestyle="--")
        ax.text(floor, -0.6, "two retrained models", fontsize=8, color=GREY, ha="center", va="bottom")
    ax.set_xlabel("KL(retrained ‖ model) on S, nats")


def _seconds(ax: Axes, table: Evaluation, names: Sequence[str]) -> None:
    for key, marker, color, label in (
        ("seconds_once", "o", GREY, "once, after training"),
        ("seconds", "s", RED, "a request"),
    ):
        points = [(v, y) for y, name in enumerate(names) if (v := _value(table, name, key)) is not None and v > 0]
        if points:
            values, places = zip(*points, strict=True)
            fill = "none" if key == "seconds_once" else "full"
            ax.plot(values, places, linestyle="", marker=marker, color=color, fillstyle=fill, markersize=6, label=label)
    ax.set_xscale("log")
    ax.set_xlabel("seconds")
    ax.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handletextpad=0.1)


def _value(table: Evaluation, name: str, key: str) -> float | None:
    return table[name, key] if key in table.cells else None
