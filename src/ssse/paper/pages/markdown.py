"""A result as Markdown: what a reader without a browser sees, and the page of one folder on a code host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ssse.paper.pages import words
from ssse.paper.result import Finding, Line, Result, Target
from ssse.rendering import numbers
from ssse.rendering.document import Cell, Grid

_SPECIAL = re.compile(r"[\\|*<>\[\]~]|(?<![^\W_])_|_(?![^\W_])")


def tables(result: Result) -> str:
    """Everything but the raw numbers: figures, targets, findings, tables, summary, notes."""
    parts = [f"# {escape(result.title)}", f"**{escape(words.form_words(result.form, result.data))}.**"]
    parts += [_list(result.data), _list(f"Differs from the paper's: {line}" for line in result.differs)]
    parts += section("Targets", targets(result.targets)) + section("Findings", findings(result.findings))
    if result.figures:
        parts.append("## Figures")
    for drawn in result.figures:
        about = f"{words.beside(drawn.paper)}. {drawn.caption}"
        parts += [f"### {escape(drawn.title)}", f"![{escape(drawn.title)}]({drawn.name}.svg)", escape(about)]
    if result.tables:
        parts.append("## Tables")
    for grid in result.tables:
        about = f"{words.beside(grid.paper)}. {grid.note}".strip()
        parts += [f"### {escape(grid.title)}", grid_table(grid), escape(about)]
    parts += section("Summary", summary(result.summary))
    parts += section("Notes", _list(result.notes))
    versions = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    made = f"`{result.command}` · seed {result.seed} · {result.date} · {numbers.duration(result.seconds)}"
    parts += section("How it was made", f"{made} · {escape(result.machine)} · {escape(versions)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def section(title: str, body: str) -> list[str]:
    return [f"## {title}", body] if body else []


def findings(entries: Sequence[Finding]) -> str:
    rows = [(e.paper, words.found(e), e.where, words.VERDICTS[e.holds]) for e in entries]
    return table(("the paper says", "we find", "where", "holds"), rows)


def targets(entries: Sequence[Target]) -> str:
    rows = [(t.what, t.wanted, t.measured, words.MET[t.met] + (f": {t.reason}" if t.reason else "")) for t in entries]
    return table(("target", "wanted", "measured", "met"), rows)


def summary(lines: Sequence[Line]) -> str:
    """One table; the data set and the removal rate stand in the first row of their group."""
    rows = [
        [request if i == 0 else "", *words.summary_cells(line)]
        for request, group in words.by_request(lines)
        for i, line in enumerate(group)
    ]
    shown = table(("data, removed", *words.SUMMARY_COLUMNS), rows, numeric=range(3, 8))
    return f"{shown}\n\n{escape(words.SUMMARY_MEANING)}" if rows else ""


def grid_table(grid: Grid) -> str:
    numeric = [j for j in range(len(grid.columns)) if grid.rows and all(numbers.is_number(row[j]) for row in grid.rows)]
    return table(grid.columns, grid.rows, numeric)


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
