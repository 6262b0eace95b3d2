"""How the ledger's SQLite file is opened, read where nothing can be written, and left in one piece. Without torch."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact
from ssse.system import files

FILE = "ledger.sqlite"
LOG, INDEX, JOURNAL = (f"{FILE}-{end}" for end in ("wal", "shm", "journal"))  # SQLite's own; the last is none of ours
WAIT = 30.0  # seconds for another process that reads or writes this very moment
PAUSE = 0.001
ROOM = 1 << 16  # bytes that SQLite needs beside the file even to read


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """A copy of the file and its log, to be read where reading must not write, as SQLite does beside the file.

    For a ledger that nobody writes to; who reads it may still bring the log into the file, so until nothing moved.
    """
    with tempfile.TemporaryDirectory(prefix="ssse-ledger-") as place:
        copy, before = Path(place) / path.name, None
        while before != (before := _stamps(path)):
            for name in (FILE, LOG):
                (copy.parent / name).unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copyfile(path.with_name(name), copy.with_name(name))
        yield copy


def _stamps(path: Path) -> list[Any]:
    stamps = []
    for name in (FILE, LOG):
        with suppress(FileNotFoundError):
            stat = path.with_name(name).stat()
            stamps.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return stamps


def in_place(path: Path) -> sqlite3.Connection | None:
    """None where the disk is read-only or full."""
    writable = os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)
    if not writable or shutil.disk_usage(path.parent).free < ROOM:
        return None
    try:
        return connect(path)
    except sqlite3.OperationalError as error:
        if not _of_the_disk(error):
            raise
        return None


def connect(path: Path) -> sqlite3.Connection:
    if files.size(path.with_name(JOURNAL)):  # SQLite would roll it back into the file before anything else
        raise BrokenArtefact(f"'{path.with_name(JOURNAL)}' should not be there: no command of ssse left it.")
    # isolation_level=None: transactions begin and end where we say. FULL: a commit is on the disk when it returns.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # when the log is brought in, `settle` says
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # what cannot be opened is seen here
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def unsettled(path: Path) -> Iterator[Callable[[], None]]:
    """Nobody brings the log into the file, until what this gives is called: not another program's checkpoint either.

    A reader that began before us, on a connection of its own, is what SQLite does not overtake.
    """
    with closing(connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield lambda: reader.rollback()


def settle(connection: sqlite3.Connection) -> None:
    """Bring the log into the file; waits for readers, who take milliseconds.

    For another program's checkpoint SQLite does not wait by itself.
    """
    end = time.monotonic() + WAIT
    while (busy := connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]) and time.monotonic() < end:
        time.sleep(PAUSE)
    if busy:
        raise OSError(
            errno.EBUSY,
            f"Another program has kept reading the ledger for {WAIT:.0f} s; what was done is in it. The "
            "next command completes it",
        )


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _of_the_disk(error):
            raise OSError(f"The ledger '{path}' cannot be used now: {error}.") from error
        raise BrokenArtefact(f"'{path}' is damaged: {error}.") from error


def _of_the_disk(error: sqlite3.Error) -> bool:
    kinds = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")
    return (getattr(error, "sqlite_errorname", "") or "").startswith(kinds)
