"""An event that a signal handler may set."""

from __future__ import annotations

import contextlib
import os
import select


class Told:
    """As `threading.Event`, for one thread that waits and the signals that it hears.

    A handler runs in the midst of whatever that thread does. `threading.Event.set` takes a lock there which the thread
    itself may hold, in `wait`, and then neither ever goes on. A byte in a pipe needs no lock.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: told often enough
            os.write(self._write, b"!")

    def is_set(self) -> bool:
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        ready = select.poll()
        ready.register(self._read, select.POLLIN)
        return bool(ready.poll(1000 * seconds))

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)
