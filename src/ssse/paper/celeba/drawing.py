"""Figure 2 of the paper, and past it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssse.paper.convex import EXACT, HESSIAN, MORE, PAPER, PAPER_OUT
from ssse.paper.plots import Answers, Panel, differences_on, draw, over_requests, split_panels, values_of
from ssse.rendering.document import PageFigure

RATIO = "similarity ratio γ (1 = retrained)"
DISTANCE = "normalised parameter distance"
BEYOND = (PAPER, PAPER_OUT, HESSIAN, MORE, EXACT)
SPAN = (0.05, 20)  # outside, every curve is flat
BAND = "Mean over the attributes, band: one standard deviation. A star marks the best mean."


def drawings(answers: Answers, floors: Mapping[float, Mapping[str, Any]]) -> list[PageFigure]:
    rates = sorted({a["rate"] for a in answers})
    ratio = [over_requests(answers, "paper", r, f"{r:.0%} removed", values_of("ratio"), mark=True) for r in rates]
    distance = [over_requests(answers, "paper", r, f"{r:.0%} removed", values_of("distance")) for r in rates]
    figures = [
        PageFigure(
            "figure-2",
            "γ and parameter distance against ε, the paper's update",
            "The update of Definition 3.1: empirical rows, curvature over D, λ = L2 = 1e-4. (a) the similarity "
            f"ratio γ on the removed samples, dotted at 0.5; (b) the normalised parameter distance. {BAND}",
            "Figure 2",
            draw(
                [
                    Panel("(a)", RATIO, ratio, limits=(0, 1.02), level=0.5, span=SPAN),
                    Panel("(b)", DISTANCE, distance, limits=(0, 1.02), level=0.5, span=SPAN),
                ],
                2,
                width=4.2,
            ),
        )
    ]
    whole, part = max(rates), min(rates, key=lambda r: abs(r - 0.5))
    panels = [
        Panel(
            f"{rate:.0%} removed",
            label if rate == whole else "",
            [over_requests(answers, m.key, rate, _short(m.label), values_of(name)) for m in BEYOND],
            limits=(0, 1.02),
            level=0.5,
            span=SPAN,
        )
        for name, label in (("ratio", RATIO), ("distance", DISTANCE))
        for rate in (whole, part)
    ]
    figures.append(
        PageFigure(
            "past-curvatures",
            "The same with other curvatures: leave-k-out, and expected rows",
            "Expected rows over D are the Hessian, the paper's influence update. Leaving out S needs S alone. The "
            "damping (n−k)λ is that of the retrained model's own objective, which ends nearest to it at ε = 1, "
            "where nobody had to choose.",
            "",
            draw(panels, 2, width=4.2),
        )
    )
    panels = split_panels(
        lambda split: [over_requests(answers, m.key, whole, _short(m.label), differences_on(split)) for m in BEYOND],
        floor=floors[whole]["gap"] if whole in floors else None,
        span=SPAN,
    )
    figures.append(
        PageFigure(
            "past-accuracies",
            f"Accuracy differences to the retrained model, {whole:.0%} of an attribute removed",
            "On the training samples that stay (D∖S), those removed (S), and the test samples without (T∖T_a) and with "
            "(T_a) the attribute. Linear up to one point, logarithmic above. Dotted: the mean gap of two SGD seeds.",
            "",
            draw(panels, 4, width=2.9),
        )
    )
    return figures


def _short(label: str) -> str:
    """Of a curve against ε: its ε is on the axis."""
    return label.replace(", ε = 1", "").replace("the same with", "expected,")
