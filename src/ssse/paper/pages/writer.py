"""A result on disk: every file whole or not at all, and none left over from the run before."""

from __future__ import annotations

import json
from pathlib import Path

from ssse.paper.pages import markdown, page
from ssse.paper.pages.overview import overview
from ssse.paper.result import Result
from ssse.rendering import svg
from ssse.system.files import write_atomically


def write(result: Result, folder: Path) -> Path:
    """Write results.json, the figures, tables.md and page.html; returns where the page lies."""
    body = as_json(result)
    drawings = {drawn.name: svg.render(drawn, result.experiment) for drawn in result.figures}
    if len(drawings) < len(result.figures):
        raise ValueError(f"Two figures of '{result.experiment}' have the same name.")
    files = {f"{name}.svg": drawing for name, drawing in drawings.items()}
    files |= {"tables.md": markdown.tables(result), "page.html": page.render(result, drawings)}
    # Everything is made before anything is written, and results.json comes last: it says which figures there are.
    stale = _figures_before(folder) - files.keys()
    for name, text in files.items():
        write_atomically(folder / name, text)
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    write_atomically(folder / "results.json", body + "\n")
    return folder / "page.html"


def as_json(result: Result) -> str:
    """What people read line by line, and below it the numbers without a space: they are thousands."""
    body = result.to_dict()
    numbers = json.dumps(body.pop("numbers"), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    words = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False)
    return f'{words[:-2]},\n "numbers": {numbers}\n}}'


def write_overview(output: Path) -> Path:
    """README.md over all experiments in the folder."""
    write_atomically(output / "README.md", overview(output))
    return output / "README.md"


def _figures_before(folder: Path) -> set[str]:
    """The figures that the run before wrote here, and no other file."""
    try:
        figures = json.loads((folder / "results.json").read_text(encoding="utf-8"))["figures"]
        return {Path(entry["file"]).name for entry in figures if entry["file"].endswith(".svg")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
