"""One figure that tells the story: the accuracy on S along the repair and the harmless training after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ssse.paper.lasting.jobs import ASCENT, NOTHING, OURS, RETRAINED
from ssse.paper.lasting.plans import OPPONENTS
from ssse.paper.lasting.view import Numbers, beside_the_retrained, kinds
from ssse.rendering.document import PageFigure
from ssse.rendering.plotting import GREY, new_figure, plot_series

OURS_COLOR = "#c1121f"
LINES = (
    (OURS, "ours"),
    (NOTHING, "fine-tuning"),
    (ASCENT, "gradient ascent"),
    *((opponent.key, opponent.label) for opponent in OPPONENTS),
)


def drawings(numbers: Numbers) -> list[PageFigure]:
    rates = kinds(numbers)
    figure, axes = new_figure(4.2 * len(rates), 3.9, len(rates))
    for ax, (rate, words) in zip(axes, rates.items(), strict=True):
        _panel(ax, numbers, rate)
        ax.set_title(words, fontsize=10)
        ax.set_xlabel("epochs on D∖S")
    axes[0].set_ylabel("accuracy on S, %")
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    across = 4 if len(rates) > 1 else 3  # as many as one panel is wide
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=across, fontsize=8, frameon=False)
    caption = (
        "Left of the grey line the repair that all methods share, right of it the harmless training on D∖S that "
        "follows, at half its rate. At epoch 0 stands what the method itself did, with the BatchNorm statistics it "
        "left. Black: the retrained network along the same training, which is where S should be. Mean over the "
        "requests for which it was followed, and the seeds."
    )
    return [
        PageFigure("resurfacing", "Does the memory come back? S along the repair and after it", caption, "", figure)
    ]


def _panel(ax: Axes, numbers: Numbers, rate: float) -> None:
    repair = next(iter(numbers["repair"].values()))["epochs"]
    for index, (method, label) in enumerate(LINES):
        found = [one for one in beside_the_retrained(numbers, method, rate) if one.get("along")]
        if not found:
            continue
        first = np.mean([one["along"] for one in found], axis=0)
        later = np.mean([[m["accuracy"] for m in one["moments"]] for one in found], axis=0)
        epochs = [repair + m["epoch"] for m in found[0]["moments"]]
        x = np.concatenate([np.arange(repair), epochs])
        y = np.concatenate([first[:-1], later])
        if method == OURS:
            ax.plot(x, y, color=OURS_COLOR, linewidth=3, marker="o", markersize=5, label=label, zorder=4)
        else:
            plot_series(ax, x, y, label, index=index - 1)
    retrained = [one["moments"] for one in beside_the_retrained(numbers, RETRAINED, rate)]
    if retrained:
        level = np.mean([[m["accuracy"] for m in moments] for moments in retrained], axis=0)
        epochs = [repair + m["epoch"] for m in retrained[0]]
        ax.plot([0, *epochs], [level[0], *level], color="black", linewidth=2, linestyle=(0, (4, 2)), label="retrained")
    ax.axvline(repair, color=GREY, linewidth=1)
    ax.set_ylim(-3, 103)
