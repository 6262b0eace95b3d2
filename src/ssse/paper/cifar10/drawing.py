"""Figures 3b, 5, 6 and 7 of the paper, and past them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssse.paper.network import DAMPED, DAMPED_OUT, HEAD, PAPER_TEN
from ssse.paper.plots import Answers, Panel, Series, differences_on, draw, over_requests, split_panels, values_of
from ssse.rendering.document import PageFigure

DELTA = "normalised confusion distance δ"
FULL_AND_HALF = ((1.0, "whole class"), (0.5, "half"))
BAND = "Mean over the classes, band: one standard deviation."
AXES = "Accuracy differences in points: linear up to one point, logarithmic above."


def drawings(answers: Answers, floors: Mapping[float, Mapping[str, float]]) -> list[PageFigure]:
    return [_confusion(answers), _batches(answers), _ascent(answers), _scrubbing(answers), *_past(answers, floors)]


def _series(answers: Answers, keys: Sequence[tuple[str, str]], split: str | None) -> list[Series]:
    values = values_of("ratio") if split is None else differences_on(split)
    return [
        over_requests(answers, key, rate, f"{label}, {words}", values, mark=split is None)
        for key, label in keys
        for rate, words in FULL_AND_HALF
        if any(a["rate"] == rate and key in a["curves"] for a in answers)
    ]


def _confusion(answers: Answers) -> PageFigure:
    series = _series(answers, [("paper", "single samples"), ("ten", "mini-batches of 10")], None)
    return PageFigure(
        "figure-3b",
        "δ against ε, the paper's update",
        "Empirical rows, blocks of at most 70,000 parameters, λ = 1e-4, curvature over D. Dotted at 0.5: below, the "
        f"update is nearer to the retrained network than to the original. {BAND} A star marks the best mean.",
        "Figure 3b",
        draw([Panel("", DELTA + "\n(0 = retrained)", series, limits=(0, 1.02), level=0.5)], 1, width=5.5, height=3.2),
    )


def _batches(answers: Answers) -> PageFigure:
    keys = [("paper", "single samples"), ("ten", "mini-batches of 10")]
    return PageFigure(
        "figure-5",
        "Accuracy differences against ε: single samples and mini-batches of 10",
        f"The accuracy of SSSE less that of the retrained network, on each split. {BAND} {AXES}",
        "Figure 5",
        draw(split_panels(lambda split: _series(answers, keys, split)), 4, width=2.9),
    )


def _ascent(answers: Answers) -> PageFigure:
    above = split_panels(lambda split: _series(answers, [("ten", "SSSE")], split))
    below = split_panels(
        lambda split: _series(answers, [("ascent", "gradient ascent")], split), xlabel="learning rate", styles=(2, 3)
    )
    return PageFigure(
        "figure-6",
        "SSSE and one step of gradient ascent",
        f"Above SSSE (mini-batches of 10) against ε, below one step of gradient ascent against its rate. {BAND} {AXES}",
        "Figure 6",
        draw([*above, *below], 4, width=2.9, height=2.5),
    )


def _scrubbing(answers: Answers) -> PageFigure:
    some = ("retained", "forgotten")
    left = split_panels(lambda split: _series(answers, [("ten", "SSSE")], split), some)
    right = split_panels(
        lambda split: _series(answers, [("scrubbing", "scrubbing")], split),
        some,
        xlabel="noise (λσ²)^¼",
        styles=(2, 3),
    )
    return PageFigure(
        "figure-7",
        "SSSE and scrubbing",
        "Left SSSE (mini-batches of 10) against ε, right the scrubbing update θ + noise·F^(−¼)ξ with the diagonal "
        f"Fisher matrix over D∖S, against the noise. {BAND} {AXES}",
        "Figure 7",
        draw([*left, *right], 4, width=2.9),
    )


def _past(answers: Answers, floors: Mapping[float, Mapping[str, Any]]) -> list[PageFigure]:
    methods = (PAPER_TEN, DAMPED, DAMPED_OUT, HEAD)
    panels = []
    for rate, words in FULL_AND_HALF:
        for name, label, limits in (("mean_gap", "mean accuracy gap, points", None), ("ratio", DELTA, (0.0, 1.02))):
            series = [
                over_requests(answers, m.key, rate, _short(m.label), values_of(name))
                for m in methods
                if any(a["rate"] == rate and m.key in a["curves"] for a in answers)
            ]
            floor = floors[rate]["gap"] if name == "mean_gap" and rate in floors else None
            panels.append(
                Panel(
                    words,
                    label,
                    series,
                    limits=limits,
                    points=name == "mean_gap",
                    floor=floor,
                    level=None if name == "mean_gap" else 0.5,
                )
            )
    return [
        PageFigure(
            "past-curvatures",
            "Past the paper: leave-k-out, the last layer, expected rows",
            "Single samples with λ = 1e-3 over D and, from S alone, over D∖S; the last layer alone with expected rows, "
            "whose best ε is between 0.6 and 2.5 for whole classes. Dotted black: the gap of two retrained seeds.",
            "",
            draw(panels, 2, width=4.4),
        )
    ]


def _short(label: str) -> str:
    return label.replace(", ε = 1", "").replace(" (the paper)", "")
