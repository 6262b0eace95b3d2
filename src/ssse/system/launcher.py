"""What torchrun tells the processes that it starts. Importing this imports no torch."""

from __future__ import annotations

import os


def launched() -> tuple[int, int]:
    """Rank and number of processes, as torchrun tells them; (0, 1) without it."""
    given = os.environ
    if not all(given.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE")) or "MASTER_ADDR" not in given:
        return 0, 1
    return int(given["RANK"]), int(given["WORLD_SIZE"])
