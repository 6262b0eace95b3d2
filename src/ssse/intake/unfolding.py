"""How much a file may unfold to in memory: one rule for every format that can hold more than its size."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ssse.errors import InvalidData
from ssse.intake.messages import unreadable
from ssse.intake.npy import claimed_bytes
from ssse.system.memory import human_bytes

LEAST, RATIO = 1 << 26, 100  # a file unfolds to 64 MiB, or to a hundred times its size, at most
CHARACTER = 4  # bytes of one in numpy's arrays of texts


def refuse_unfolding(path: Path, whole: int, repair: str) -> None:
    """Raises: InvalidData: `whole`, the bytes that the file says it unfolds to, are too many for its size."""
    there = path.stat().st_size
    if whole > max(LEAST, RATIO * there):
        raise InvalidData(
            f"'{path}' would unfold from {human_bytes(there)} to {human_bytes(whole)}, and at most "
            f"{human_bytes(LEAST)} or {RATIO} times its size are read. {repair}"
        )


def check_parts(path: Path, packed: zipfile.ZipFile, parts: Iterable[zipfile.ZipInfo], kind: str, repair: str) -> None:
    """Of a zip file, before anything in it is unfolded. A reader takes no more of a part than the file says of it.

    Raises:
        InvalidData: too much, arrays of Python objects, or an array that is larger than its part.
    """
    parts = list(parts)
    refuse_unfolding(path, sum(part.file_size for part in parts), repair)
    for part in parts:
        with packed.open(part) as opened:
            check_claim(path, part.filename, claimed_bytes(opened, path, kind), part.file_size, kind)


def check_claim(path: Path, name: str, claimed: int, there: int, kind: str) -> None:
    """Readers make room for what a header says before they look for it."""
    if claimed > there:
        raise unreadable(
            path, kind, f"{name!r} says that it has {human_bytes(claimed)}, and it has {human_bytes(there)}"
        )


def text_array(texts: Sequence[str], path: Path) -> np.ndarray:
    """Every text takes as much room as the longest, so one of them can be too long for a table of many."""
    refuse_long_texts(max(map(len, texts), default=0), len(texts), path)
    return np.array(texts, dtype=str)


def refuse_long_texts(longest: int, count: int, path: Path) -> None:
    refuse_unfolding(
        path,
        CHARACTER * longest * count,
        f"Its labels and ids are texts of up to {longest:,} characters: shorten the longest.",
    )
