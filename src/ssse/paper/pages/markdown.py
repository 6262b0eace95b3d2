"""A result as Markdown: what a reader without a browser sees, and the page of one folder on a code host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ssse.paper.pages import labels
from ssse.paper.result import Finding, Result, SummaryRow, Target
from ssse.rendering import numbers
from ssse.rendering.document import Cell, PageTable

_SPECIAL = re.compile(r"[\\|*<>\[\]~]|(?<![^\W_])_|_(?![^\W_])")


def tables(result: Result) -> str:
    """Everything but the raw numbers: figures, targets, findings, tables, summary, notes."""
    parts = [f"# {escape(result.title)}", f"**{escape(labels.form_label(result.form, result.stand_in))}.**"]
    parts += [_list(result.data), _list(f"Differs from the paper's: {line}" for line in result.differs)]
    parts += section("Targets", targets(result.targets)) + section(
        "Findings", findings(result.findings, result.experiment)
    )
    if result.figures:
        parts.append("## Figures")
    for figure in result.figures:
        about = f"{labels.beside(figure.paper)}. {figure.caption}"
        parts += [f"### {escape(figure.title)}", f"![{escape(figure.title)}]({figure.name}.svg)", escape(about)]
    if result.tables:
        parts.append("## Tables")
    for entry in result.tables:
        about = f"{labels.beside(entry.paper)}. {entry.note}".strip()
        parts += [f"### {escape(entry.title)}", page_table(entry), escape(about)]
    parts += section("Summary", summary(result.summary))
    parts += section("Notes", _list(result.notes))
    versions = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    made = f"`{result.command}` · seed {result.seed} · {result.date} · {numbers.duration(result.seconds)}"
    parts += section("How it was made", f"{made} · {escape(result.machine)} · {escape(versions)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def section(title: str, body: str) -> list[str]:
    return [f"## {title}", body] if body else []


def findings(entries: Sequence[Finding], experiment: str) -> str:
    rows = [(e.paper, labels.finding_text(e), e.where, labels.VERDICTS[e.holds]) for e in entries]
    return table((labels.claims(experiment), "we find", "where", "holds"), rows)


def targets(entries: Sequence[Target]) -> str:
    rows = [(t.what, t.wanted, t.measured, labels.MET[t.met] + (f": {t.reason}" if t.reason else "")) for t in entries]
    return table(("target", "wanted", "measured", "met"), rows)


def summary(rows: Sequence[SummaryRow]) -> str:
    """One table; the data set and the removal rate stand in the first row of their group."""
    cells = [
        [request if i == 0 else "", *labels.summary_cells(row)]
        for request, group in labels.by_request(rows)
        for i, row in enumerate(group)
    ]
    shown = table(("data, removed", *labels.SUMMARY_COLUMNS), cells, numeric=range(3, 8))
    return f"{shown}\n\n{escape(labels.SUMMARY_MEANING)}" if cells else ""


def page_table(entry: PageTable) -> str:
    return table(entry.columns, entry.rows, [j for j, numeric in enumerate(numbers.numeric_columns(entry)) if numeric])


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], numeric: Iterable[int] = ()) -> str:
    """Numeric columns are set to the right. No rows, no table."""
    if not rows:
        return ""
    right = set(numeric)
    rule = ["---:" if j in right else "---" for j in range(len(columns))]
    lines = [[escape(column) for column in columns], rule, *([escape(numbers.shown(c)) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """In one line, with nothing that Markdown would take for its own: a θ* stays a θ*. Code in backticks stays code."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(text.split()))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)
