"""Files on a disk that may fill up or lose its power: atomic writes, modes, shredding. Nothing here imports torch.

A private file or folder is its owner's alone from its first moment, whatever the umask; all others have what it allows.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

CHUNK = 1 << 20
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size(path: Path) -> int:
    """0 where there is no such file; another process may remove it at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def behind_link(folder: Path, name: str) -> bool:
    """Whether a file of the folder, or a folder on the way to it, is a symbolic link."""
    steps = Path(name).parts
    return any((folder / Path(*steps[: i + 1])).is_symlink() for i in range(len(steps)))


def write_atomically(path: Path, content: bytes | str, private: bool = False) -> None:
    """The new content or the old, never a part; on the disk when this returns."""
    with new_file(path, private) as opened:
        opened.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_file(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that takes the place of the old one whole or not at all, on the disk when this is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        with os.fdopen(_create(temporary, private), "wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def create_private(path: Path) -> None:
    """An empty file, where there was none."""
    os.close(_create(path, private=True))


def _create(path: Path, private: bool) -> int:
    """The system applies the umask by itself: to ask for it would change it for other threads, for a moment."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE if private else 0o666)
    if private:
        os.fchmod(handle, PRIVATE_FILE)  # an umask may take from the owner, too
    return handle


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{secrets.token_hex(4)}")


def write_new(path: Path, content: bytes, mode: int) -> None:
    """A file that was not there, with this mode whatever the umask; on the disk when this returns, or not there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as opened:
            os.fchmod(opened.fileno(), mode)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def safetensors_in_words(path: Path) -> Iterator[None]:
    """A full disk is no OSError where safetensors meets it."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"'{path}' cannot be written: {error}.") from error


@contextmanager
def new_folder(target: Path, private: bool = False) -> Iterator[Path]:
    """A folder to fill that appears under its name whole or not at all, on the disk when this is done.

    If private, the modes of what is in it are left to who fills it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(target)
    make_private(unfinished)
    try:
        yield unfinished
        if private:
            sync_all(unfinished)
        else:
            file, folder = usual_modes(unfinished)
            settle_modes(unfinished, lambda path: folder if path.is_dir() else file)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync(target.parent)


def make_private(folder: Path) -> None:
    """In a folder that exists."""
    folder.mkdir(PRIVATE_FOLDER)
    folder.chmod(PRIVATE_FOLDER)


def point(link: Path, target: str) -> None:
    """Make a symbolic link point somewhere else, in one step."""
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
    sync(link.parent)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle_modes(folder: Path, mode: Callable[[Path], int]) -> None:
    """Give all that is in a folder, and at last the folder itself, the mode that it should have; and onto the disk."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:  # what is in a folder before the folder
        if not path.is_symlink():
            open_to_owner(path)
            _set_mode(path, mode(path))
            sync(path)


def _set_mode(path: Path, mode: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) != mode:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)


def open_to_owner(path: Path) -> None:
    """An umask may take from the owner, too, in what another library made."""
    if not os.access(path, os.R_OK):
        path.chmod(private_mode(path))


def usual_modes(folder: Path) -> tuple[int, int]:
    """What the umask allows for files and folders in this one, and what their owner needs in any case."""
    probe = folder / f".mode-{secrets.token_hex(4)}"
    probe.mkdir()
    whole = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    return whole & 0o666 | PRIVATE_FILE, whole & 0o777 | PRIVATE_FOLDER


def private_mode(path: Path) -> int:
    return PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE


def sync_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def shred(path: Path) -> None:
    """Overwrite a file, or all files of a folder, and remove it. Journals, snapshots, flash memory may keep copies.

    A symbolic link is removed, and what it points to left alone.
    """
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            shred(child)
        path.rmdir()
        return
    if path.is_file() and not path.is_symlink():
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)  # nor through a link that came just now
        with open(handle, "r+b", buffering=0) as opened:
            overwrite(opened)
    path.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Of something that holds nothing to be forgotten, or whose writing was never finished."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def overwrite(opened: FileIO) -> None:
    left = os.fstat(opened.fileno()).st_size
    while left > 0:
        left -= opened.write(bytes(min(left, CHUNK)))
    os.fsync(opened.fileno())
