"""`ssse demo`: every command in turn, as a user would type them."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ssse.cli.console import CAUTION, REFUSED, failures_in_one_line, show
from ssse.cli.options import Json, Quiet, Verbose


def demo(
    context: typer.Context,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where to work; made anew if a demo made it.")] = Path(
        "out/demo"
    ),
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Init, fit, calibrate, erase, evaluate, report on images of digits, ending with the path of the page."""
    with failures_in_one_line("Stopped.", as_json):
        from ssse import demo

        demo.make_folder(output)
        silent = quiet or as_json
        if not silent:
            show(f"Images of digits, softmax regression. All files are in {output}; go there and try more.\n")
        demo.prepare(output)
        root = context.find_root().command
        with _inside(output), contextlib.redirect_stdout(io.StringIO()) if silent else contextlib.nullcontext():
            for comment, command in demo.STORY:
                show(f"# {comment}\n$ {command}")
                how = ["--quiet"] if silent else ["--verbose"] if verbose else []
                words = [*demo.arguments(command), *how]
                code = root.main(words, prog_name="ssse", standalone_mode=False)
                if code not in (None, 0, REFUSED, CAUTION):
                    raise typer.Exit(code)
                show("")
        page = output / "ws" / "report.html"
        print(json.dumps({"page": str(page)}) if as_json else page if quiet else f"The page: {page}")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
