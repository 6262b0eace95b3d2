"""The workspace on disk: what lies where, and how it goes from one whole state to the next.

    ssse.toml             the settings
    ledger.sqlite         what was done, entry by entry
    samples.safetensors   salted digests of the training samples, sorted
    states/000005/        weights.safetensors and curvature/, as entry 5 of the ledger made them
    current               → states/000005
    seal.json             digests of the files that change in place

What counts is the ledger: its newest entry that made a state says which one is current. That state is whole on the disk
before the entry is written, and what it replaces goes afterwards. So a killed process leaves the old state or the new
one, and at most something to tidy up, which the next command does first. Nothing here imports torch.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssse import files
from ssse.errors import BrokenArtefact, Damaged, InvalidSetting, SSSEError
from ssse.workspace import ledger as ledgers
from ssse.workspace import settings as toml
from ssse.workspace.database import LOG
from ssse.workspace.ledger import Entry, Ledger
from ssse.workspace.lock import locked
from ssse.workspace.remains import what_remains
from ssse.workspace.seal import FILE as SEAL
from ssse.workspace.seal import Seal, seal_files
from ssse.workspace.settings import Settings

WEIGHTS, CURVATURE = "weights.safetensors", "curvature"
SAMPLES, PAGE = "samples.safetensors", "report.html"
MAKERS = ("created", "fitted", "calibrated", "erased")  # entries that make a state
TEMPORARY = tuple(f".{name}" for name in (SEAL, PAGE, SAMPLES, "current"))  # beginnings of names before the rename
SPARE = 1 << 20  # bytes beside the state: ledger, seal


@dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / ledgers.FILE

    @property
    def states(self) -> Path:
        return self.path / "states"

    @property
    def current(self) -> Path:
        return self.path / "current"

    def state(self, entry: Entry) -> Path:
        return self.states / state_name(entry)

    def check(self) -> None:
        if not self.path.exists():
            raise InvalidSetting(f"There is no workspace '{self.path}'; `ssse init` makes one.")
        if not self.ledger.is_file() and not (self.path / toml.FILE).is_file():
            raise InvalidSetting(f"'{self.path}' is not a workspace: it has no ledger. `ssse init` makes one.")

    @contextmanager
    def read(self) -> Iterator[Ledger]:
        """The ledger, to read; also while another command is at work."""
        self.check()
        with Ledger.read(self.ledger) as ledger:
            yield ledger

    @contextmanager
    def hold(self, command: str, *, wait: bool = True, waiting: Callable[[], None] = lambda: None) -> Iterator[Hold]:
        """Alone with the workspace. What an earlier command was killed at is finished first.

        Raises:
            Damaged: something is not as it was written. Busy: another command is at work, and we are not to wait.
        """
        self.check()
        with locked(self.path, wait=wait, waiting=waiting):
            self._check_disk()
            hold = None
            try:
                seal = Seal.read(self.path)
                self._refuse_altered(seal)
                with Ledger.open(self.ledger) as ledger:
                    self._refuse_damaged(ledger, seal)
                    hold = Hold(self, ledger, toml.read(self.path / toml.FILE), command, seal)
                    if seal.command is not None:
                        hold.finish()
                    yield hold
            except BaseException as error:
                if hold is not None:
                    hold.give_up()
                if isinstance(error, BrokenArtefact):
                    raise Damaged(str(error)) from error
                raise
            hold.close()

    def _refuse_altered(self, seal: Seal) -> None:
        """Of a workspace at rest, the ledger's file is as it was sealed."""
        if seal.command is not None:
            return
        known = {self.ledger.name, toml.FILE} <= set(seal.files)
        if not known or self.ledger.name in seal.altered(self.path) or files.size(self.path / LOG):
            raise Damaged(f"'{self.ledger}' is not as it was written. Restore a backup; `ssse verify` says more.")

    def _refuse_damaged(self, ledger: Ledger, seal: Seal) -> None:
        """What is about to be relied on. After a kill also what the old state is about to be removed for."""
        expected: dict[str, str] = {}
        if seal.command is not None:
            if found := ledger.damages():
                raise Damaged(f"'{self.ledger}': {found[0]}. `ssse verify` says more.")
            made = ledger.last(*MAKERS)
            if made is not None:
                expected |= {f"states/{state_name(made)}/{name}": d for name, d in made.details["files"].items()}
        if (fitted := ledger.last("fitted")) is not None:
            expected[SAMPLES] = fitted.details["samples_file"]
        for name in Seal(expected).altered(self.path):
            raise Damaged(f"'{self.path / name}' is not as it was written. Restore a backup; `ssse verify` says more.")

    def _check_disk(self) -> None:
        """Before SQLite opens the ledger: on such a disk it says less, and leaves files that cannot be used."""
        if os.statvfs(self.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "The disk is read-only", str(self.path))
        for path in (self.path, self.ledger):
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "You may not write to it", str(path))
        self.check_space(0)

    def check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed + SPARE:
            raise OSError(errno.ENOSPC, f"This needs {needed + SPARE:,} bytes and {free:,} are free", str(self.path))


