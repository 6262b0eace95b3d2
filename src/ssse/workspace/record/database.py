"""How the ledger's SQLite file is opened, read where nothing can be written, and left in one piece. Without torch."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ssse.errors import BrokenArtefact, InvalidSetting
from ssse.system import files
from ssse.workspace.record.image import image

FILE = "ledger.sqlite"
LOG, INDEX, JOURNAL = (f"{FILE}-{end}" for end in ("wal", "shm", "journal"))  # SQLite's own; the last is none of ours
WAIT = 30.0  # seconds for another process that reads or writes this very moment
PAUSE = 0.001
ROOM = 1 << 16  # bytes that SQLite needs beside the file even to read


def in_memory(path: Path) -> sqlite3.Connection:
    """To be read where reading must not write, as SQLite does beside the file. For a ledger that nobody writes to."""
    _refuse_journal(path)
    if not hasattr(sqlite3.Connection, "deserialize"):
        raise InvalidSetting(
            "The SQLite of this Python was built without deserialize, and without it the ledger could only be read "
            "from a copy, which would hold its secrets. Use another Python."
        )
    content = image(path, path.with_name(LOG))
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute("PRAGMA temp_store = MEMORY")  # nothing of it is sorted in a file either
        if content:  # SQLite takes an empty file for an empty database, and refuses empty bytes
            connection.deserialize(content)
        _look(connection)
    except BaseException:
        connection.close()
        raise
    return connection


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
    _refuse_journal(path)
    # isolation_level=None: transactions begin and end where we say. FULL: a commit is on the disk when it returns.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # when the log is brought in, `settle` says
        connection.execute("PRAGMA temp_store = MEMORY")
        _look(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_journal(path: Path) -> None:
    if files.size(path.with_name(JOURNAL)):  # SQLite would roll it back into the file before anything else
        raise BrokenArtefact(f"'{path.with_name(JOURNAL)}' should not be there: no command of ssse left it.")


def _look(connection: sqlite3.Connection) -> None:
    """What cannot be opened is seen here."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


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
        # Of a text that it cannot read SQLite shows a part, and no part of the ledger goes to a terminal.
        what = str(error).partition(" with text ")[0]
        raise BrokenArtefact(f"'{path}' is damaged: {what}.") from error
    except UnicodeDecodeError as error:  # so does what SQLite itself says of names that are no text
        raise BrokenArtefact(f"'{path}' is damaged: it holds names that are no UTF-8.") from error


def _of_the_disk(error: sqlite3.Error) -> bool:
    kinds = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")
    return (getattr(error, "sqlite_errorname", "") or "").startswith(kinds)
