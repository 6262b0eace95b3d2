"""Files on a disk that may fill up or lose its power: atomic writes, shredding. Nothing here imports torch."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

CHUNK = 1 << 20


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


def write_atomically(path: Path, content: bytes | str) -> None:
    """The new content or the old, never a part; on the disk when this returns."""
    with new_file(path) as opened:
        opened.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of the old one whole or not at all, on the disk when this is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as opened:
            yield opened
            opened.flush()
            os.fchmod(opened.fileno(), 0o666 & ~umask())
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync(path.parent)


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
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that appears under its name whole or not at all, on the disk when this is done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~umask())  # mkdtemp makes folders that only the owner can read
        allow_as_usual(unfinished)
        sync_all(unfinished)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync(target.parent)


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


def allow_as_usual(folder: Path) -> None:
    """safetensors writes files that only their owner may read; who serves the model may be somebody else."""
    allowed = 0o666 & ~umask()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(allowed)


def sync_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def shred(path: Path) -> None:
    """Overwrite a file, or all files of a folder, and remove it. Journals, snapshots, flash memory may keep copies."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            shred(child)
        path.rmdir()
        return
    if path.is_file() and not path.is_symlink():
        _overwrite(path)
    path.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Of something that holds nothing to be forgotten, or whose writing was never finished."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _overwrite(path: Path) -> None:
    left = path.stat().st_size
    with path.open("r+b", buffering=0) as opened:
        while left > 0:
            left -= opened.write(bytes(min(left, CHUNK)))
        os.fsync(opened.fileno())


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
