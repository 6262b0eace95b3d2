"""The study as tables, and as rows of the summary over all experiments."""

from __future__ import annotations

from typing import Any

import numpy as np

from ssse.paper.lasting.jobs import NOTHING, OURS, PUSHED, RETRAINED
from ssse.paper.lasting.plans import OPPONENTS
from ssse.paper.lasting.view import (
    SPLITS,
    WAYS,
    Numbers,
    answers_of,
    floor,
    kinds,
    mean,
    pressed,
    requests_of,
    rises,
    values,
)
from ssse.paper.result import SummaryRow
from ssse.rendering.document import PageTable


def tables(numbers: Numbers) -> list[PageTable]:
    found = [_methods(numbers, rate, words) for rate, words in kinds(numbers).items()]
    found += [four for rate, words in kinds(numbers).items() if rate < 0.5 and (four := _four(numbers, rate, words))]
    found += [_ours(numbers), *_opponents(numbers), _cost(numbers)]
    found += [_further(numbers)] if numbers.get("further") else []
    return found + ([_attacks(numbers)] if numbers["attacked"] else [])


def summary_rows(numbers: Numbers) -> list[SummaryRow]:
    rows = []
    data = f"{numbers['title']}, {numbers['parameters']:,} parameters"
    for rate, removed in kinds(numbers).items():
        for method, way, label, group in WAYS:
            gaps = values(numbers, method, way, rate, "gap")
            if not len(gaps):
                continue
            scale = "–" if method != OURS else _lengths(numbers, rate)
            spread = float(np.std(gaps)) if len(gaps) > 1 else None
            needs = "S" if way == "alone" and group in ("paper", "ours") else "–" if group == "floor" else "S and D"
            rows.append(_row(data, removed, label, scale, float(np.mean(gaps)), spread, needs, group))
        least = floor(numbers, rate)
        if least is not None:
            rows.append(_row(data, removed, "noise floor: two retrained seeds", "–", least, None, "–", "floor"))
    return rows


def _row(
    data: str, removed: str, label: str, scale: str, gap: float, spread: float | None, needs: str, group: str
) -> SummaryRow:
    return SummaryRow(data, removed, label, scale, gap, spread, "", None, None, None, None, needs, group)


def _lengths(numbers: Numbers, rate: float) -> str:
    lengths = [one["length"] for one in answers_of(numbers, OURS, rate)]
    low, high = min(lengths), max(lengths)
    return f"{low:g} ‖θ‖" if low == high else f"{low:g}–{high:g} ‖θ‖"


def _methods(numbers: Numbers, rate: float, removed: str) -> PageTable:
    rows: list[list[Any]] = []
    for method, way, label, _ in WAYS:
        gap = mean(numbers, method, way, rate)
        if gap is None:
            continue
        count = len(values(numbers, method, way, rate, "gap"))
        shares = [mean(numbers, method, way, rate, split) for split, _ in SPLITS]
        rise = rises(numbers, method, rate) if way == "repaired" else []
        rows.append(
            [
                label,
                count,
                gap,
                *shares,
                mean(numbers, method, way, rate, "kl"),
                mean(numbers, method, way, rate, "auc"),
                float(np.mean(rise)) if rise else None,
            ]
        )
    rows += _among_the_others(numbers, rate)
    shares = [mean(numbers, RETRAINED, "alone", rate, split) for split, _ in SPLITS]
    rise = rises(numbers, RETRAINED, rate)
    count = len(values(numbers, RETRAINED, "alone", rate, "gap"))
    auc = mean(numbers, RETRAINED, "alone", rate, "auc")
    rows.append(["retrained", count, 0.0, *shares, 0.0, auc, float(np.mean(rise)) if rise else None])
    least = floor(numbers, rate)
    if least is not None:
        divergence = floor(numbers, rate, "floors_kl")
        rows.append(["two retrained seeds", None, least, *[None] * len(SPLITS), divergence, None, None])
    columns = ("method", "networks", "gap", *(f"{name}, %" for _, name in SPLITS), "KL on S", "attack AUC", "rise of S")
    note = (
        "Means over requests and seeds. Gap and rise in points; rise: of the accuracy on S in 8 further epochs on D∖S "
        "after the repair, at half its rate. KL to the retrained network in nats. Attack: S against test samples of "
        "its kind, by the confidence; 0.5 is blind."
    )
    return PageTable(f"Removed: {removed}", columns, rows, note=note)


