"""The page: one HTML file with everything in it, to be put beside the paper. No network, no script."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from ssse.paper.pages import labels
from ssse.paper.result import Result
from ssse.rendering import numbers, svg
from ssse.rendering.templates import template

NARROWEST = 0.7  # of its own width, before a figure on a phone is scrolled instead of shrunk


def render(result: Result, drawings: Mapping[str, str]) -> str:
    """`drawings`: the SVG files, by the name of the figure."""
    return template("ssse.paper.pages", "page.html.j2").render(
        result=result,
        labels=labels,
        numbers=numbers,
        figures=[
            {"about": figure, "svg": Markup(svg.inline(text)), "width": width, "narrowest": NARROWEST * width}
            for figure, text in ((figure, drawings[figure.name]) for figure in result.figures)
            for width in (svg.width(text),)
        ],
        tables=[{"table": table, "numeric": numbers.numeric_columns(table)} for table in result.tables],
        summary=labels.by_request(result.summary),
    )
