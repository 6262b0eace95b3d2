"""The figures of the page of requests. Each panel is a drawing of its own, so that on a phone they stand in a column.

No name that somebody chose is drawn: fonts lack signs, and matplotlib reads "$" as mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from matplotlib.gridspec import GridSpec

from ssse.calibration.figures import heat_map
from ssse.erasure.diagnostics import LARGE_LEVERAGE
from ssse.evaluation.figures import evaluation_figure, scan_figure
from ssse.evaluation.scan import Scan
from ssse.evaluation.table import Evaluation
from ssse.rendering import svg
from ssse.rendering.document import PageFigure
from ssse.rendering.plotting import BLUE, GREEN, GREY, RED, new_figure
from ssse.workspace.page.words import PANELS
from ssse.workspace.record.describe import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 3.9, 3.1  # inches: as wide as a phone shows without shrinking
LATEST = 200  # erasures beside each other


@dataclass(frozen=True)
class _Choice:
    """What the heat map needs of a calibration: the ledger keeps no curvature."""

    scan: Scan
    scale: float
    damping: float
    dampings: tuple[float, ...]
    grid: np.ndarray
    grid_name: str


def over_requests(shown: Sequence[tuple[int, Mapping[str, Any]]], limited: bool = True) -> list[PageFigure]:
    """Loss and largest leverage, request by request, rounded up as they are shown; what no request has is not drawn.

    `shown`: the place of each erasure among all, and its diagnostics. `limited`: a large leverage makes the verdict
    caution, as it does where no distance is bounded.
    """
    drawn = []
    which = f"{'the last ' * (len(shown) > LATEST)}{min(len(shown), LATEST)} erasures of enough samples"
    places = np.array([place for place, _ in shown[-LATEST:]])
    size = 5 if len(places) <= 60 else 2.5
    before, after, largest = (
        np.array([np.nan if d.get(name) is None else float(d[name]) for _, d in shown[-LATEST:]])
        for name in ("loss_before", "loss_after", "leverage_max")
    )
    if np.isfinite(after).any():
        figure, (ax,) = new_figure(WIDTH, HEIGHT)
        ax.vlines(places, before, after, color=GREY, linewidth=0.8)
        ax.plot(places, before, linestyle="", marker="o", fillstyle="none", color=BLUE, markersize=size, label="before")
        ax.plot(places, after, linestyle="", marker="s", color=RED, markersize=size, label="after")
        ax.set_ylabel("mean loss on the erased samples")
        _counted(ax, places)
        ax.legend(fontsize=8, frameon=False)
        title = f"Mean loss on the erased samples before and after {which}"
        caption = f"The loss on the erased samples before and after, for {which}, rounded up to powers of two."
        drawn.append(PageFigure("losses", title, caption, "", figure))
    if np.isfinite(largest).any():
        figure, (ax,) = new_figure(WIDTH, HEIGHT)
        ax.plot(places, largest, linestyle="", marker="^", color=GREEN, markersize=size)
        if limited:
            _limit(ax)
        ax.set_ylabel("largest leverage")
        _counted(ax, places)
        title = f"Largest leverage of {which}, at most {number(float(np.nanmax(largest)))}"
        caption = f"The largest leverage of {which}, rounded up to powers of two."
        caption += f" Above {LARGE_LEVERAGE:g} (dotted) the verdict is caution." * limited
        drawn.append(PageFigure("largest-leverages", title, caption, "", figure))
    return drawn


def evaluation(table: Evaluation) -> list[PageFigure]:
    made = _panels(lambda: evaluation_figure(table))
    words = [
        ("accuracies", "Accuracy of each model on each set of samples", "Accuracy on each set of samples."),
        (
            "gaps",
            "Difference of each model to the retrained one",
            "The difference to the retrained model; further left is nearer to it."
            + (" The upright lines are the noise floor: what two retrained models differ by." if table.floors else ""),
        ),
    ]
    return [
        PageFigure(name, title, caption, "", figure)
        for (name, title, caption), figure in zip(words, made, strict=False)
    ]


def curve(scan: Scan, chosen: float) -> list[PageFigure]:
    """Everything against ε, the chosen one marked; γ or δ first."""
    names = [scan.ratio_name] if scan.ratio is not None else []
    names += [n for n, values in (("KL", scan.divergence), ("distance", scan.distance)) if values is not None]
    names += ["attack"] if scan.attack is not None else []
    names.append("accuracy" if scan.retrained is None else "gap")
    made = _panels(lambda: scan_figure(scan, chosen=chosen))
    drawn = []
    for name, figure in zip(names, made, strict=True):
        title = f"{name} against ε from {number(float(scan.scales[0]))} to {number(float(scan.scales[-1]))}"
        if name == scan.ratio_name and scan.ratio is not None:
            value = float(np.interp(np.log(chosen), np.log(scan.scales), scan.ratio))
            if np.isfinite(value):
                figure.axes[0].plot(chosen, value, marker="o", color="black", markersize=7, clip_on=False)
                title += f"; {number(value)} at the chosen one"
        caption = f"{PANELS[name]} The upright line is the chosen ε = {number(chosen)}."
        drawn.append(PageFigure(f"curve-{len(drawn) + 1}", title, caption, "", figure))
    return drawn


def over_dampings(details: Mapping[str, Any], scan: Scan) -> PageFigure | None:
    """How what decided depends on λ and ε together."""
    dampings, grid, name = (details.get(key) for key in ("dampings", "grid", "grid_name"))
    if not dampings or len(dampings) < 2 or not grid or name is None:
        return None
    values = np.array([[np.nan if v is None else v for v in row] for row in grid], dtype=float)
    choice = _Choice(scan, details["scale"], details["damping"], tuple(dampings), values, name)
    title = f"{name} over λ and ε, the chosen pair marked"
    caption = (
        f"{name} for {len(dampings)} λ and every ε. The star is the chosen pair; lighter or darker is in the scale."
    )
    return PageFigure("dampings", title, caption, "", heat_map(choice))  # pyright: ignore[reportArgumentType]


def inlined(drawn: Iterable[PageFigure]) -> list[dict[str, Any]]:
    """As the template takes them."""
    return [
        {"name": one.name, "caption": one.caption, "svg": Markup(svg.inline(text)), "width": svg.width(text)}
        for one, text in ((one, svg.render(one, "requests")) for one in drawn)
    ]


def _panels(make: Callable[[], Figure]) -> list[Figure]:
    """A figure of several panels as several figures, each with a legend of its own."""
    panels = [make()]
    panels += [make() for _ in panels[0].axes[1:]]
    for i, figure in enumerate(panels):
        kept, height = figure.axes[i], figure.get_figheight()
        for ax in [ax for ax in figure.axes if ax is not kept]:
            ax.remove()
        kept.set_subplotspec(GridSpec(1, 1, figure=figure)[0])
        figure.set_size_inches(WIDTH, max(height, HEIGHT))
        for label in (kept.xaxis.label, kept.yaxis.label, *kept.get_yticklabels()):
            label.set_fontsize(9)  # one panel has less room than the whole had
        for legend in list(figure.legends):
            legend.remove()
            handles, labels = kept.get_legend_handles_labels()
            columns = max(1, min(3, len(labels)))
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return panels


def _limit(ax: Any) -> None:
    ax.axhline(LARGE_LEVERAGE, color=GREY, linewidth=1, linestyle=":")
    ax.set_ylim(-0.02, 1.02)


def _counted(ax: Any, places: np.ndarray) -> None:
    """Whole numbers only, with room on both sides."""
    ax.set_xlabel("erasure, in the order of time")
    ax.set_xlim(places[0] - 0.5, places[-1] + 0.5)
    ax.locator_params(axis="x", integer=True)