@dataclass
class Hold:
    """The workspace, held alone by one command."""

    folder: Folder
    ledger: Ledger
    settings: Settings
    command: str
    seal: Seal

    @property
    def current(self) -> Entry:
        """The entry that made the current state."""
        found = self.ledger.last(*MAKERS)
        if found is None:
            raise BrokenArtefact(f"'{self.folder.ledger}' is damaged: no entry made a state.")
        return found

    def finish(self) -> None:
        """What a killed command left. Its page is the old one or the new one, and nobody wrote down which."""
        self.tidy_up()
        if self.seal.command == "report":
            self.seal = self.seal.with_files(seal_files(self.folder.path, (PAGE,)))

    def begin(self) -> None:
        """From here on the workspace changes. Settings that were edited since are written into the ledger first."""
        opened = self.seal.with_files(seal_files(self.folder.path, (toml.FILE,))).opened(self.command)
        if opened != self.seal:
            self.seal = opened
            self.seal.write(self.folder.path)
            self._sweep()
        known = self.ledger.last("created", "configured")
        assert known is not None
        before = toml.check(known.details["settings"], "The ledger")
        if changed := toml.changes(before, self.settings):
            self.ledger.append("configured", None, {"changes": changed, "settings": self.settings.plain()})

    def advance(
        self,
        kind: str,
        request: str | None,
        details: Mapping[str, Any],
        write: Callable[[Path], None],
        samples: Sequence[int] = (),
    ) -> Entry:
        """Write a new state, whole, and only then the entry that makes it the current one."""
        last, before = self.ledger.last(), self.ledger.last(*MAKERS)
        target = self.folder.states / f"{last.seq + 1 if last else 1:06d}"
        unfinished = target.with_name(f".{target.name}")
        files.remove(unfinished)
        unfinished.mkdir(parents=True)
        with files.safetensors_in_words(target):
            write(unfinished)
        files.allow_as_usual(unfinished)
        files.sync_all(unfinished)
        made = files.digests(unfinished)
        os.rename(unfinished, target)
        files.sync(target.parent)
        whole = {**details, "before": before and before.details["after"], "after": summary(made), "files": made}
        entry = self.ledger.append(kind, request, whole, samples)
        self.tidy_up()
        return entry

    def tidy_up(self) -> None:
        """Bring the folder to what the ledger says: after an entry that made a state, or after a kill at any moment."""
        current = self.current
        self._sweep()
        if self.ledger.first("fitted") is None:
            files.remove(self.folder.path / SAMPLES)  # of a first fit that never was entered
        for path in self.folder.states.iterdir():
            if not path.name.isdecimal() or int(path.name) > current.seq:
                files.remove(path)  # was never finished, or never entered into the ledger
        target = f"states/{state_name(current)}"
        if not self.folder.current.is_symlink() or os.readlink(self.folder.current) != target:
            files.point(self.folder.current, target)
        old = self.ledger.last_before(current.seq, *MAKERS)
        if old is None:
            return
        if current.kind == "calibrated":
            files.remove(self.folder.state(old))  # the new state holds the same
            return
        if current.kind == "fitted":
            files.shred(self.folder.state(old))  # a stream's curvature may hold what the new one no longer does
            return
        kept = {part: current.details["old"][part] == "keep" for part in ("weights", "curvature")}
        self._retire(self.folder.state(old), kept)
        files.sync(self.folder.states)
        last = self.ledger.last_of_request(current.request or "")
        if last is not None and last.seq == current.seq:  # erased and not sealed yet
            done = {f"old_{part}": "kept" if keep else "shredded" for part, keep in kept.items()}
            created = self.ledger.first("created")
            assert created is not None
            remains = what_remains(current.details, created.details)
            self.ledger.append("sealed", current.request, {**done, "remains": remains})

    def give_up(self) -> None:
        """After an error: leave the folder tidy and sealed where that still can be, else to the next command."""
        if self.seal.command is None:
            return
        with suppress(OSError, SSSEError):
            with Ledger.open(self.folder.ledger) as ledger:
                again = replace(self, ledger=ledger)
                again.finish()
            again.close()

    def close(self) -> None:
        """After the ledger was closed: what changed in place is sealed as it is now."""
        if self.seal.command is None:
            return
        kept = {name: digest for name, digest in self.seal.files.items() if (self.folder.path / name).is_file()}
        self.seal = Seal(kept).with_files(seal_files(self.folder.path, (ledgers.FILE, toml.FILE)))
        self.seal.write(self.folder.path)

    def write_page(self, text: str) -> Path:
        """The page is sealed too, without an entry: it can be made again at any time."""
        path = self.folder.path / PAGE
        self.begin()
        files.write_atomically(path, text)
        self.seal = self.seal.with_files(seal_files(self.folder.path, (PAGE,)))
        return path

    def _sweep(self) -> None:
        """Files that a killed process was about to rename."""
        for path in self.folder.path.glob(".*"):
            if path.name.startswith(TEMPORARY):
                files.remove(path)

    def _retire(self, state: Path, kept: Mapping[str, bool]) -> None:
        for name, part in ((WEIGHTS, "weights"), (CURVATURE, "curvature")):
            if not kept[part] and (state / name).exists():
                files.shred(state / name)
        if state.is_dir() and not any(state.iterdir()):
            state.rmdir()


def state_name(entry: Entry) -> str:
    return f"{entry.seq:06d}"


def summary(made: Mapping[str, str]) -> dict[str, str | None]:
    """The digests of a state's two parts."""
    curvature = {name: digest for name, digest in made.items() if name.startswith(f"{CURVATURE}/")}
    return {"weights": made[WEIGHTS], "curvature": files.digest_of(curvature) if curvature else None}
