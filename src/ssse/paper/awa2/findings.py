"""What the paper says of AwA2, and what the numbers here say; every verdict is computed from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ssse.paper.convex import EXACT, HESSIAN, MORE, PAPER, PAPER_OUT, SEARCHED
from ssse.paper.judged_scale import START
from ssse.paper.plots import Answers, over_requests, values_of
from ssse.paper.result import Finding, Target
from ssse.paper.study import numbers
from ssse.paper.summary import at_chosen, chosen_scales, standing
from ssse.paper.verdicts import listed, of_all, percent

END = 0.1  # how near to 0.5 counts as going back to it


def findings(title: str, answers: Answers) -> list[Finding]:
    rates = sorted({a["rate"] for a in answers})
    curves = {r: over_requests(answers, "paper", r, "", values_of("ratio")) for r in rates}
    least = np.array([np.nanmin(curves[r].mean) for r in rates])
    last = np.array([curves[r].mean[np.flatnonzero(np.isfinite(curves[r].mean))[-1]] for r in rates])
    partial, whole = rates[:-1], rates[-1]
    entries = [
        Finding(
            "There is a region of ε in which δ is below 0.5.",
            f"The smallest mean δ is {listed(least)} for {percent(rates)} removed.",
            "Figure 3a",
            of_all(least < 0.5),
        ),
        Finding(
            "At full removal δ ends in a plateau, and the start of the plateau is a reasonable ε.",
            f"At the largest ε the mean δ is {last[-1]:.2f}, least {least[-1]:.2f}; at the ε of each class's least the "
            f"mean gap is {_mean(answers, PAPER, whole):.2f} points.",
            "Figure 3a",
            of_all([last[-1] <= least[-1] + START, _mean(answers, PAPER, whole) < 2]),
            ""
            if last[-1] <= least[-1] + START
            else "δ rises again: far along the step the model is destroyed, and its "
            "confusions are neither the retrained model's nor the original's. It rises later than at partial removal.",
        ),
        Finding(
            "At partial removal δ goes back towards 0.5 as ε grows.",
            f"At the largest ε {listed(last[:-1])} for {percent(partial)}, least {listed(least[:-1])}.",
            "Figure 3a",
            of_all((np.abs(last[:-1] - 0.5) <= END) & (last[:-1] > least[:-1])),
        ),
        _consistent(answers),
        _aggressive(answers),
        _regimes(answers, partial, whole),
        _leave_out(answers, rates),
        _past(answers, rates),
    ]
    return [Finding(f.paper, f"{title}: {f.found}", f.where, f.holds, f.reason) for f in entries]


def _mean(answers: Answers, method: Any, rate: float, name: str = "mean_gap") -> float:
    return float(np.nanmean(at_chosen(answers, method, rate, name)))


def _consistent(answers: Answers) -> Finding:
    rates = sorted({a["rate"] for a in answers})
    extra: dict[float, list[float]] = {rate: [] for rate in rates}
    for answer in answers:
        gaps = numbers(answer["curves"]["paper"]["mean_gap"])
        extra[answer["rate"]].append(float(gaps[standing(answer, PAPER)] - np.nanmin(gaps)))
    middle = [float(np.median(extra[rate])) for rate in rates]
    most = max(max(values) for values in extra.values())
    return Finding(
        "The ε with the smallest δ is consistent with the smallest differences in accuracy.",
        f"there the mean gap is {listed(middle)} points above the smallest possible for {percent(rates)} (medians; "
        f"at most {most:.2f}).",
        "Figures 3a and 4",
        of_all(value <= 0.5 for value in middle),
    )


def _aggressive(answers: Answers) -> Finding:
    """At the ε that suits a whole class: the paper's ε is a property of the matrix, so one is used for all."""
    scale = float(np.median(chosen_scales(answers, PAPER, 1.0)))
    less = []
    for answer in answers:
        if answer["rate"] < 1:
            curve = answer["curves"]["paper"]
            at = int(np.argmin(np.abs(numbers(curve["scales"]) - scale)))
            less.append(100 * (answer["retrained"]["forgotten"] - (curve["accuracy"]["forgotten"][at] or 0.0)))
    share = float(np.mean(np.array(less) > 0))
    return Finding(
        "SSSE removes too aggressively in partial removal.",
        f"at the ε = {scale:.2g} of a whole class its accuracy on S is below the retrained model's in {share:.0%} of "
        f"{len(less)} partial requests, by {np.mean(less):.1f} points on average.",
        "Section 5.2",
        "yes" if share >= 0.75 and np.mean(less) > 1 else "partly" if share >= 0.5 else "no",
    )


def _regimes(answers: Answers, partial: list[float], whole: float) -> Finding:
    part = float(np.median(np.concatenate([chosen_scales(answers, PAPER, r) for r in partial])))
    full = float(np.median(chosen_scales(answers, PAPER, whole)))
    return Finding(
        "The good ε differ between full and partial removal.",
        f"median ε {full:.2g} for a whole class, {part:.2g} for a part of one.",
        "Section 5.2",
        "yes" if full >= 1.25 * part or part >= 1.25 * full else "no",
    )


def _leave_out(answers: Answers, rates: list[float]) -> Finding:
    pairs = [
        [np.array([_mean(answers, m, r) for r in rates]) for m in pair]
        for pair in ((PAPER, PAPER_OUT), (HESSIAN, EXACT))
    ]
    (before, after), (hessian, exact) = pairs
    return Finding(
        "Curvature over D∖S is clearly better than over D (shown in two dimensions).",
        f"mean gap for {percent(rates)}: SSSE {listed(before)} points over D, {listed(after)} over D∖S, each at its "
        f"smallest δ; expected rows at ε = 1 {listed(hessian)} over D, {listed(exact)} over D∖S.",
        "Figure 1",
        of_all(np.concatenate([after < before, exact < hessian])),
        "" if (after < before).all() else "With empirical rows ε makes up for most of what leaving out brings.",
    )


def _past(answers: Answers, rates: list[float]) -> Finding:
    blocks, exact, searched, paper = (
        np.array([_mean(answers, m, r) for r in rates]) for m in (MORE, EXACT, SEARCHED, PAPER)
    )
    lost = [rate for rate, mine, theirs in zip(rates, searched, paper, strict=True) if mine > theirs]
    return Finding(
        "ε must be chosen with a retrained model.",
        f"mean gap for {percent(rates)}: {listed(paper)} points by the paper's rule; with expected rows over D∖S at "
        f"ε = 1 {listed(blocks)} a block a class and {listed(exact)} all classes together, {listed(searched)} at the "
        "ε of the loss along the step: neither needs a retrained model.",
        "Section 4",
        "no" if (searched <= paper).all() else "partly",
        "Expected rows have the scale of the Hessian; what is left is told by the loss on samples that stay."
        + (f" Not for {percent(lost)}, where one step falls short." if lost else ""),
    )


def targets(sets: list[dict[str, Any]]) -> list[Target]:
    """Mean split gap of at most 0.4 points on half a class of pets."""
    entries = []
    for one in sets:
        if one["title"] == "pets":
            gaps, floor = at_chosen(one["answers"], EXACT, 0.5, "mean_gap"), one["floors"]["0.5"]["gap"]
            measured = f"{np.mean(gaps):.2f} on average over {len(gaps)} classes ({gaps.min():.2f} to {gaps.max():.2f})"
            entries.append(
                Target(
                    "mean gap on half a class of pets, expected rows over D∖S, all classes together, ε = 1",
                    "at most 0.4 points",
                    f"{measured}; two seeds {floor:.2f}",
                    bool(np.mean(gaps) <= 0.4),
                )
            )
    return entries
