"""The two pictures of the illustrative example: boundaries in the plane, and distances over many draws of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ssse.paper.illustrative.removals import METHODS, REMOVALS, Plane, Removal
from ssse.rendering.plotting import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[float, Sequence[float]] = (0, (5, 2))
LINES: dict[str, tuple[str, Any, float, str]] = {  # colour, style, width, name
    "original": (GREY, "-", 1.2, "original θ*"),
    "retrained": ("black", "-", 2.6, "retrained θ₋S"),
    "influence_all": (BLUE, DASHES, 1.6, "influence, H over D"),
    "influence_rest": (ORANGE, (0, (6, 1.5, 1, 1.5)), 1.6, "influence, H over D∖S = ssse's default"),
    "ssse_all": (RED, (0, (1, 1.2)), 3.0, "SSSE, F̂ over D, best ε"),
    "ssse_rest": (GREEN, (0, (3, 1.2, 1, 1.2, 1, 1.2)), 1.6, "SSSE, F̂ over D∖S, best ε"),
}
DOTS = {  # colour, marker
    "influence_all": (BLUE, "s"),
    "influence_rest": (ORANGE, "D"),
    "ssse_all": (RED, "o"),
    "ssse_rest": (GREEN, "^"),
    "ssse_all_fixed": (RED, "v"),
    "ssse_rest_fixed": (GREEN, "P"),
}
WINDOW = ((-3.8, 3.8), (-3.2, 4.8))
FARTHEST = 1.3  # distances beyond are drawn here
HEIGHTS = np.linspace(-5, 6, 111)


def boundary_figure(plane: Plane, removals: Mapping[str, Removal]) -> Figure:
    """Two panels a removal: the plane, and beside it the boundaries seen from the retrained one."""
    figure, axes = new_figure(9.0, 3.9, 2 * len(removals))
    spec = axes[0].get_subplotspec()
    assert spec is not None
    spec.get_gridspec().set_width_ratios([2.1, 1.0] * len(removals))
    for i, (name, removal) in enumerate(removals.items()):
        thetas = {"original": removal.original, "retrained": removal.retrained}
        thetas |= {key: removal.updates[key][1] for key in LINES if key in removal.updates}
        _plane(axes[2 * i], plane, removal, thetas)
        axes[2 * i].set_title(f"({'ab'[i]}) remove {REMOVALS[name]}", fontsize=10)
        _close_look(axes[2 * i + 1], thetas)
    axes[0].set_ylabel("x₂")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False, handlelength=3.6)
    return figure


def draws_figure(draws: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Figure:
    """Every draw as a faint dot, the mean and the standard deviation over them as a bold one with a bar."""
    figure, axes = new_figure(9.6, 3.4, len(draws))
    for ax, (removal, methods) in zip(axes, draws.items(), strict=True):
        for y, (name, (color, marker)) in enumerate(DOTS.items()):
            values = np.array(methods[name]["distance"])
            spots = y + 0.25 * np.linspace(-1, 1, len(values))
            ax.scatter(np.minimum(values, FARTHEST), spots, s=7, color=color, alpha=0.3, linewidths=0)
            ax.errorbar(
                values.mean(),
                y,
                xerr=values.std(),
                color="black",
                marker=marker,
                markerfacecolor=color,
                markersize=6.5,
                capsize=3,
                linewidth=1.2,
            )
        ax.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_title("remove\n" + REMOVALS[removal], fontsize=9)
        ax.set_yticks(range(len(DOTS)), [METHODS[name] for name in DOTS] if ax is axes[0] else [], fontsize=8.5)
        ax.set_ylim(len(DOTS) - 0.5, -0.5)
        ax.set_xlim(0, 1.02 * FARTHEST)
        for border in (1.5, 3.5):
            ax.axhline(border, color=GREY, linewidth=0.5)
    figure.supxlabel("distance ‖θ̂ − θ₋S‖ / ‖θ* − θ₋S‖   (0 = retrained, 1 = nothing erased)", fontsize=9)
    return figure


def _plane(ax: Axes, plane: Plane, removal: Removal, thetas: Mapping[str, np.ndarray]) -> None:
    ax.set_xlim(*WINDOW[0])
    ax.set_ylim(*WINDOW[1])
    ax.set_xlabel("x₁")
    _points(ax, plane, removal.chosen)
    for name, (color, style, width, label) in LINES.items():
        ax.plot(_across(thetas[name]), HEIGHTS, color=color, linestyle=style, linewidth=width, label=label)


def _points(ax: Axes, plane: Plane, chosen: np.ndarray) -> None:
    x, blue = plane.x.numpy(), plane.y[:, 0].numpy() == 1
    ax.scatter(*x[~blue].T, s=16, marker="s", color=PURPLE, linewidths=0, label="class 0")
    ax.scatter(*x[blue & ~chosen].T, s=18, marker="o", color=BLUE, linewidths=0, label="class 1")
    ax.scatter(
        *x[chosen].T, s=95, marker="o", facecolor=(*_rgb(BLUE), 0.3), edgecolor="black", linewidths=0.9,
        label="class 1, removed (S)",
    )  # fmt: skip


def _close_look(ax: Axes, thetas: Mapping[str, np.ndarray]) -> None:
    """The lines lie close together: how far each is from the retrained one, to the side, at every height."""
    ax.set_ylim(*WINDOW[1])
    ax.set_yticklabels([])
    ax.set_xlabel("Δx₁ to retrained")
    ax.set_title("seen from retrained", fontsize=9)
    away = {name: _across(theta) - _across(thetas["retrained"]) for name, theta in thetas.items()}
    for name, (color, style, width, _) in LINES.items():
        ax.plot(away[name], HEIGHTS, color=color, linestyle=style, linewidth=min(width, 2.2))
    inside = (WINDOW[1][0] <= HEIGHTS) & (WINDOW[1][1] >= HEIGHTS)
    widest = max(float(np.abs(line[inside]).max()) for name, line in away.items() if name != "original")
    ax.set_xlim(-1.15 * widest, 1.15 * widest)  # the original is farther away: it leaves the panel


def _across(theta: np.ndarray) -> np.ndarray:
    """x₁ of the boundary at every height x₂."""
    return -(theta[1] * HEIGHTS + theta[2]) / theta[0]


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue
