"""A fit that survives: what every process has summed so far, in a folder, for whatever number of processes goes on.

Each part in the folder holds sums over some samples, and says over which. A part that only grows (a Gram matrix) takes
the place of those that it has taken in; rows are written once, and a later part holds those that came since. A process
may be killed at any moment: a part is there whole or not at all, and one that another has taken in is not counted.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssse.curvature.structure import Builder
from ssse.curvature.sums import Sums
from ssse.errors import Busy, InvalidData, InvalidSetting
from ssse.problem.batches import read_batch
from ssse.problem.sample_counts import SampleCounter
from ssse.problem.sample_digests import digest_to_count
from ssse.problem.shares import samples_at
from ssse.system import files
from ssse.system.group import Group
from ssse.system.lock import HAS_LOCKS, locked
from ssse.system.store import CHECKPOINT, MANIFEST, read_folder, write_folder

EVERY = 180.0  # seconds between two parts of a process
PATIENCE = 10.0  # seconds: of a fit that was killed, workers that read its data may be left for so long
SUMS, DIGESTS, PLACES = "sums", "digests", "places"
LOOKED_AT = 8  # samples of a part, to see whether the data is still the same
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Part:
    """Of a fit: sums over the samples at some places of the data.

    Attributes:
        places: one bool for each sample of the data. digests: of those that are in the sums, in their order.
    """

    path: Path
    places: np.ndarray
    digests: np.ndarray
    replaces: tuple[str, ...]

    def check(self, data: Iterable[Any]) -> None:
        """Whether the data is still what it was: of a few samples."""
        inside = self.places.nonzero()[0]
        looked = np.unique(np.linspace(0, len(inside) - 1, LOOKED_AT).astype(np.int64))
        batches = (read_batch(batch, None) for batch in samples_at(data, inside[looked]))
        now = np.concatenate([digest_to_count(batch) for batch in batches])
        if not np.array_equal(now, self.digests[looked]):
            raise InvalidData(
                f"'{self.path}' is of other samples than the data has now at the same places. Give the data in the "
                "order in which it was, or remove the folder, and fit anew."
            )


@dataclass
class Checkpoints:
    """The parts in a folder, all of one fit. `of`: what that fit is declared to be."""

    folder: Path
    of: Mapping[str, str]
    total: int
    every: float = EVERY
    parts: list[Part] = field(default_factory=list)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], of: Mapping[str, Any], total: int, every: float) -> Checkpoints:
        """Read which samples are done.

        Raises:
            InvalidSetting: a part is of another fit; names it, and what is different. InvalidData: two parts are of the
                same samples.
        """
        found = cls(Path(folder), {key: str(value) for key, value in of.items()}, total, every)
        read = [found._read(path) for path in found._paths()]
        gone = {name for part in read for name in part.replaces}
        found.parts = [part for part in read if part.path.name not in gone]
        for i, part in enumerate(found.parts):
            for other in found.parts[:i]:
                if bool((part.places & other.places).any()):
                    raise InvalidData(
                        f"The parts '{other.path.name}' and '{part.path.name}' in '{folder}' are of the same samples, "
                        "as where two fits write to one folder. Remove the folder, and fit anew."
                    )
        return found

    @property
    def done(self) -> np.ndarray:
        return np.logical_or.reduce([np.zeros(self.total, dtype=bool), *(part.places for part in self.parts)])

    def taken_by(self, group: Group) -> list[Part]:
        """The parts that one process goes on with."""
        return [part for place, part in enumerate(self.parts) if group.owns(place)]

    def _paths(self) -> list[Path]:
        """Of whole parts; one that was killed while it was written has a name that begins with a point."""
        named = [path.parent for path in self.folder.glob(f"*/{MANIFEST}")]
        return sorted(path for path in named if not path.name.startswith("."))

    def remove(self) -> None:
        """All parts, and what was killed while it was written."""
        for path in self._paths():
            take_away(path)
        for path in self.folder.glob(".0*"):
            files.remove(path)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _read(self, path: Path) -> Part:
        tensors, manifest = read_folder(path, CHECKPOINT, verify=False)
        for key, value in self.of.items():
            if manifest["of"].get(key) != value:
                raise InvalidSetting(
                    f"'{path}' is a part of a fit with another {key}: {manifest['of'].get(key)}, and now {value}. Go "
                    "on as it was begun, or remove the folder."
                )
        places = np.unpackbits(tensors[PLACES].numpy(), count=self.total).astype(bool)
        digests = tensors[DIGESTS].numpy().view(np.uint64)
        return Part(path, places, digests, tuple(manifest["replaces"]))


@contextmanager
def alone_with(folder: Path, group: Group) -> Iterator[None]:
    """Two fits that write to one folder would take away each other's parts. On a system without locks nobody looks.

    Raises:
        Busy: another fit is at work there.
    """
    with ExitStack() as held:
        with group.together():
            if group.first and HAS_LOCKS:
                _lock(folder, held)
        try:
            yield
        finally:
            if group.first and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _lock(folder: Path, held: ExitStack) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files.open_to_owner(folder)
            held.enter_context(locked(folder, wait=False))
        except FileNotFoundError:  # just now another fit was through with it
            continue
        except Busy:
            if time.monotonic() > until:
                raise Busy(f"Another fit is at work in '{folder}': each needs a folder of its own.") from None
            time.sleep(0.1)
            continue
        return


def take_away(part: Path) -> None:
    """Under its name it is whole or not there: a kill may come between two of its files."""
    if part.is_dir():
        hidden = part.with_name(f".{part.name}")
        files.remove(hidden)
        part.rename(hidden)
        files.remove(hidden)


class NotKept:
    """Of a fit without a folder."""

    resumed: bool = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        yield

    def passed(self, count: int) -> None: ...

    def remove(self) -> None: ...


class Keeper:
    """What one process has done, and what of it is in the folder.

    Attributes:
        resumed: whether something was done before.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        group: Group,
        places: np.ndarray,
        builder: Builder | None,
        sums: Sums,
        dim: int,
        counter: SampleCounter,
    ):
        """`places`: of the samples that will pass. The parts that this process goes on with are taken in."""
        self.checkpoints = checkpoints
        self.group = group
        self.resumed: bool = bool(checkpoints.parts)
        self._places, self._builder, self._sums, self._dim, self._counter = places, builder, sums, dim, counter
        self._grows = builder is None or not builder.keeps_rows
        self._own: list[str] = []  # parts that the next one takes the place of
        self._first = self._passed = 0  # of `places`, in the next part
        self._earlier = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64))  # places and digests
        self._stopped: int | None = None
        self._before: dict[int, Any] = {}
        self._last = time.monotonic()
        for part in checkpoints.taken_by(group):
            self._take_in(part)
        self._saved = Sums()
        if not self._grows:  # what was read is on disk, and stays there
            self._forget()
        counter.include(self._earlier[1])

    def _take_in(self, part: Part) -> None:
        tensors, _ = read_folder(part.path, CHECKPOINT)
        digests, sums = tensors.pop(DIGESTS).numpy().view(np.uint64), tensors.pop(SUMS)
        tensors.pop(PLACES)
        if self._builder is not None:
            self._builder.take_in({name: value.to(self.group.device) for name, value in tensors.items()})
        self._sums.include(sums.to(self.group.device))
        self._earlier = (
            np.concatenate([self._earlier[0], part.places.nonzero()[0]]),
            np.concatenate([self._earlier[1], digests]),
        )
        self._own += [part.path.name, *part.replaces]  # of those a kill may have left some

    def passed(self, count: int) -> None:
        """So many more samples are in the sums. Stops here where somebody asked for it."""
        self._passed += count
        if self._stopped is not None or time.monotonic() - self._last > self.checkpoints.every:
            self.save()
        if self._stopped is not None:
            self._stop(self._stopped)

    def _stop(self, number: int) -> None:
        """As it would have been without us."""
        signal.signal(number, self._before[number])
        os.kill(os.getpid(), number)

    def save(self) -> None:
        self._last = time.monotonic()
        if self._passed == self._first:
            return
        fresh = self._counter.digests[len(self._earlier[1]) :]  # more may have been read than is in the sums
        part = slice(0 if self._grows else self._first, self._passed)
        places, digests = self._places[part], fresh[part]
        if self._grows:
            places, digests = (np.concatenate(pair) for pair in zip(self._earlier, (places, digests), strict=True))
        held, sums = np.zeros(self.checkpoints.total, dtype=bool), self._sums
        held[places] = True
        if not self._grows:
            sums = sums.less(self._saved)
        tensors = {} if self._builder is None else self._builder.since_last()
        tensors |= {
            SUMS: sums.packed(self._dim, self.group.device),
            DIGESTS: torch.from_numpy(digests[np.argsort(places)].view(np.int64)),
            PLACES: torch.from_numpy(np.packbits(held)),
        }
        name = f"{self.group.rank:05d}-{secrets.token_hex(6)}"
        replaces = self._own if self._grows else []
        about = {"of": dict(self.checkpoints.of), "replaces": replaces}
        write_folder(self.checkpoints.folder / name, CHECKPOINT, tensors, about)
        for gone in replaces:
            take_away(self.checkpoints.folder / gone)
        self._own = [name] if self._grows else [*self._own, name]
        self._first = self._passed
        if not self._grows:
            self._forget()

    def remove(self) -> None:
        """All of it is in a curvature now, on all processes."""
        with self.group.together():
            pass
        with self.group.together():
            if self.group.first:
                self.checkpoints.remove()

    def _forget(self) -> None:
        """What is in the sums now is on disk."""
        self._saved = self._sums.copied()
        if self._builder is not None:
            self._builder.mark()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C are heard between two batches, and what was done till then is left in the folder. Not
        where they are ignored, as in the background of a script.

        All of it is there when this is done: from then on a process waits for others, and may end at any moment.
        """
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in heard}
        try:
            yield
            if not self.group.alone or self._own:
                self.save()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self._stopped is not None:  # by the last moment: all of it is there
            self._stop(self._stopped)

    def _hear(self, number: int, _: Any) -> None:
        self._stopped = number
