"""A word before long work and a bar during it, where somebody is looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Batch = TypeVar("Batch", bound=tuple[Any, Any])  # (x, y), as many samples as y is long


@contextmanager
def bar(text: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """A bar on stderr, silent when that is not a terminal.

    Yields a function that moves it, (how far, new text), or begins it anew for the next stage: (text=…, anew=total), a
    total of 0 where that is not known.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
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
    console = Console(stderr=True)
    if show and console.is_terminal:
        console.print(text, markup=False, highlight=False)


@contextmanager
def waiting(text: str, show: bool) -> Iterator[None]:
    """A spinner while something runs that has no steps to count."""
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield
        return
    with console.status(text):
        yield
