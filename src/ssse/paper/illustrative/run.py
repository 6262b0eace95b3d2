"""The paper's Figure 1 and Proposition 1: what the curvature over D∖S is worth, and when F̂ stands for the Hessian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ssse.paper.illustrative import drawing, proposition
from ssse.paper.illustrative import removals as removing
from ssse.paper.illustrative.removals import METHODS, REMOVALS
from ssse.paper.result import Finding, Result
from ssse.paper.settings import Settings
from ssse.rendering.document import PageFigure, PageTable

DRAWS = 50
PICTURED = ("one", "group")  # the paper's two; the other removals are controls, which nobody arranged
PAIRS = {  # the same update with the curvature over D and over D∖S
    "influence": ("influence_all", "influence_rest"),
    "SSSE, best ε": ("ssse_all", "ssse_rest"),
    "SSSE, ε fixed before": ("ssse_all_fixed", "ssse_rest_fixed"),
}
CLEARLY = 0.75  # of the draws must be nearer to the retrained model, and
LOWER = 0.9  # the mean distance at most this share of the other's
SIMILAR = 0.5  # of the points that retraining moves over the boundary: fewer than these may fall between two boundaries
KEPT = ("scale", "distance", "angle", "offset", "kl", "disagreement", "from_influence", "angle_from_influence")
Draws = Mapping[str, Mapping[str, Mapping[str, Any]]]


def run(settings: Settings) -> Result:
    """Needs no data, and is as large as the paper's in any case."""
    with _one_thread():
        numbers, plane, removals = measure(settings)
        theory = proposition.measure_proposition(settings.seed)
    draws, picture = numbers["draws"], numbers["picture"]
    n = 2 * removing.PER_CLASS
    return Result(
        experiment="illustrative",
        title="An example in the plane, and when the empirical Fisher matrix is the Hessian",
        form="full",
        data=[
            f"Two Gaussians: {removing.PER_CLASS} points a class, unit covariance, means {removing.SEPARATION:g} apart "
            f"along x₁; one point of class 1 is put at {removing.OUTLIER}. Logistic regression with a bias, 3 "
            f"parameters, weight decay {removing.DECAY:g}, trained to stationarity."
        ],
        differs=[
            "The paper does not say which points it drew, nor with which ε; ours are drawn anew. The design was chosen "
            "by looking: of some fifteen (where the outlier lies, how many points, how far apart) one in which the "
            "lines can be told apart. The seed was not chosen.",
            f"So everything is measured over {DRAWS} draws as well, with two controls that nobody arranged: random "
            "samples of a class, and, where no outlier is placed, the sample of class 1 farthest on the other side.",
        ],
        figures=[
            PageFigure(
                "illustrative-boundaries",
                "Decision boundaries after removing one sample, and several",
                f"Logistic regression on {n} points; D: all points, S: the removed ones (large and transparent). "
                "Boundaries of the original model θ*, of the one retrained without S, and of single-step updates with "
                "the Hessian H (influence) or the empirical Fisher matrix F̂ (SSSE), over D or over D∖S. Narrow panels: "
                "how far to the side of the retrained boundary the others lie, at every height x₂. The best ε is the "
                "one that brings SSSE's parameters nearest to the retrained ones. The default of ssse (expected rows, "
                "D∖S, ε = 1) is the influence update over D∖S, without needing D. In (a) SSSE's lines nearly agree.",
                "Figure 1",
                drawing.boundary_figure(plane, {name: removals[name] for name in PICTURED}),
            ),
            PageFigure(
                "illustrative-draws",
                f"The same over {DRAWS} draws of the data",
                "Distance ‖θ̂−θ₋S‖/‖θ*−θ₋S‖ to the retrained model. Faint: one draw each; bold: mean and standard "
                "deviation over the draws; what lies beyond the axis is drawn at its end. Best ε: chosen with the "
                "retrained model of this very request. ε fixed before: chosen in the same way, but on the removal of a "
                "random tenth of the data, and then kept. The two panels on the right are controls.",
                "",
                drawing.draws_figure(draws),
            ),
            proposition.draw(theory),
        ],
        tables=[picture_table(picture), draws_table(draws), *proposition.tables(theory)],
        findings=[judge_leave_out(draws), judge_similar(draws), *proposition.judge(theory)],
        notes=[
            "One removed sample has one row, which points along its gradient, in F̂ and in H alike; so (M − rrᵀ)⁻¹g = "
            "M⁻¹g/(1−rᵀM⁻¹r) up to the weight decay: leaving it out makes the step longer and does not turn it. An ε "
            "that is chosen for each curvature hides the difference.",
            f"'Clearly better' is: nearer to the retrained model in {100 * CLEARLY:.0f} % of the draws, with a mean "
            f"distance lower by {100 * (1 - LOWER):.0f} %. 'Similar' is: between the two boundaries lie fewer than "
            f"{SIMILAR:g} of the new points that retraining moves across, by more than two standard errors.",
        ],
        numbers={"design": numbers["design"], "picture": picture, "draws": draws, "proposition": theory},
        seed=settings.seed,
    )


def measure(settings: Settings) -> tuple[dict[str, Any], removing.Plane, dict[str, removing.Removal]]:
    """All draws; the first is the one that is drawn."""
    rows: list[dict[str, dict[str, dict[str, Any]]]] = []
    first: tuple[removing.Plane, dict[str, removing.Removal]] | None = None
    for index in settings.each(range(DRAWS), "illustrative", lambda i: f"draw {i + 1}"):
        plane = removing.draw_plane(settings.seed, index)
        chosen = removing.choose_removals(plane, settings.seed, index)
        removals = removing.measure_draw(plane, chosen, settings.seed, index)
        rows.append({name: removing.all_measures(removal, plane) for name, removal in removals.items()})
        plain = removing.draw_plane(settings.seed, index, placed=False)
        deepest = removing.measure_draw(plain, removing.choose_deepest(plain), settings.seed, index)
        rows[-1] |= {name: removing.all_measures(removal, plain) for name, removal in deepest.items()}
        first = first or (plane, removals)
    assert first is not None
    methods = ("original", *METHODS)
    draws = {
        name: {
            method: {key: [row[name][method][key] for row in rows] for key in KEPT if key in rows[0][name][method]}
            for method in methods
        }
        for name in REMOVALS
    }
    design = {
        "per_class": removing.PER_CLASS,
        "separation": removing.SEPARATION,
        "weight_decay": removing.DECAY,
        "outlier": list(removing.OUTLIER),
        "group": removing.GROUP,
        "draws": DRAWS,
    }
    return {"design": design, "picture": rows[0], "draws": draws}, *first


def judge_leave_out(draws: Draws) -> Finding:
    """Clearly better: nearer in three of four draws, and by a tenth on average."""
    clear: dict[str, list[bool]] = {}
    words, controls, held = [], [], []
    for pair, (everything, rest) in PAIRS.items():
        said, beside = [], []
        for name in REMOVALS:
            before, after = (np.array(draws[name][method]["distance"]) for method in (everything, rest))
            wins = float((after < before).mean())
            line = f"{before.mean():.2f} → {after.mean():.2f} ({REMOVALS[name]}, nearer in {100 * wins:.0f} %)"
            (said if name in PICTURED else beside).append(line)
            better = bool(wins >= CLEARLY and after.mean() <= LOWER * before.mean())
            if name in PICTURED:
                clear.setdefault(pair, []).append(better)
            elif better:
                held.append(f"{pair} ({REMOVALS[name]})")
        words.append(f"{pair}: {', '.join(said)}")
        controls.append(f"{pair}: {', '.join(beside)}")
    influence, best, fixed = (all(clear[pair]) for pair in PAIRS)
    holds = "yes" if influence and best else "partly" if influence or best or fixed else "no"
    reason = ""
    if holds != "yes":
        yes, no = ([pair for pair in PAIRS if all(clear[pair]) == wanted] for wanted in (True, False))
        reason = f"Clearly better for {'; '.join(yes) or 'none'}. Not for {'; '.join(no)}. In the "
        reason += f"controls, which nobody arranged, clearly better for {'; '.join(held) or 'none'} alone."
        if influence and not best:
            reason += (
                " For one sample the curvature over D∖S changes the length of SSSE's step alone, which its own best ε "
                "makes up for; where ε is fixed before, or 1 as with the Hessian, the length counts."
            )
    return Finding(
        "For both the influence update and SSSE the curvature over D∖S is clearly better",
        f"Mean distance over {_count(draws)} draws, D → D∖S. {'. '.join(words)}. Controls: {'. '.join(controls)}.",
        "Figure 1",
        holds,
        reason,
    )