def _ours(numbers: Numbers) -> PageTable:
    rows = []
    for rate in kinds(numbers):
        for words in requests_of(numbers, rate):
            for seed, found in numbers["answers"][OURS].items():
                one = found[words]
                before = numbers["answers"][NOTHING][seed][words]["alone"]["gap"]
                moments = one.get("moments") or []
                rise = moments[-1]["accuracy"] - moments[0]["accuracy"] if moments else None
                tried = "; ".join(map(_trial, one["trials"]))
                repaired, least = one["repaired"], numbers["floors"].get(words)
                rows.append(
                    [
                        words,
                        int(seed),
                        before,
                        f"{one['damping']:g}",
                        one["length"],
                        tried,
                        repaired["gap"],
                        least,
                        rise,
                        pressed(one),
                        pressed(numbers["answers"][RETRAINED][seed][words]),
                    ]
                )
    columns = (
        "removed",
        "seed",
        "gap before",
        "λ",
        "length over ‖θ‖",
        "shortfall by λ, length",
        "gap",
        "two seeds",
        "rise of S",
        "at the repair's rate",
        "retrained there",
    )
    note = (
        "Shortfall: the gap as S, held-out and retained samples tell it, in points; the smallest decides. In brackets, "
        "where it is known: the gap that this length came to, in hindsight. Rise of S: "
        "in 8 further epochs on D∖S at half the rate of the repair; then at all of it, ours and the retrained network."
    )
    return PageTable("Ours, request by request: the curves that each step was chosen from", columns, rows, note=note)


def _among_the_others(numbers: Numbers, rate: float) -> list[list[Any]]:
    """Ours on the networks of those alone that have fewer: what stands beside theirs."""
    answered = [o.key for o in OPPONENTS if len(values(numbers, o.key, "repaired", rate, "gap"))]
    others = [(key, "ours, on the opponents' networks alone") for key in answered[:1]]
    others.append((PUSHED, "ours, on the networks of √(1−p) alone"))
    rows, names = [], ("gap", *(split for split, _ in SPLITS), "kl", "auc")
    for other, label in others:
        count = len(values(numbers, OURS, "repaired", rate, "gap", like=other))
        if count and count < len(values(numbers, OURS, "repaired", rate, "gap")):
            found = [mean(numbers, OURS, "repaired", rate, name, like=other) for name in names]
            rows.append([label, count, *found, None])
    return rows


def _further(numbers: Numbers) -> PageTable:
    labels = {f"{method} {way}": label for method, way, label, _ in WAYS} | {f"{RETRAINED} alone": "retrained"}
    rows = []
    for words, by_method in numbers["further"].items():
        for name, one in by_method.items():
            gaps = np.array(one["gaps"])
            spread = [float(gaps.mean()), float(gaps.std()), float(gaps.max())] if len(gaps) else [None] * 3
            means = [float(np.mean(one[key])) if one[key] else None for key in ("forgotten", "auc")]
            rows.append([words, labels[name], len(gaps), *spread, *means])
    columns = ("removed", "method", "networks", "gap", "its spread", "largest", "S, %", "attack AUC")
    note = "Seeds beyond those above, which were not looked at before everything stood. Spread: a standard deviation."
    return PageTable("Further seeds", columns, rows, note=note)


def _trial(one: Numbers) -> str:
    told = "diverged" if one["shortfall"] is None else f"{one['shortfall']:.2f}"
    gap = f" ({one['gap']:.2f})" if one.get("gap") is not None else ""
    return f"{one['damping']:g}, {one['length']:g}: {told}{gap}"


