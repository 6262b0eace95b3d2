"""A word before long work and a bar during it, where somebody is looking. Without rich the word is all there is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Batch = TypeVar("Batch", bound=tuple[Any, Any])  # (x, y), as many samples as y is long


@contextmanager
def bar(text: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """A bar on stderr, silent when that is not a terminal.

    Yields a function that moves it, (how far, new text), or begins it anew for the next stage: (text=…, anew=total), a
    total of 0 where that is not known.
    """
    if not (show and _has_rich()):
        say(text, show)

        def stay(done: int = 0, text: str | None = None, anew: int | None = None) -> None:
            if text is not None:
                say(text, show)

        yield stay
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(text, total=total)

        def move(done: int = 0, text: str | None = None, anew: int | None = None) -> None:
            if anew is None:
                progress.update(task, advance=done, description=text)
                return
            stage = progress.tasks[task]
            stage.finished_time = None  # `reset` would set the clock back, too, which tells how long all of it takes
            progress.update(task, total=anew or 1, completed=0, description=text)
            if not anew:
                stage.total = None  # which `update` takes for "as before", and none at all for reached

        yield move


def track(batches: Iterable[Batch], total: int | None, text: str, show: bool) -> Iterator[Batch]:
    """Pass batches on, counting samples on a bar on stderr; silent when stderr is not a terminal."""
    with bar(text, total, show) as advance:
        for batch in batches:
            yield batch
            advance(len(batch[1]))


def say(text: str, show: bool) -> None:
    """A line on stderr before long work; silent when that is not a terminal."""
    if not show:
        return
    if not _has_rich():
        if sys.stderr.isatty():
            print(text, file=sys.stderr)
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        console.print(text, markup=False, highlight=False)


@contextmanager
def waiting(text: str, show: bool) -> Iterator[None]:
    """A spinner while something runs that has no steps to count."""
    if not (show and _has_rich()):
        say(text, show)
        yield
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401  # before the bar, not in the midst of it
    except ModuleNotFoundError:
        return False
    return True
