"""What theme and writer leave to be done: names for those who do not see the page, and a start in the site's root."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

START = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ssse</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
</head>
<body><main><h1>ssse</h1><p><a href="docs/index.html">To the documentation</a></p></main></body>
</html>
"""
NAMES = (
    ('class="caption" role="heading">', 'class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    ('<aside class="toc-drawer">', '<aside class="toc-drawer" aria-label="On this page">'),
    ('<aside class="toc-drawer no-toc">', '<aside class="toc-drawer no-toc" aria-label="On this page">'),
    ('<div id="search-results"></div>', '<h1>Search</h1><div id="search-results"></div>'),
)
SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)
LINES = {"<dl>": '<span class="sig-lines">', "</dl>": "</span>", "<dd>": "<span>", "</dd>": "</span>"}


def signature_without_a_list(found: re.Match[str]) -> str:
    """Parameters on lines of their own are written as a list of definitions that defines nothing."""
    return re.sub("|".join(LINES), lambda tag: LINES[tag[0]], found[0])


def finish(app: Sphinx, failed: Exception | None) -> None:
    if failed is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = text = path.read_text(encoding="utf-8")
        if "cell_output" in page and "Traceback (most recent call last)" in page:  # a `!` of Jupyter never fails
            raise ExtensionError(f"A command of the notebook on {path} failed; its page shows how.")
        for old, new in NAMES:
            text = text.replace(old, new) if new not in text else text
        text = SIGNATURE.sub(signature_without_a_list, text)
        if text != page:
            path.write_text(text, encoding="utf-8")
    (Path(app.outdir) / "index.html").write_text(START, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
