"""How forms, verdicts and rows of the summary are written, the same in Markdown and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

from ssse.paper.experiments import EXPERIMENTS, PAST
from ssse.paper.result import Finding, Form, SummaryRow
from ssse.rendering.numbers import NOTHING, shown

VERDICTS = {"yes": "✔ yes", "partly": "◐ partly", "no": "✘ no"}  # a sign and a word: readable without colour
MET = {True: "✔ met", False: "✘ not met"}
SUMMARY_COLUMNS = (
    "method",
    "ε",
    "mean gap ± spread, points",
    "γ or δ",
    "distance",
    "erase, s",
    "retrain, s",
    "reads",
)
SUMMARY_MEANING = (
    "Mean gap: the mean absolute difference in accuracy to the retrained model over the four splits, with its standard "
    "deviation over the requests. γ: 1 = retrained; δ: 0 = retrained. Distance: in parameters, 0 = retrained, 1 = the "
    "original model. Reads: what the method needs when a request comes, S the samples to forget, D the training data."
)


def form_label(form: Form, stand_in: bool) -> str:
    if form == "full":
        return "At full size"
    if form == "large":
        return "With a larger network"
    if form == "classes":
        return "A small network, class by class"
    if stand_in:
        return "Small form on scikit-learn's digits: not the paper's data"
    return "Small form: not the paper's experiment at its full size"


def claims(experiment: str) -> str:
    """Over the first column of the findings: whose words they are."""
    known = EXPERIMENTS.get(experiment)
    return "the claim" if known is not None and known.paper == PAST else "the paper says"


def beside(paper: str) -> str:
    return f"Stands beside {paper} of the paper" if paper else "Past the paper"


def finding_text(finding: Finding) -> str:
    return finding.found + (f" Why: {finding.reason}" if finding.reason else "")


def summary_cells(row: SummaryRow) -> list[str]:
    gap = NOTHING if _missing(row.gap) else f"{row.gap:.2f}"
    if not _missing(row.gap) and not _missing(row.gap_spread):
        gap += f" ± {row.gap_spread:.2f}"
    ratio = NOTHING if _missing(row.ratio) else f"{row.ratio_name} {row.ratio:.3f}"
    seconds = (shown(row.erase_seconds, 3), shown(row.retrain_seconds, 3))
    return [row.method, row.scale or NOTHING, gap, ratio, shown(row.distance, 3), *seconds, row.needs]


def by_request(rows: Iterable[SummaryRow]) -> list[tuple[str, list[SummaryRow]]]:
    """Rows of one data set and removal rate together, in the order in which each pair first came."""
    first: dict[tuple[str, str], int] = {}
    entries = [(first.setdefault((row.data, row.removed), len(first)), row) for row in rows]
    entries.sort(key=lambda entry: entry[0])
    groups = [[row for _, row in group] for _, group in groupby(entries, key=lambda entry: entry[0])]
    return [(f"{group[0].data}, {group[0].removed}" if group[0].removed else group[0].data, group) for group in groups]


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
