"""Whether the other processes are still there, while each works for itself for a long time.

A process that ends is noticed by its connections, which close: by whoever waits for something from it. So each process
waits in the background for a word from a few others, which they give when they have passed, however long that takes:
from those 1, 2, 4, … places after it. So log₂ P of them notice an end at once, and all of them after log₂ P steps.
A process that stands still closes nothing: that is noticed where the others meet, after the timeout of the group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from ssse.errors import GroupBroken
from ssse.system.group import Group, in_short

TAG = 0x55E5  # of these words; messages of the user's own have others
LONGEST = timedelta(days=365)  # of a pass
Item = TypeVar("Item")
PASSED, FAILED, STOPPED = 1, 2, 3  # FAILED: by an error that all of them will raise


class Watch:
    """What is known of the others. Where nobody is watched, nothing ever is."""

    def __init__(self, group: Group):
        self.group = group
        self.over: bool = False  # one of the others has failed or ended: no use to go on
        self._ended: str | None = None
        far = range((group.size - 1).bit_length()) if _listens(group) else ()
        self._told = [(group.rank - 2**step) % group.size for step in far]
        for step in far:
            source = (group.rank + 2**step) % group.size
            word = torch.zeros(1)
            work = dist.irecv(word, source, tag=TAG)
            threading.Thread(target=self._wait, args=(source, word, work), daemon=True).start()

    def _wait(self, source: int, word: torch.Tensor, work: dist.Work) -> None:
        try:
            work.wait(LONGEST)
        except RuntimeError as error:
            self._ended = f"rank {source} of the group has ended ({in_short(error)})"
        if int(word) == STOPPED:
            self._ended = f"rank {source} of the group has stopped"
        self.over = self.over or self._ended is not None or int(word) == FAILED

    def while_all_work(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            yield item
            if self.over:
                break

    def tell(self, word: int) -> None:
        for rank in self._told:
            try:
                dist.send(torch.full((1,), float(word)), rank, tag=TAG)
            except RuntimeError as error:
                self.over, self._ended = True, self._ended or f"rank {rank} of the group has ended ({in_short(error)})"

    def finish(self) -> None:
        """Whoever waits for this one hears at once what it knows."""
        self.tell(STOPPED if self._ended is not None else FAILED if self.over else PASSED)
        if self._ended is not None:
            raise GroupBroken(f"Rank {self.group.rank} of {self.group.size} stops, since {self._ended}.")


@contextmanager
def watching(group: Group) -> Iterator[Watch]:
    """Around work without collectives, which leaves off when `over`; afterwards all of them meet.

    Raises:
        GroupBroken: one of the others has ended. Where one has failed, the next meeting tells.
    """
    watch = Watch(group)
    try:
        yield watch
    except BaseException as error:
        watch.tell(FAILED if isinstance(error, Exception) else STOPPED)
        raise
    watch.finish()


def _listens(group: Group) -> bool:
    """NCCL notices an end by itself (its watchdog), and ends the process."""
    return not group.alone and "gloo" in dist.get_backend_config()
