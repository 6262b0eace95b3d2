"""The first page of the site lies in docs/; whoever opens the folder is led there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PAGE = """<!DOCTYPE html>
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


def write_start(app: Sphinx, failed: Exception | None) -> None:
    if failed is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(PAGE, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write_start)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
