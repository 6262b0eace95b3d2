"""One page over all experiments that lie in a folder, made from their results.json alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ssse.paper.experiments import EXPERIMENTS
from ssse.paper.pages import labels, markdown
from ssse.paper.pages.markdown import escape
from ssse.paper.result import STAND_IN, Finding, SummaryRow, Target
from ssse.rendering import numbers

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """What the overview takes from a results.json."""

    folder: str
    experiment: str
    title: str
    form: str
    made: str
    findings: list[Finding]
    targets: list[Target]
    summary: list[SummaryRow]
    figures: list[dict[str, str]]

    @classmethod
    def read(cls, path: Path) -> Stored:
        body = json.loads(path.read_text(encoding="utf-8"))
        form = labels.form_label(body["form"], _stands_in(body))
        made = f"`{body['command']}` · {body['date']} · {numbers.duration(body['seconds'])} · {escape(body['machine'])}"
        rows = _all(SummaryRow, body["summary"])
        if body["form"] == "small":  # all small forms are on the same digits, and none is the paper's experiment
            rows = [replace(row, data=f"{row.data} (small form of {body['experiment']})") for row in rows]
        lists = (_all(Finding, body["findings"]), _all(Target, body["targets"]), rows)
        return cls(path.parent.name, body["experiment"], body["title"], form, made, *lists, body["figures"])


def overview(output: Path) -> str:
    """Markdown; a results.json that cannot be read is named, not passed over."""
    stored, broken = [], []
    for path in sorted(output.glob("*/results.json"), key=_order):
        try:
            stored.append(Stored.read(path))
        except (ValueError, KeyError, TypeError, OSError):
            broken.append(path.parent.name)
    parts = ["# Results", "Written by `ssse reproduce NAME`, from the results of each experiment that lies here."]
    for entry in stored:
        links = [f"[page]({entry.folder}/page.html)", f"[tables]({entry.folder}/tables.md)"]
        links += [f"[{escape(figure['title'])}]({entry.folder}/{figure['file']})" for figure in entry.figures]
        parts.append(f"- **{escape(entry.title)}** ({escape(entry.form)}): {' · '.join(links)}\n  <br>{entry.made}")
    parts += [f"- `{name}/results.json` cannot be read; run `ssse reproduce {name}` again." for name in broken]
    parts += markdown.section("Summary", markdown.summary([row for entry in stored for row in entry.summary]))
    parts += _each("Findings", [(entry.title, markdown.findings(entry.findings, entry.experiment)) for entry in stored])
    parts += _each("Targets", [(entry.title, markdown.targets(entry.targets)) for entry in stored])
    return "\n\n".join(parts) + "\n"


def _stands_in(body: dict[str, Any]) -> bool:
    """Results without this field are older than it: there the summary names the data set."""
    return body.get("stand_in", any(row["data"] == STAND_IN for row in body["summary"]))


def _each(title: str, bodies: list[tuple[str, str]]) -> list[str]:
    shown = [f"### {escape(name)}\n\n{body}" for name, body in bodies if body]
    return [f"## {title}", *shown] if shown else []


def _order(path: Path) -> tuple[int, str]:
    """As the paper has them; what is not of the paper last."""
    name = path.parent.name
    return (list(EXPERIMENTS).index(name) if name in EXPERIMENTS else len(EXPERIMENTS), name)


def _all(kind: type[T], entries: list[dict[str, Any]]) -> list[T]:
    """What a later version may have added is left out."""
    names = [entry.name for entry in fields(kind)]  # pyright: ignore[reportArgumentType]
    return [kind(**{name: entry[name] for name in names if name in entry}) for entry in entries]
