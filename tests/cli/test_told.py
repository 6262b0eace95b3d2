"""An event that a signal handler may set, wherever the signal comes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from ssse.cli import told
from ssse.cli.told import Told


def test_it_is_not_set_until_it_is_told_and_stays_so():
    event = Told()
    assert not event.is_set()
    assert not event.wait(0.001)
    event.set()
    assert event.is_set()
    assert event.wait(60.0)
    assert event.is_set()
    for _ in range(100_000):  # more than a pipe holds
        event.set()


def test_a_signal_ends_a_wait():
    event = Told()
    before = signal.signal(signal.SIGALRM, lambda *_: event.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        assert event.wait(60.0)
        assert time.monotonic() - began < 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_it_may_be_set_at_every_line_of_a_wait():
    """As by a handler, in the midst of what the waiting thread does; threading.Event waits there for ever."""
    assert all(set_within_wait(Told(), told.__file__))
    event = threading.Event()
    found: list[list[bool]] = []
    thread = threading.Thread(target=lambda: found.append(set_within_wait(event, threading.__file__)), daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert not found


def set_within_wait(event: Any, file: str) -> list[bool]:
    """Whether it was set after each line of a wait in which it was told."""
    seen: list[bool] = []

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if what == "line":
            sys.settrace(None)
            event.set()
            seen.append(event.is_set())
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        event.wait(0.001)
    finally:
        sys.settrace(None)
    assert seen
    return seen
