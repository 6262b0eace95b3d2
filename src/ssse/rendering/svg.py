"""Figures as SVG: the same bytes for the same figure, and ids that stay apart when several stand in one page."""

from __future__ import annotations

import re
from html import escape
from io import StringIO

from ssse.rendering.document import PageFigure
from ssse.system.extras import needed_for

_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(?<=href=")#|(?<=url\()#')  # and not fill="#0072b2"
_COORDINATES = re.compile(r'\b(d|x|y)="([^"]*)"')
_LONG_FRACTION = re.compile(r"-?\d+\.\d{3,}")


def render(drawn: PageFigure, experiment: str) -> str:
    """The whole file, with its title for those who hear it instead of seeing it."""
    with needed_for("A figure"):
        import matplotlib

    salt = f"{experiment}-{drawn.name}"
    written = StringIO()
    # Letters become outlines: no font needs to be there, and lines of text keep their places on every machine.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.image_inline": True, "svg.hashsalt": salt}):
        drawn.figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    body = text[text.index("<svg") :]
    body = _COORDINATES.sub(lambda match: f'{match[1]}="{_rounded(match[2])}"', body)
    body = _apart(body, drawn.name)
    body = body.replace("<svg ", f'<svg role="img" aria-label="{escape(drawn.title)}" ', 1)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + body


def inline(svg: str) -> str:
    """As it stands inside HTML: without the XML declaration."""
    return svg[svg.index("<svg") :]


def width(svg: str) -> float:
    """In CSS pixels; matplotlib writes points."""
    match = re.search(r'<svg[^>]*?\bwidth="([\d.]+)pt"', svg)
    return float(match[1]) * 4 / 3 if match else 640.0


def _apart(svg: str, name: str) -> str:
    """Put the figure's name before every id: matplotlib calls the parts and letters of all figures alike."""
    prefix = re.sub(r"[^\w-]", "-", name)
    return _REFERENCE.sub(f"#{prefix}-", _ID.sub(rf'id="{prefix}-\1"', svg))


def _rounded(numbers: str) -> str:
    """To a hundredth of a point, which nobody sees and which halves the file."""
    return _LONG_FRACTION.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), numbers)
