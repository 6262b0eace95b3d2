"""Alone with the workspace: how one command takes it from one whole state to the next. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact, Damaged, SSSEError
from ssse.system import files
from ssse.system.digests import digest_file, digest_folder
from ssse.workspace import settings as toml
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.details import read_details
from ssse.workspace.record.folder import (
    CURVATURE,
    MAKERS,
    MODELS,
    PAGE,
    SAMPLES,
    TEMPORARY,
    Folder,
    settle_state,
    state_name,
    summary,
)
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.lock import locked
from ssse.workspace.record.residues import what_remains
from ssse.workspace.record.seal import Seal, seal_files
from ssse.workspace.settings import Settings


@contextmanager
def open_transaction(
    folder: Folder, command: str, *, wait: bool = True, waiting: Callable[[], None] = lambda: None
) -> Iterator[Transaction]:
    """Alone with the workspace. What an earlier command was killed at is finished first.

    Raises:
        Damaged: something is not as it was written. Busy: another command is at work, and we are not to wait.
    """
    folder.check()
    with locked(folder.path, wait=wait, waiting=waiting):
        folder.check_disk()
        folder.check_link()
        transaction = None
        try:
            seal = Seal.read(folder.path)
            folder.refuse_altered(seal)
            with Ledger.open(folder.ledger) as ledger:
                folder.refuse_damaged(ledger, seal)
                seal = seal.in_todays_form(folder.path)
                killed = seal.command is not None
                settings = toml.read(folder.path / toml.FILE)
                if (known := ledger.last("created", "configured")) is not None:
                    toml.refuse_other_code(toml.check(known.details["settings"], "The ledger"), settings)
                transaction = Transaction(folder, ledger, settings, command, seal, recovered=killed)
                if killed:
                    transaction.finish()
                yield transaction
        except BaseException as error:
            if transaction is not None:
                transaction.give_up()
            if isinstance(error, BrokenArtefact):
                raise Damaged(str(error)) from error
            raise
        transaction.close()


@dataclass
class Transaction:
    """The workspace, locked by one command, on its way from one whole state to the next."""

    folder: Folder
    ledger: Ledger
    settings: Settings
    command: str
    seal: Seal
    recovered: bool = False  # whether the sealed ledger is one from before a kill

    @property
    def current(self) -> Entry:
        """The entry that made the current state."""
        made = self.ledger.last(*MAKERS)
        if made is None:
            raise BrokenArtefact(f"'{self.folder.ledger}' is damaged: no entry made a state.")
        return made

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
            self.ledger.append("configured", None, {"changes": changed, "settings": self.settings.to_dict()})

    def advance(
        self,
        kind: str,
        request: str | None,
        details: Mapping[str, Any],
        write: Callable[[Path], None],
        samples: Sequence[int] = (),
        check: Callable[[Path], None] = lambda folder: None,
    ) -> Entry:
        """Write a new state, whole, and only then the entry that makes it the current one.

        `check`: raises where what was written does not read back as it should; then the old state stays the current
        one, and nothing of it is removed.
        """
        last, before = self.ledger.last(), self.ledger.last(*MAKERS)
        target = self.folder.states / f"{last.seq + 1 if last else 1:06d}"
        unfinished = target.with_name(f".{target.name}")
        files.remove(unfinished)
        files.make_private(unfinished)
        with files.safetensors_in_words(target):
            write(unfinished)
        settle_state(unfinished)
        made = digest_folder(unfinished)
        check(unfinished)
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
        if current.kind != "erased":
            self._supersede(self.folder.state(old), self.folder.state(current))
            return
        kept = {part: current.details["old"][part] == "keep" for part in ("weights", "curvature")}
        for path in sorted(self.folder.states.iterdir()):
            if path.name != state_name(current):  # also what earlier requests kept
                self._retire(path, kept)
        files.sync(self.folder.states)
        last = self.ledger.last_of_request(current.request or "")
        if last is not None and last.seq == current.seq:  # erased and not sealed yet
            done = {f"old_{part}": "kept" if keep else "shredded" for part, keep in kept.items()}
            created = self.ledger.first("created")
            assert created is not None
            remains = what_remains(*(read_details(entry.kind, entry.details) for entry in (current, created)))
            self.ledger.append("sealed", current.request, {**done, "remains": remains})

    def give_up(self) -> None:
        """After an error: leave the folder tidy and sealed where that still can be, else to the next command."""
        if self.seal.command is None:
            return
        with suppress(OSError, SSSEError):
            carried = self.seal.with_files(Seal({ledgers.FILE: self._ledger_now()}))
            with Ledger.open(self.folder.ledger) as ledger:
                again = replace(self, ledger=ledger, seal=carried)
                again.finish()
            again.close()

    def close(self) -> None:
        """After the ledger was closed: what changed in place is sealed as it is now."""
        if self.seal.command is None:
            return
        kept = {name: digest for name, digest in self.seal.files.items() if (self.folder.path / name).is_file()}
        kept[ledgers.FILE] = self._ledger_now()
        self.seal = Seal(kept).with_files(seal_files(self.folder.path, (toml.FILE,)))
        self.seal.write(self.folder.path)

    def _ledger_now(self) -> str:
        """Its digest after what this command wrote.

        A file that somebody altered while the command worked keeps the digest that was sealed, which it does not match:
        an alteration cannot slip into a new seal.
        """
        sealed, before = self.seal.files.get(ledgers.FILE), self.ledger.digest_before
        altered = not self.recovered and sealed is not None and before is not None and before != sealed
        return sealed if altered and sealed is not None else digest_file(self.folder.ledger)

    def write_page(self, text: str) -> Path:
        """The page is sealed too, without an entry: it can be made again at any time."""
        path = self.folder.path / PAGE
        self.begin()
        files.write_atomically(path, text, private=True)
        self.seal = self.seal.with_files(seal_files(self.folder.path, (PAGE,)))
        return path

    def _sweep(self) -> None:
        """Files that a killed process was about to rename."""
        for path in self.folder.path.glob(".*"):
            if path.name.startswith(TEMPORARY):
                files.remove(path)

    def _supersede(self, old: Path, new: Path) -> None:
        """The weights live on under a new name; a stream's curvature may hold what the new one no longer does."""
        if not old.exists():
            return
        for name in MODELS:
            if (old / name).exists() and (new / name).exists() and (old / name).samefile(new / name):
                (old / name).unlink()  # to overwrite it would be to overwrite the new one
        files.shred(old)

    def _retire(self, state: Path, kept: Mapping[str, bool]) -> None:
        for name, part in (*((name, "weights") for name in MODELS), (CURVATURE, "curvature")):
            if not kept[part] and (state / name).exists():
                files.shred(state / name)
        if state.is_dir() and not any(state.iterdir()):
            state.rmdir()
