"""`ssse inbox`: request files of a folder, answered as they arrive."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ssse.cli.console import STOPPED as STOPPED_CODE
from ssse.cli.console import Screen, counted, failures_in_one_line, in_one_line, print_json
from ssse.cli.options import STOPPED, By, Json, NoWait, Quiet, Verbose, Where, open_workspace
from ssse.cli.told import Told


def inbox(
    workspace: Where,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of request files, NAME.json or NAME.csv.")],
    once: Annotated[bool, typer.Option("--once", help="Answer what is there, and end. For cron.")] = False,
    every: Annotated[float, typer.Option(min=0.05, max=86400.0, help="Seconds between two looks.")] = 2.0,
    by: By = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Answer request files as they arrive, one at a time, and write an answer beside each."""
    screen = Screen(as_json, quiet, verbose)
    stop, interrupted = Told(), False

    def end(number: int, _: Any) -> None:
        nonlocal interrupted
        stop.set()
        if number == signal.SIGINT:
            interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait

    with failures_in_one_line(STOPPED, as_json), screen.alone(), _on_signals(end):
        answered = 0
        opened = open_workspace(workspace, screen, no_wait)
        opened.progress = False  # a line a request is enough
        for answer in opened.inbox(folder, every=None if once else every, stop=stop, by=by):
            answered += 1
            if as_json:
                print_json(answer.to_dict(), indent=None, out=screen.out)
                screen.out.flush()
            else:
                why = f": {answer.reason}" if answer.reason else ""
                verdict = f", {answer.verdict}" if answer.outcome == "erased" else ""
                verdict += ", waits for confirmation" if answer.held else ""
                screen.tell(in_one_line(f"{answer.file}: {answer.outcome}{verdict}{why}"))
        screen.headline(f"Answered {counted(answered, 'request file')}.")
    if interrupted:
        raise typer.Exit(STOPPED_CODE)


@contextmanager
def _on_signals(end: Callable[[int, Any], None]) -> Iterator[None]:
    """Only the main thread hears signals; who called us gets its own handlers back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
