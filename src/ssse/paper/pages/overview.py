"""One page over all experiments that lie in a folder, made from their results.json alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from ssse.paper.experiments import EXPERIMENTS
from ssse.paper.pages import markdown, words
from ssse.paper.pages.markdown import escape
from ssse.paper.result import Finding, Line, Target
from ssse.rendering import numbers

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """What the overview takes from a results.json."""

    folder: str
    title: str
    form: str
    made: str
    findings: list[Finding]
    targets: list[Target]
    summary: list[Line]
    figures: list[dict[str, str]]

    @classmethod
    def read(cls, path: Path) -> Stored:
        body = json.loads(path.read_text(encoding="utf-8"))
        form = words.form_words(body["form"], body["data"])
        made = f"`{body['command']}` · {body['date']} · {numbers.duration(body['seconds'])} · {escape(body['machine'])}"
        lines = _all(Line, body["summary"])
        if body["form"] == "small":  # all small forms are on the same digits, and none is the paper's experiment
            lines = [replace(line, data=f"{line.data} (small form of {body['experiment']})") for line in lines]
        lists = (_all(Finding, body["findings"]), _all(Target, body["targets"]), lines)
        return cls(path.parent.name, body["title"], form, made, *lists, body["figures"])


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
        links += [f"[{escape(drawn['title'])}]({entry.folder}/{drawn['file']})" for drawn in entry.figures]
        parts.append(f"- **{escape(entry.title)}** ({escape(entry.form)}): {' · '.join(links)}\n  <br>{entry.made}")
    parts += [f"- `{name}/results.json` cannot be read; run `ssse reproduce {name}` again." for name in broken]
    parts += markdown.section("Summary", markdown.summary([line for entry in stored for line in entry.summary]))
    parts += _each("Findings", [(entry.title, markdown.findings(entry.findings)) for entry in stored])
    parts += _each("Targets", [(entry.title, markdown.targets(entry.targets)) for entry in stored])
    return "\n\n".join(parts) + "\n"


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
