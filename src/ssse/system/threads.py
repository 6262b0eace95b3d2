"""How many threads numpy and scipy compute with: small products are faster on one.

Each of the two brings a BLAS with threads of its own. They wait for work by spinning, and so take the processor from
whoever has some: from each other's, and from other processes of a machine that is shared.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from threadpoolctl import ThreadpoolController

SMALL = 2**29  # operations: 50 ms of one thread, at most

_lock = threading.Lock()
_inside, _limit = 0, None


@contextmanager
def threads_for(operations: float) -> Iterator[None]:
    """One thread for work that is small, as many as there were for other work.

    The number is that of the whole process: what others compute meanwhile is slower, no less right. It is set back
    when the last of several small jobs at once ends. Not every library heeds it in threads that are not the first.
    """
    if operations > SMALL:
        yield
        return
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _inside, _limit
    with _lock:
        if not _inside:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1


def _end() -> None:
    global _inside, _limit
    with _lock:
        _inside -= 1
        if not _inside and _limit is not None:
            _limit.restore_original_limits()
            _limit = None


@lru_cache
def _controller() -> ThreadpoolController:
    """Of the libraries that are loaded when it is first asked for; to look for them takes a millisecond."""
    import scipy.linalg  # noqa: F401  # so that its library is among them

    return ThreadpoolController()