def _four(numbers: Numbers, rate: float, removed: str) -> PageTable | None:
    """The four numbers that the papers around SalUn average, and their differences to the retrained network."""
    if not len(values(numbers, RETRAINED, "alone", rate, "unseen")):
        return None
    rows: list[list[Any]] = []
    for method, way, label, _ in (*WAYS, (RETRAINED, "alone", "retrained", "floor")):
        apart, shown = [], []
        for seed, by_request in numbers["answers"].get(method, {}).items():
            for words in requests_of(numbers, rate):
                if by_request.get(words, {}).get(way, {}).get("unseen") is not None:  # None of a destroyed network
                    own = _as_they_do(by_request[words][way])
                    wanted = _as_they_do(numbers["answers"][RETRAINED][seed][words]["alone"])
                    shown.append(own)
                    apart.append(np.abs(own - wanted).mean())
        if shown:
            rows.append([label, len(shown), *map(float, np.mean(shown, axis=0)), float(np.mean(apart))])
    columns = ("method", "networks", "UA", "RA", "TA", "MIA", "mean difference")
    note = (
        "As the papers around SalUn count, in per cent: samples of S that are wrong (UA), accuracy on D∖S (RA) and on "
        "test samples (TA), and the share of S that a threshold on the confidence, found between D∖S and test samples, "
        "takes for never trained on (MIA)."
    )
    return PageTable(f"Removed: {removed}, in four numbers", columns, rows, note=note)


def _as_they_do(one: Numbers) -> np.ndarray:
    known = one["accuracy"]
    return np.array([100 - known["forgotten"], known["retained"], known["test_same"], one["unseen"]])


def _opponents(numbers: Numbers) -> list[PageTable]:
    rows = []
    for opponent in OPPONENTS:
        if opponent.key not in numbers["answers"]:
            continue
        grid = "; ".join(", ".join(f"{name} {value:g}" for name, value in one.items()) for one in opponent.grid)
        rows.append([opponent.label, grid])
    epochs = next(iter(numbers["repair"].values()))["epochs"]
    note = f"Each for {epochs} epochs, momentum 0.9, the weight decay and the batch size of the training."
    title = "Settings that the opponents were tuned over"
    return [PageTable(title, ("method", "settings"), rows, note=note)] if rows else []


def _cost(numbers: Numbers) -> PageTable:
    whole = numbers["training"]["epochs"]
    rows = []
    for seed, told in numbers["steps"].items():
        seconds = [one["seconds"] for one in told["requests"].values()]
        residuals = [one["residual"] for one in told["requests"].values() if one["residual"] is not None]
        trials = [len(one["trials"]) for found in [numbers["answers"][OURS][seed]] for one in found.values()]
        epochs = next(iter(numbers["repair"].values()))["epochs"]
        rows.append(
            [
                int(seed),
                told["fit_seconds"],
                max(seconds),
                max(residuals, default=None),
                epochs / whole,
                float(np.mean(trials)) * epochs / whole,
                numbers["train_seconds"],
            ]
        )
    columns = (
        "seed",
        "fit, s",
        "slowest request, s",
        "largest residual",
        "repair, share of a retraining's epochs",
        "all repairs of the search, share",
        "a training, s",
    )
    note = "A training: its share of the seconds of all that ran side by side."
    return PageTable("What ours costs", columns, rows, note=note)


def _attacks(numbers: Numbers) -> PageTable:
    labels = {f"{method} {way}": label for method, way, label, _ in WAYS}
    rows = [
        [words, labels[name], one["accuracy"], one["low"], one["high"], one["models"]]
        for words, by_method in numbers["attacked"].items()
        for name, one in by_method.items()
    ]
    columns = ("removed", "method", "U-LiRA accuracy", "95 % from", "to", "networks on each side")
    note = (
        "How often a likelihood-ratio attacker tells an erased network from a retrained one by a sample; 0.5 is blind."
    )
    return PageTable("U-LiRA: erased or retrained?", columns, rows, note=note)
