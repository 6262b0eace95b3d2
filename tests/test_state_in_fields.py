"""Nothing is decided by the words of a note, a reason or a message: state lives in fields."""

from __future__ import annotations

import ast
from pathlib import Path

import ssse

PACKAGE = Path(ssse.__file__).parent
SENTENCES = {"note", "notes", "reason", "reasons", "message", "complaint", "caption"}
LOOKS = {"startswith", "endswith", "find", "index", "count", "partition"}


def is_sentence(node: ast.expr) -> bool:
    """A variable or field that holds words for people."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in SENTENCES


def decisions(source: str) -> list[int]:
    """Lines that look into a sentence: `"word" in note`, `note == "…"`, `note.startswith("…")`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = any(isinstance(side, ast.Constant) and isinstance(side.value, str) and side.value for side in sides)
            lines += [node.lineno] * (texts and any(map(is_sentence, sides)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            lines += [node.lineno] * is_sentence(node.func.value)
    return lines


def test_no_sentence_is_looked_into():
    places = {str(path.relative_to(PACKAGE)): decisions(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, lines in places.items() if lines} == {}


def test_the_check_sees_what_it_is_for():
    assert decisions(
        'if "not below" in solved.note:\n    pass\nx = [n for note in notes if note.startswith("Only ")]'
    ) == [1, 3]
    assert decisions('if found.reason == "slow":\n    pass') == [1]
    assert decisions('if note:\n    print(f"{note}.")\nif "key" in details:\n    pass') == []
