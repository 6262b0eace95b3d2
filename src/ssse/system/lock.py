"""One process at a time may change a folder. The lock is on the folder itself and dies with its process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ssse.errors import Busy, InvalidSetting

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

HAS_LOCKS = fcntl is not None


@contextmanager
def locked(
    folder: Path, *, shared: bool = False, wait: bool = True, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Alone with the folder, or with other readers only if shared. `waiting` is called once where it takes time."""
    if fcntl is None:
        raise InvalidSetting("Workspaces need file locks as Linux and macOS have them; this system has none.")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise Busy(f"Another ssse command is at work in '{folder}'; try again when it is done.") from None
                waiting()
                fcntl.flock(handle, kind)
            if not os.path.samestat(os.fstat(handle), os.stat(folder)):
                continue  # while we waited, another folder came in its place
            yield
            return
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # of processes that were forked meanwhile as well
            os.close(handle)
