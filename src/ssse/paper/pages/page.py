"""The page: one HTML file with everything in it, to be put beside the paper. No network, no script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ssse.paper.pages import words
from ssse.paper.result import Result
from ssse.rendering import numbers, svg
from ssse.rendering.document import Grid
from ssse.rendering.templates import template

NARROWEST = 0.7  # of its own width, before a figure on a phone is scrolled instead of shrunk


def render(result: Result, drawings: Mapping[str, str]) -> str:
    """`drawings`: the SVG files, by the name of the figure."""
    return template("ssse.paper.pages", "page.html.j2").render(
        result=result,
        words=words,
        numbers=numbers,
        figures=[
            {"drawn": drawn, "svg": Markup(svg.inline(text)), "width": width, "narrowest": NARROWEST * width}
            for drawn, text in ((drawn, drawings[drawn.name]) for drawn in result.figures)
            for width in (svg.width(text),)
        ],
        tables=[_columns(grid) for grid in result.tables],
        summary=words.by_request(result.summary),
    )


def _columns(grid: Grid) -> dict[str, Any]:
    numeric = [
        bool(grid.rows) and all(numbers.is_number(row[j]) for row in grid.rows) for j in range(len(grid.columns))
    ]
    return {"grid": grid, "numeric": numeric}