def judge_similar(draws: Draws) -> Finding:
    """Similar: between SSSE's boundary and the Hessian's lie few of the points that retraining moves across."""
    similar: list[bool] = []
    words = []
    for place, over in (("all", "D"), ("rest", "D∖S")):
        for name in PICTURED:
            moved, update = np.array(draws[name]["original"]["disagreement"]), draws[name][f"ssse_{place}"]
            apart, turned = (np.array(update[key]) for key in ("from_influence", "angle_from_influence"))
            above = apart - SIMILAR * moved
            doubt = 2 * above.std() / np.sqrt(len(above))  # two standard errors: a mean at the bound decides nothing
            similar.append(bool(above.mean() + doubt < 0))
            words.append(
                f"over {over}, {REMOVALS[name]}: {apart.mean():.1f} % of new points fall between the two "
                f"({turned.mean():.1f}°), where retraining moves {moved.mean():.1f} %"
            )
    scales = [np.array(draws[name]["ssse_all"]["scale"]) for name in PICTURED]
    before = np.array(draws[PICTURED[0]]["ssse_all_fixed"]["scale"])
    right = (
        f"The best ε over D is {np.median(scales[0]):.1f} for {REMOVALS['one']}, {np.median(scales[1]):.1f} for "
        f"{REMOVALS['group']} and {np.median(before):.1f} for a random tenth (medians)"
    )
    return Finding(
        "With the right ε, SSSE's boundary is similar to that of the Hessian",
        f"Means over {_count(draws)} draws: {'; '.join(words)}. {right}.",
        "Figure 1",
        "yes" if all(similar) else "partly" if any(similar) else "no",
        ""
        if all(similar)
        else "Where not clearly fewer than half as many points lie between, SSSE's best step points elsewhere.",
    )


def picture_table(picture: Draws) -> PageTable:
    rows: list[list[str | float | None]] = []
    for name in PICTURED:
        for method in ("original", *METHODS):
            values = picture[name][method]
            scale = None if method == "original" else values["scale"]
            label = METHODS.get(method, "original, nothing erased")
            rows.append([REMOVALS[name], label, scale, *(values[key] for key in KEPT[1:6])])
    return PageTable(
        "The picture in numbers: differences to the retrained model",
        ["removed", "method", "ε", "distance", "angle, °", "offset", "KL on S", "points between, %"],
        rows,
        "Figure 1",
        "distance: ‖θ̂−θ₋S‖/‖θ*−θ₋S‖; angle: of the boundaries' normals; offset: difference of the boundaries' "
        "distances from the origin; KL of the predictions on S from the retrained model's, in nats; points between: of "
        "new points of both classes, those on different sides of the two boundaries.",
    )


def draws_table(draws: Draws) -> PageTable:
    rows: list[list[str | float]] = []
    for name in REMOVALS:
        for pair, (everything, rest) in PAIRS.items():
            before, after = (np.array(draws[name][method]["distance"]) for method in (everything, rest))
            scales = [f"{np.median(draws[name][method]['scale']):.3g}" for method in (everything, rest)]
            cells = [f"{values.mean():.3f} ± {values.std():.3f}" for values in (before, after)]
            rows.append([REMOVALS[name], pair, " / ".join(scales), *cells, 100 * float((after < before).mean())])
    return PageTable(
        f"Distance to the retrained model over {_count(draws)} draws of the data",
        ["removed", "update", "median ε, D / D∖S", "curvature over D", "over D∖S", "D∖S nearer, % of draws"],
        rows,
        "Figure 1",
        "Mean ± standard deviation of ‖θ̂−θ₋S‖/‖θ*−θ₋S‖. The default of ssse is the influence update over D∖S.",
    )


def _count(draws: Draws) -> int:
    return len(draws[PICTURED[0]]["original"]["distance"])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices of three rows: two threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
