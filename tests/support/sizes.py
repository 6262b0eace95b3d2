"""How much the long tests do: `SSSE_TEST_SIZE=full` for everything, as `make test-long` sets it; small without it.

The kills, the streams, the fuzzing and the bytes that are altered are the same tests in both sizes; the small ones do
fewer of each kind, and leave no kind out.
"""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import HealthCheck, settings

SIZES = ("small", "full")
SIZE = os.environ.get("SSSE_TEST_SIZE", "small")
if SIZE not in SIZES:
    raise ValueError(f"SSSE_TEST_SIZE must be one of {', '.join(SIZES)}, not {SIZE!r}.")
FULL = SIZE == "full"

T = TypeVar("T")


def sized(small: T, full: T) -> T:
    return full if FULL else small


# Always the same examples in small, others every time in full; no deadline: machines are slow at times.
settings.register_profile(
    "ssse",
    deadline=None,
    derandomize=not FULL,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("ssse")


def fuzzed(small: int, full: int) -> settings:
    """So many examples of Hypothesis."""
    return settings(max_examples=sized(small, full))
