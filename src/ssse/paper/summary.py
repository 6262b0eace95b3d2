"""The summary: for a data set and a removal rate one row a method, and the noise floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssse.metrics.gaps import mean_gap
from ssse.paper.judged_scale import index_of
from ssse.paper.plots import Answers
from ssse.paper.result import SummaryRow
from ssse.paper.study import Curve, Method, mean_of, numbers, spread_of, value_at


def summary_rows(
    answers: Answers, methods: Sequence[Method], data: str, floors: Mapping[float, Mapping[str, float]]
) -> list[SummaryRow]:
    """Rates from the largest down."""
    rows: list[SummaryRow] = []
    for rate in sorted({a["rate"] for a in answers}, reverse=True):
        chosen = [a for a in answers if a["rate"] == rate]
        rows.append(_nothing(chosen, data, f"{rate:.0%}"))
        for method in methods:
            having = [a for a in chosen if method.key in a["curves"]]
            # Recognised by chance only: that is for whole classes, of which nothing is left to recognise.
            if having and (method.chosen != "chance" or rate == 1.0):
                rows.append(_row(having, method, data, f"{rate:.0%}"))
        floor = floors.get(rate)
        if floor is not None:
            gap, seconds = floor["gap"], floor.get("seconds")
            rows.append(_bare(data, f"{rate:.0%}", "noise floor: two retrained seeds", gap, None, seconds))
    return rows


def standing(answer: Mapping[str, Any], method: Method) -> int:
    """The place on its curve at which a method is judged on a request."""
    return index_of(answer["curves"][method.key], method.chosen, answer["rate"] == 1.0, answer.get("chance", 0.0))


def gaps_before(answers: Answers) -> list[float]:
    """The mean gap of the original model, by request: what doing nothing costs."""
    return [100 * mean_gap(a["original"], a["retrained"]) for a in answers]


def _nothing(answers: Answers, data: str, removed: str) -> SummaryRow:
    gaps = gaps_before(answers)
    return _bare(data, removed, "the original model: nothing erased", mean_of(gaps), spread_of(gaps), None)


def _bare(
    data: str, removed: str, label: str, gap: float | None, spread: float | None, retrain_seconds: float | None
) -> SummaryRow:
    return SummaryRow(data, removed, label, "–", gap, spread, "", None, None, None, retrain_seconds, "–", "floor")


def _row(answers: Answers, method: Method, data: str, removed: str) -> SummaryRow:
    places = [(a, a["curves"][method.key], standing(a, method)) for a in answers]
    scales = np.array([numbers(curve["scales"])[place] for _, curve, place in places])
    gaps = [value_at(curve, "mean_gap", place) for _, curve, place in places]
    return SummaryRow(
        data,
        removed,
        method.label,
        scale_words(method, scales),
        mean_of(gaps),
        spread_of(gaps),
        places[0][1]["ratio_name"],
        mean_of(value_at(curve, "ratio", place) for _, curve, place in places),
        mean_of(value_at(curve, "distance", place) for _, curve, place in places),
        mean_of(seconds_of(curve, method) for _, curve, _ in places),
        mean_of(a["retrain_seconds"] for a, _, _ in places),
        method.needs,
        method.group,
    )


def seconds_of(curve: Curve, method: Method) -> float:
    """Of the step, and of the search for its ε where there is one."""
    return curve["seconds"] + (curve.get("search_seconds", 0.0) if method.chosen == "searched" else 0.0)


def note_on_search(answers: Answers, key: str) -> list[str]:
    """For runs that did not time it."""
    if all("search_seconds" in answer["curves"][key] for answer in answers):
        return []
    return ["The seconds of the search for ε itself, a dozen passes over 4,096 samples, are not in the table."]


def scale_words(method: Method, scales: np.ndarray) -> str:
    """ε, its range over the requests, and where it comes from."""
    if isinstance(method.chosen, float):
        return "–" if method.group == "baseline" else f"{method.chosen:g}"
    low, high = float(scales.min()), float(scales.max())
    spread = f"{low:.2g}" if low == high else f"{low:.2g}–{high:.2g}"
    how = {"ratio": "best ratio", "gap": "best gap", "chance": "from S"}.get(str(method.chosen), "search")
    return f"{spread}, {how}"


def at_chosen(answers: Answers, method: Method, rate: float, name: str) -> np.ndarray:
    """A value of the curve where the method stands, for every request at a rate."""
    values = []
    for answer in answers:
        if answer["rate"] == rate and method.key in answer["curves"]:
            curve = answer["curves"][method.key]
            values.append(value_at(curve, name, standing(answer, method)))
    return np.array(values)


def chosen_scales(answers: Answers, method: Method, rate: float | None = None) -> np.ndarray:
    scales = []
    for answer in answers:
        if rate in (None, answer["rate"]) and method.key in answer["curves"]:
            curve = answer["curves"][method.key]
            scales.append(numbers(curve["scales"])[standing(answer, method)])
    return np.array(scales)
