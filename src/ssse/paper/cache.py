"""What was computed once is not computed again: trained models, curvatures and measured requests, kept by content.

A key is the digest of everything that the value depends on: the data, the settings, and the source of the code that
makes it. An interrupted run therefore goes on where it stopped, and a changed recipe never meets an old value.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache as once
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ssse.curvature.curvature import Curvature
from ssse.errors import BrokenArtefact
from ssse.system.digests import bytes_of, digest_bytes, digest_parts
from ssse.system.files import write_atomically
from ssse.system.store import TENSORS, read_folder, write_folder

PACKAGE = Path(__file__).parents[1]
AROUND = ("rendering", "intake", "workspace", "paper", "cli")  # rooms that bring files to the numbers, or take them on
SHOWN = ("__main__", "demo", "figures")  # what only shows numbers does not change them
LARGEST = 4 * 2**30  # bytes of a curvature; a larger one costs more to read back than it is worth


class Cache:
    """A folder of values. What is in it may be deleted at any time; what is broken is made anew."""

    def __init__(self, folder: str | os.PathLike[str] | None):
        self.folder: Path | None = None if folder is None else Path(folder)
        self.found: int = 0
        self.made: int = 0
        self.saved: float = 0.0  # seconds that what was found took when it was made, everything once
        self._worked = 0.0  # seconds that this run spent on making values
        self._counted: set[str] = set()  # made or found in this run: no longer saved
        self._open: list[dict[str, float]] = [{}]  # what was needed for the value at work, with the seconds of each

    def has(self, key: str) -> bool:
        return self.folder is not None and (self.folder / key).exists()

    def tensors(self, key: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """For instance the parameters of a trained model."""

        def write(path: Path, value: Mapping[str, Tensor]) -> None:
            write_folder(path, TENSORS, value, {})

        return dict(self._get(key, make, write, lambda path: read_folder(path, TENSORS)[0]))

    def curvature(self, key: str, make: Callable[[], Curvature]) -> Curvature:
        def write(path: Path, value: Curvature) -> None:
            size = sum(t.numel() * t.element_size() for t in value.structure.state().values())
            if size <= LARGEST:
                value.save(path)

        return self._get(key, make, write, Curvature.load)

    def numbers(self, key: str, make: Callable[[], Any]) -> Any:
        """Anything that JSON can hold; NaN included."""

        def write(path: Path, value: Any) -> None:
            body = json.dumps(value)
            write_atomically(path, f"{digest_bytes(body)}\n{body}\n")

        def read(path: Path) -> Any:
            digest, _, body = path.read_text(encoding="utf-8").partition("\n")
            if digest_bytes(body.rstrip("\n")) != digest:
                raise BrokenArtefact(f"'{path}' does not match its digest.")
            return json.loads(body)

        return self._get(key, make, write, read)

    def _get(self, key: str, make: Callable[[], Any], write: Callable[[Path, Any], None], read: Callable[[Path], Any]):
        if self.folder is None:
            return make()
        path, clock = self.folder / key, self.folder / f"{key}.seconds"
        if path.exists():
            try:
                value, seconds = read(path), _read_seconds(clock, key)
            except (BrokenArtefact, ValueError, OSError):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            else:
                self.found += key not in self._counted
                self.saved += sum(own for name, own in seconds.items() if name not in self._counted)
                self._count(seconds)
                return value
        started, worked = time.perf_counter(), self._worked
        self._open.append({})
        try:
            value = make()
        finally:
            seconds = self._open.pop()
        own = time.perf_counter() - started - (self._worked - worked)
        self.made, self._worked = self.made + 1, self._worked + own
        seconds[key] = own
        self._count(seconds)
        write_atomically(clock, json.dumps(seconds))
        try:
            write(path, value)
        except OSError:
            if not path.exists():  # else another run was quicker
                raise
        return value

    def _count(self, seconds: Mapping[str, float]) -> None:
        self._counted.update(seconds)
        self._open[-1].update(seconds)


def _read_seconds(path: Path, key: str) -> dict[str, float]:
    """By key, those of the value itself and of everything that was needed for it; each without the others."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {name: float(own) for name, own in (stored if isinstance(stored, dict) else {key: stored}).items()}


def key_of(name: str, *parts: Any) -> str:
    """NAME-digest. Parts: tensors, modules of source code, or what JSON can hold."""
    digest = digest_parts(chunk for part in parts for chunk in (*_content_of(part), b"\0"))
    return f"{name}-{digest[:24]}"


def _content_of(part: Any) -> Iterator[bytes | str | memoryview]:
    if isinstance(part, Tensor):
        yield f"{part.dtype}{tuple(part.shape)}"
        yield bytes_of(part.reshape(1, -1)).tobytes()
    elif isinstance(part, ModuleType):
        yield inspect.getsource(part)
    else:
        yield json.dumps(part, sort_keys=True)


@once
def engine() -> str:
    """The digest of this package's source and of torch's version: what a number depends on besides its data."""
    names = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    computing = [name for name in names if name.parts[0] not in AROUND and name.stem not in SHOWN]
    sources = (name.as_posix().encode() + (PACKAGE / name).read_bytes() for name in computing)
    return digest_parts([torch.__version__, *sources])
