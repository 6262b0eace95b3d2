"""Docstrings on the site: each gets its example of reference/examples.toml, and no sign in it is taken for markup."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

EXAMPLES: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "reference" / "examples.toml").read_text())
CODE = re.compile(r"(``.*?``|`[^`]*`)")
MADE_BY_USERS = {"Dense", "Diagonal", "LowRank", "MatrixFree", "Recurrence", "Training"}
SECTION = re.compile(r"(Args|Raises|Returns|Attributes|Yields):")
ON_ONE_LINE = re.compile(r"(Args|Raises|Returns|Attributes): (.+)")


def example_of(name: str) -> str | None:
    """Of the whole name of a public object; those of classes have their own."""
    for page in sorted(EXAMPLES, key=len, reverse=True):
        if name.startswith(f"{page}.") and (found := EXAMPLES[page].get(name.removeprefix(f"{page}."))):
            return found.strip()
    return None


def as_text(line: str) -> str:
    """|α| is no substitution, and n_erased_ no link, outside of code."""
    parts = CODE.split(line)
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part.replace("|", r"\|")) for part in parts[::2]]
    return "".join(parts)


def as_markup(lines: list[str]) -> Iterator[str]:
    """'Args: x: what it is.' on one line is a paragraph; what is indented, and under no heading, is code."""
    within, before = "text", ""
    for line in lines:
        if line and not line.startswith(" "):
            within = "section" if SECTION.fullmatch(line) else "text"
        if found := ON_ONE_LINE.fullmatch(line):
            within = "one line"
            yield from ("", as_text(f"**{found[1]}:** {found[2]}"))
        elif within == "one line":
            yield as_text(line.strip())
        elif within == "text" and line.startswith("    ") and not before:
            within = "code"
            yield from ("::", "", line)
        else:
            yield line if within == "code" else as_text(line)
        before = line


def with_example(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_markup(lines)
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")  # before its first colon stands a word of a sentence, and not a type
    if example := example_of(name):
        lines += ["", ".. code-block:: python", "", *(f"   {line}" for line in example.splitlines()), ""]


def without_what_nobody_calls(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Most dataclasses are what functions return: how to make one is of no interest."""
    returned_only = what == "class" and is_dataclass(obj) and name.rpartition(".")[2] not in MADE_BY_USERS
    return ("", returned) if returned_only else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", with_example, priority=400)  # before napoleon, which makes markup of it
    app.connect("autodoc-process-signature", without_what_nobody_calls)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
