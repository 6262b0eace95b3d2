"""Figures 3a and 4 of the paper, and past them."""

from __future__ import annotations

from collections.abc import Mapping

from ssse.paper.convex import EXACT, HESSIAN, MORE, PAPER, PAPER_OUT
from ssse.paper.plots import Answers, Panel, differences_on, draw, over_requests, split_panels, values_of
from ssse.rendering.document import PageFigure

DELTA = "normalised confusion distance δ"
SPAN = (0.05, 100)  # below, nothing has changed yet
BAND = "Mean over the first ten classes, band: one standard deviation."
AXES = "Accuracy differences in points: linear up to one point, logarithmic above."
BEYOND = {
    PAPER.key: "SSSE, empirical, over D (the paper)",
    PAPER_OUT.key: "SSSE, empirical, over D∖S",
    HESSIAN.key: "Hessian over D (influence)",
    MORE.key: "expected over D∖S, a block a class, nλ",
    EXACT.key: "expected over D∖S, all classes, (n−k)λ",
}


def drawings(title: str, answers: Answers, floors: Mapping[float, Mapping[str, float]]) -> list[PageFigure]:
    rates = sorted({a["rate"] for a in answers})
    ratio = [over_requests(answers, "paper", r, f"{r:.0%} removed", values_of("ratio"), mark=True) for r in rates]
    figures = [
        PageFigure(
            f"figure-3a-{title}",
            f"{title}: δ against ε, the paper's update",
            "The update of Definition 3.1: empirical rows, curvature over D in blocks of at most 45,000, λ = L2 = "
            f"1e-4. Dotted at 0.5: below, the update is nearer to the retrained model. {BAND} A star marks the best "
            "mean.",
            "Figure 3a",
            draw(
                [Panel("", DELTA + "\n(0 = retrained)", ratio, limits=(0, 1.02), level=0.5, span=SPAN)],
                1,
                width=5.5,
                height=3.2,
            ),
        )
    ]
    panels = split_panels(
        lambda split: [over_requests(answers, "paper", r, f"{r:.0%} removed", differences_on(split)) for r in rates],
        span=SPAN,
    )
    figures.append(
        PageFigure(
            f"figure-4-{title}",
            f"{title}: accuracy differences to the retrained model, the paper's update",
            "On the training samples that stay (D∖S), those removed (S), and the test samples of other classes (T∖T_a) "
            f"and of the class (T_a). {BAND} {AXES}",
            "Figure 4",
            draw(panels, 4, width=2.9),
        )
    )
    figures.append(_past(title, answers, floors, max(rates), min(rates, key=lambda r: abs(r - 0.5))))
    return figures


def _past(
    title: str, answers: Answers, floors: Mapping[float, Mapping[str, float]], whole: float, part: float
) -> PageFigure:
    panels = []
    for rate in (whole, part):
        for name, label in (("mean_gap", "mean accuracy gap, points"), ("ratio", DELTA)):
            series = [over_requests(answers, key, rate, words, values_of(name)) for key, words in BEYOND.items()]
            gap = name == "mean_gap"
            panels.append(
                Panel(
                    f"{rate:.0%} removed",
                    label,
                    series,
                    limits=None if gap else (0, 1.02),
                    points=gap,
                    floor=floors[rate]["gap"] if gap and rate in floors else None,
                    level=None if gap else 0.5,
                    span=SPAN,
                )
            )
    return PageFigure(
        f"past-curvatures-{title}",
        f"{title}: the same with other curvatures",
        "Leave-k-out from S alone, and expected rows. Up to half a class ε = 1 is right with expected rows over "
        "D∖S; a whole class wants a little more, which the loss along the step tells without retraining. Dotted "
        "black: the gap of two SGD seeds.",
        "",
        draw(panels, 2, width=4.4),
    )
