"""The ledger's file as the sum of its pages' hashes: sealing a request costs what it wrote, not what was ever written.

SQLite collects the pages that change in a log beside the file. Before the log is brought in, the old pages are
subtracted from the sum; afterwards the new ones are added. A page that was altered behind our back is subtracted as it
is now, not as it was, so that the sum never fits again: an alteration cannot slip into a new seal. Without torch.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
MODULUS = 1 << 256
LOG_HEADER, FRAME_HEADER = 32, 24  # bytes, of SQLite's write-ahead log


def sum_of(path: Path) -> str:
    """Of the whole file; a part of a page at its end counts as a page."""
    total, number = 0, 1
    with path.open("rb") as opened:
        while page := opened.read(PAGE):
            total += _hash(number, page)
            number += 1
    return _hex(total)


@dataclass(frozen=True)
class Change:
    """Pages that the log is about to change, with their sum as they are."""

    numbers: tuple[int, ...]
    before: int

    @classmethod
    def about_to_come(cls, path: Path, log: Path) -> Change:
        numbers = tuple(sorted(_pages_in(log)))
        return cls(numbers, _sum_of_some(path, numbers))

    def applied_to(self, known: str, path: Path) -> str:
        """The whole file's sum after the log came in, from that before."""
        return _hex(int(known, 16) - self.before + _sum_of_some(path, self.numbers))


def _pages_in(log: Path) -> set[int]:
    """Every frame of the log begins with the number of its page, from 1."""
    found: set[int] = set()
    if not log.exists():
        return found
    with log.open("rb") as opened:
        header = opened.read(LOG_HEADER)
        if len(header) == LOG_HEADER and struct.unpack(">I", header[8:12]) != (PAGE,):
            raise ValueError(f"The ledger's pages are not of {PAGE} bytes.")
        while len(frame := opened.read(FRAME_HEADER)) == FRAME_HEADER:
            found.add(struct.unpack(">I", frame[:4])[0])
            opened.seek(PAGE, 1)
    return found


def _sum_of_some(path: Path, numbers: tuple[int, ...]) -> int:
    total = 0
    with path.open("rb") as opened:
        for number in numbers:
            opened.seek((number - 1) * PAGE)
            page = opened.read(PAGE)
            total += _hash(number, page) if page else 0  # the file grows
    return total


def _hash(number: int, page: bytes) -> int:
    return int.from_bytes(hashlib.sha256(number.to_bytes(8, "big") + page).digest(), "big")


def _hex(total: int) -> str:
    return f"{total % MODULUS:064x}"
