"""Several independent pieces of work at once, each on its share of torch's threads.

A solution for one vector reads a factor once, and that one thread does alone: the others stand still meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

MOST = 8  # at once: each may need memory of its own

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The result of each, in order; what the first one of them raises is raised."""
    threads = torch.get_num_threads()
    at_once = min(threads, len(items), MOST)
    if at_once < 2:
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(at_once, initializer=partial(torch.set_num_threads, threads // at_once)) as pool:
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)  # also of threads that begin later
