"""Tables as plain text, as wide as they need to be: nothing is cut, broken or coloured, wherever they are printed."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]], labels: bool = False) -> str:
    """Titles, a rule, rows; a row may be shorter than the titles. Columns stand at the right.

    Args: labels: the first column says what a row is, and stands at the left.
    """
    cells = [[row[i] if i < len(row) else "" for i in range(len(titles))] for row in (titles, *rows)]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(titles))]
    lines = [_line(row, widths, labels) for row in cells]
    return "\n".join([lines[0], " " + "─" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int], labels: bool) -> str:
    texts = []
    for i, (text, width) in enumerate(zip(row, widths, strict=True)):
        room = " " * (width - _width(text))
        texts.append(text + room if labels and i == 0 else room + text)
    return (" " + "  ".join(texts)).rstrip()


def _width(text: str) -> int:
    """In columns of a terminal: some letters take two, marks above and below others none."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )
