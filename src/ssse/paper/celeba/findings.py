"""What the paper says of CelebA, and what the numbers here say; every verdict is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssse.paper.convex import EXACT, HESSIAN, MORE, PAPER, PAPER_OUT
from ssse.paper.plots import Answers, over_requests, values_of
from ssse.paper.result import Finding, Target
from ssse.paper.study import differences, numbers
from ssse.paper.summary import at_chosen, chosen_scales, standing
from ssse.paper.verdicts import listed, of_all, percent


def findings(answers: Answers, own: Sequence[Mapping[str, Any]]) -> list[Finding]:
    rates = sorted({a["rate"] for a in answers})
    ratio = {r: over_requests(answers, "paper", r, "", values_of("ratio"), mark=True) for r in rates}
    distance = {r: over_requests(answers, "paper", r, "", values_of("distance")) for r in rates}
    top = np.array([np.nanmax(ratio[r].mean) for r in rates])
    best = np.array([ratio[r].chosen or np.nan for r in rates])
    nearest = np.array([distance[r].scales[np.nanargmin(distance[r].mean)] for r in rates])
    hessian = np.array([np.nanmean(at_chosen(answers, HESSIAN, r, "ratio")) for r in rates])
    whole = max(rates)
    return [
        Finding(
            "The largest mean γ over ε is above 0.8 for every removal rate.",
            f"Between {top.min():.3f} and {top.max():.3f} over the rates.",
            "Figure 2a",
            of_all(top > 0.8),
        ),
        Finding(
            "The influence update with the Hessian reaches a γ close to 0.9, slightly above SSSE's, and needs no ε.",
            f"{listed(hessian)} at ε = 1 for {percent(rates)} removed, SSSE at its best ε {listed(top)}.",
            "Section 5.1, influence functions",
            of_all([*(hessian >= 0.84), *(hessian >= top)]),
            ""
            if (hessian >= top).all()
            else "Where much is removed, the Hessian over D falls short: S is still in it.",
        ),
        Finding(
            "The peak of γ is close to the minimum of the parameter distance, at slightly smaller ε.",
            f"argmax γ at {listed(best)}, argmin distance at {listed(nearest)} for {percent(rates)}.",
            "Figure 2b",
            of_all((best <= nearest) & (nearest <= 4 * best)),
        ),
        _consistency(answers),
        Finding(
            "The best ε is close to 1: empirical FIM and Hessian have a similar scale here.",
            f"The mean γ is largest at ε = {listed(best)}.",
            "Section 5.1",
            of_all((best >= 0.5) & (best <= 2)),
        ),
        _distance(answers, whole),
        _recognised(own),
        _aggressive(own),
        _leave_out(answers, rates),
    ]


def _consistency(answers: Answers) -> Finding:
    scales = chosen_scales(answers, PAPER)
    middle = float(np.median(scales))
    share = float(np.mean((scales >= middle / 2) & (scales <= 2 * middle)))
    return Finding(
        "The best ε is fairly consistent over attributes and removal rates: a property of the empirical FIM.",
        f"Median {middle:.2g}; {share:.0%} of {len(scales)} requests lie within a factor of two of it "
        f"({scales.min():.2g} to {scales.max():.2g} in all).",
        "Figure 2a",
        "yes" if share >= 0.9 else "partly" if share >= 0.6 else "no",
    )


def _distance(answers: Answers, whole: float) -> Finding:
    distance = float(np.nanmean(at_chosen(answers, PAPER, whole, "distance")))
    ours = float(np.nanmean(at_chosen(answers, EXACT, whole, "distance")))
    return Finding(
        "At full removal the normalised distance stays close to 0.5: SSSE is as far from θ₋S as from θ*.",
        f"{distance:.2f} on average at argmax γ; {ours:.2f} with expected rows over D∖S at ε = 1.",
        "Figure 2b",
        "yes" if abs(distance - 0.5) <= 0.1 else "no",
    )


def _recognised(own: Sequence[Mapping[str, Any]]) -> Finding:
    whole = [entry for entry in own if entry["rate"] == 1.0]
    hessian, paper, twice, ours, retrained = (
        float(np.mean([entry[name] for entry in whole]))
        for name in ("hessian", "paper", "paper_twice", "exact", "retrained")
    )
    return Finding(
        "At full removal the influence update still predicts some of the removed attributes; SSSE, with its ε, can "
        "remove them all.",
        f"The removed attribute is still predicted for {hessian:.1%} of S by the influence update, {paper:.1%} by "
        f"SSSE at argmax γ and {twice:.1%} at twice that ε, {ours:.1%} by expected rows over D∖S at ε = 1, "
        f"{retrained:.1%} by the retrained model.",
        "Section 5.1, influence functions",
        of_all([hessian > 0.01, paper < hessian, twice < 0.01]),
    )


def _aggressive(own: Sequence[Mapping[str, Any]]) -> Finding:
    half = [entry for entry in own if entry["rate"] < 1.0]
    share = float(np.mean([entry["paper"] < entry["retrained"] for entry in half]))
    paper, retrained = (float(np.mean([entry[name] for entry in half])) for name in ("paper", "retrained"))
    return Finding(
        "In partial removal SSSE mis-classifies the removed attribute more aggressively than the retrained model.",
        "Half of it removed, SSSE at argmax γ predicts the attribute for fewer samples of S than the retrained "
        f"model in {share:.0%} of {len(half)} requests: for {paper:.1%} of S on average, the retrained model for "
        f"{retrained:.1%}.",
        "Section 5.1, Table 1",
        "yes" if share >= 0.75 else "partly" if share >= 0.5 else "no",
        "" if share >= 0.5 else "γ is largest at ε = 1 at every rate, which is not too much for a part.",
    )


def _leave_out(answers: Answers, rates: list[float]) -> Finding:
    def mean(method):
        return np.array([np.nanmean(at_chosen(answers, method, r, "ratio")) for r in rates])

    before, after = mean(PAPER), mean(PAPER_OUT)
    hessian, more, exact = mean(HESSIAN), mean(MORE), mean(EXACT)
    return Finding(
        "Curvature over D∖S is clearly better than over D (shown in two dimensions).",
        f"γ for {percent(rates)}: SSSE at its best ε {listed(before)} over D, {listed(after)} over D∖S; Hessian at ε "
        f"= 1 {listed(hessian)} over D, {listed(more)} over D∖S with the damping nλ, {listed(exact)} with (n−k)λ.",
        "Figure 1",
        of_all([*(after > before), *(more > hessian)]),
        "" if (after > before).all() else "With empirical rows ε makes up for part of what leaving out brings.",
    )


def targets(answers: Answers, shown: tuple[str, ...]) -> list[Target]:
    """γ ≥ 0.98 on the faces at ε = 1."""
    entries = []
    for method, what in ((EXACT, "expected rows over D∖S, damping (n−k)λ"), (MORE, "the same with damping nλ")):
        some = [a for a in answers if a["kind"] in shown and a["rate"] in (0.5, 1.0)]
        gammas = np.array([numbers(a["curves"][method.key]["ratio"])[standing(a, method)] for a in some])
        every = np.concatenate([at_chosen(answers, method, r, "ratio") for r in {a["rate"] for a in answers}])
        entries.append(
            Target(
                f"γ at ε = 1, {what}",
                "at least 0.98",
                f"{gammas.min():.3f} at least for {' and '.join(shown)} at 50 and 100 %; mean over all requests "
                f"{np.nanmean(every):.3f}, least {np.nanmin(every):.3f}",
                bool(gammas.min() >= 0.98),
                ""
                if gammas.min() >= 0.98
                else "training without S has the damping (n−k)w, and nλ is larger; see the line above",
            )
        )
    gaps = [differences(a["curves"]["exact"], "forgotten", a["retrained"])[standing(a, EXACT)] for a in answers]
    entries.append(
        Target(
            "accuracy on S, difference to retrained at ε = 1",
            "at most 0.2 points on average",
            f"{np.mean(gaps):.3f}",
            bool(np.mean(gaps) <= 0.2),
        )
    )
    return entries
