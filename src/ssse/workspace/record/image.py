"""The ledger's file and SQLite's log beside it as one image in memory: read without a file being written anywhere.

The log is one of SQLite's (https://sqlite.org/fileformat2.html#the_write_ahead_log). Of its frames those count that lie
before the last commit of an unbroken chain of checksums, as they do for SQLite itself. Nothing here imports torch.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact

MAGIC, VERSION = 0x377F0682, 3007000  # the last bit of the first says in which order the sums take the bytes
HEADER, FRAME = 32, 24  # bytes before the frames, and before the page in each
SIZES = [1 << power for power in range(9, 17)]  # that a page may have
WRITES, READS = 18, 19  # places in the file's header of who may write and read it: 1 without a log, 2 with one
MASK = 0xFFFFFFFF


def image(file: Path, log: Path) -> bytes:
    """What SQLite would see, as a file that has no log. For a ledger that nobody writes to.

    Who reads it with SQLite may bring the log into the file at any moment. So the log is read first: what is in it the
    file has then or lacks, and is the same with it. And both are read until nothing moved meanwhile.
    """
    before: Any = None
    body = frames = b""
    while before != (before := [_stamp(path) for path in (log, file)]):
        frames = _content(log)
        body = file.read_bytes()
    return _without_log(with_log(body, frames))


def with_log(body: bytes, log: bytes) -> bytearray:
    """The pages of the file, and in their places those that the log has newer."""
    pages, count, size = _committed(log)
    whole = bytearray(body)
    if not pages:
        return whole
    if body and size != _page_size(body):
        raise BrokenArtefact("Its log has pages of another size than the file.")
    del whole[count * size :]
    whole += bytes(count * size - len(whole))
    for number, page in pages.items():
        if number <= count:  # a page that a later commit cut off
            whole[(number - 1) * size : number * size] = page
    return whole


def _committed(log: bytes) -> tuple[dict[int, bytes], int, int]:
    """The newest page of each number up to the last commit, how many pages the file then has, and their size."""
    nothing: tuple[dict[int, bytes], int, int] = ({}, 0, 0)
    if len(log) < HEADER:
        return nothing
    magic, version, size, _, *rest = struct.unpack(">8I", log[:HEADER])
    salts, expected = rest[:2], tuple(rest[2:])
    order = ">" if magic & 1 else "<"
    sums = _sums(order, log[: HEADER - 8], (0, 0))
    if magic & ~1 != MAGIC or size not in SIZES or sums != expected:
        return nothing  # was never finished: SQLite begins another
    if version != VERSION:
        raise BrokenArtefact(f"Its log is of another version of SQLite ({version}).")
    done: dict[int, bytes] = {}
    since: dict[int, bytes] = {}  # the last commit
    count = 0
    for start in range(HEADER, len(log) - FRAME - size + 1, FRAME + size):
        number, commits, *rest = struct.unpack(">6I", log[start : start + FRAME])
        page = log[start + FRAME : start + FRAME + size]
        sums = _sums(order, page, _sums(order, log[start : start + 8], sums))
        if rest[:2] != salts or not number or sums != tuple(rest[2:]):
            break  # left over from before, or not written whole
        since[number] = page
        if commits:
            done |= since
            since, count = {}, commits
    return done, count, size


def _sums(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    one, other = sums
    for first, second in struct.iter_unpack(f"{order}2I", content):
        one = (one + first + other) & MASK
        other = (other + second + one) & MASK
    return one, other


def _page_size(body: bytes) -> int:
    stored = int.from_bytes(body[16:18], "big")
    return 1 << 16 if stored == 1 else stored


def _without_log(whole: bytearray) -> bytes:
    """A file in memory can have none, so that SQLite would refuse one whose header speaks of it."""
    for place in (WRITES, READS):
        if len(whole) > READS and whole[place] == 2:
            whole[place] = 1
    return bytes(whole)


def _content(path: Path) -> bytes:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with suppress(FileNotFoundError):
        stat = path.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
    return None
