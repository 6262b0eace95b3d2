"""Copies of a ledger, with its salt, that killed commands of earlier versions left in the temporary folder.

Up to 0.2 the ledger was read from such copies. Nothing here imports torch.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ssse.system.files import overwrite
from ssse.workspace.record.database import FILE, INDEX, JOURNAL, LOG

PREFIX = "ssse-ledger-"
AGE = 3600.0  # seconds, after which nobody reads from it any more
OURS = {FILE, LOG, INDEX, JOURNAL}
LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def sweep() -> int:
    """Overwrite and remove them, as far as they are this user's own. Returns how many there were.

    A folder with anything else in it, a link, or a file that has another name elsewhere, is left alone.
    """
    place = Path(tempfile.gettempdir())
    try:
        names = [entry.name for entry in os.scandir(place) if entry.name.startswith(PREFIX)]
    except OSError:
        return 0
    return sum(_removed(place / name) for name in names)


def _removed(folder: Path) -> bool:
    with suppress(OSError):  # not ours to open, gone meanwhile, or on a disk that is read-only
        handle = os.open(folder, LOOK | os.O_DIRECTORY)  # from here on by this handle: no link can come in its place
        try:
            found = os.fstat(handle)
            names = os.listdir(handle)
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < AGE or not set(names) <= OURS:
                return False
            if all(_is_own_file(os.stat(name, dir_fd=handle, follow_symlinks=False)) for name in names):
                for name in names:
                    _shred(name, handle)
                os.rmdir(folder)
                return True
        finally:
            os.close(handle)
    return False


def _shred(name: str, folder: int) -> None:
    handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    with open(handle, "r+b", buffering=0) as opened:
        if _is_own_file(os.fstat(handle)):
            overwrite(opened)
            os.unlink(name, dir_fd=folder)


def _is_own_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
