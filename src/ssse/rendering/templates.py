"""The pages' templates: everything from outside is escaped, and nothing in it stays invisible."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

KEPT = "\n\t\u200d"  # the last joins emoji
CODE = re.compile("`([^`\n]+)`")
INVISIBLE = ("Cc", "Cf", "Cs")  # control characters, marks of direction and width zero, halves of characters


def template(room: str, name: str) -> Template:
    """A template that lies in the folder of a package; what pages share lies in this one."""
    return _environment(room).get_template(name)


def visible(value: Any) -> Any:
    """Names are other people's: a mark that would turn the text around, or hide in it, is written out instead."""
    if not isinstance(value, str) or isinstance(value, Markup) or (value.isascii() and value.isprintable()):
        return value
    return "".join(
        f"[U+{ord(sign):04X}]" if sign not in KEPT and unicodedata.category(sign) in INVISIBLE else sign
        for sign in value
    )


def marked(value: Any) -> Any:
    """A sentence that names commands between backticks, as a terminal shows them: on a page they are code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(visible(value))))) if isinstance(value, str) else value


@cache
def _environment(room: str) -> Environment:
    made = Environment(
        loader=ChoiceLoader([PackageLoader(room, "."), PackageLoader("ssse.rendering", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # they are part of the program: read once
    )
    made.filters["marked"] = marked
    return made
