"""How far a request is: one bar, from stage to stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ssse.problem.batches import Batch
from ssse.system.progress import bar


def _nowhere(done: int = 0, text: str | None = None, anew: int | None = None) -> None:
    pass


class Stages:
    """Told by `erase` where it is; it shows that, or nothing.

    A pass of conjugate gradients counts rows: how many there are is known once all have passed.
    """

    def __init__(self, move: Callable[..., None] = _nowhere):
        self._move = move
        self._passed = self._all_rows = 0

    def begin(self, text: str, total: int = 0) -> None:
        """Of something that is counted from 0 on; `total` is 0 where it is not known, or not counted."""
        self._move(text=text, anew=total)

    def advance(self, count: int) -> None:
        self._move(count)

    def each(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            self.advance(len(batch[1]))

    def step(self, done: int, residual: float) -> None:
        self._passed, self._all_rows = 0, max(self._all_rows, self._passed)
        self.begin(f"conjugate gradients, step {done + 1}, residual {residual:.1e}", self._all_rows)

    def rows(self, count: int) -> None:
        self._passed += count
        self.advance(count)


@contextmanager
def showing(progress: bool) -> Iterator[Stages]:
    """On a bar that is there from now on, where somebody is looking."""
    with bar("erasing", None, progress) as move:
        yield Stages(move)
