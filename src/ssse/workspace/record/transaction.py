"""Alone with the workspace: how one command takes it from one whole state to the next. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssse.errors import BrokenArtefact, Damaged, InvalidSetting, SSSEError
from ssse.system import files
from ssse.system.digests import digest_file, digest_folder
from ssse.system.lock import locked
from ssse.workspace import settings as toml
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.anchors import Anchors
from ssse.workspace.record.configuration import read_settings, recorded_settings
from ssse.workspace.record.details import read_details
from ssse.workspace.record.folder import (
    CURVATURE,
    FITTING,
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
from ssse.workspace.record.holdings import read_holdings
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.residues import what_remains
from ssse.workspace.record.seal import Seal, seal_files
from ssse.workspace.record.signing import Signing, read_signing, recorded_command
from ssse.workspace.settings import Settings

UPGRADE = (
    "This workspace was made by an earlier version, and has no place for signatures and no heads to publish: `ssse "
    "upgrade` it first."
)


@contextmanager
def open_transaction(
    folder: Folder,
    command: str,
    *,
    options: Mapping[str, Any] | None = None,
    record: Mapping[str, str | None] | None = None,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Transaction]:
    """Alone with the workspace. What an earlier command was killed at is finished first; what was done is published.

    `options`: settings of this one call, of which the anchors are taken here. `record`: what of the section [record] is
    to be changed, for good.

    Raises:
        Damaged: something is not as it was written. Busy: another command is at work, and we are not to wait.
        NotPublished: all is done, and its head did not get to its anchor.
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
                given = record or {}
                settings = read_settings(folder.path, ledger, seal.command, given)
                anchors = Anchors.of(folder.path, settings, recorded_command(ledger), options)
                anchors.check(ledger, seal.published)
                signing = read_signing(folder.path, ledger, settings, change="key" in given)
                if not ledger.has_leaves and command != "upgrade" and (anchors or signing.key):
                    raise InvalidSetting(UPGRADE)
                ledger.signer = signing.key
                # After a kill the seal is from before it, and the ledger was read from end to end instead.
                digest = digest_file(folder.ledger) if killed else seal.files[ledgers.FILE]
                transaction = Transaction(folder, ledger, settings, command, seal, digest, signing, anchors)
                if killed:
                    transaction.finish()
                else:
                    folder.check_target(transaction.current)
                    read_holdings(ledger)  # the entries that tidying up goes by are whole, before anything is written
                yield transaction
        except BaseException as error:
            if transaction is not None:
                transaction.give_up()
            if isinstance(error, BrokenArtefact):
                raise Damaged(str(error)) from error
            raise
        transaction.close()
        transaction.publish()


@dataclass
class Transaction:
    """The workspace, locked by one command, on its way from one whole state to the next."""

    folder: Folder
    ledger: Ledger
    settings: Settings
    command: str
    seal: Seal
    ledger_digest: str | None = None  # of the ledger's file when this command began; None where it makes the ledger
    signing: Signing = field(default_factory=Signing)
    anchors: Anchors = field(default_factory=Anchors)

    @property
    def current(self) -> Entry:
        """The entry that made the current state."""
        made = self.ledger.last(*MAKERS)
        if made is None:
            raise BrokenArtefact(f"'{self.folder.ledger}' is damaged: no entry made a state.")
        return made

    @property
    def recorded(self) -> Settings:
        """What the ledger knows of the settings."""
        known = self.ledger.last("created", "configured")
        assert known is not None
        return recorded_settings(known)

    def finish(self) -> None:
        """What a killed command left. Its page is the old one or the new one, and nobody wrote down which."""
        if self.signing.changed and self.ledger.has_leaves:
            self.record_settings()  # what is yet to be entered is signed by the new key, which must be named before
        self.tidy_up()
        if self.seal.command == "report":
            self.seal = self.seal.with_files(seal_files(self.folder.path, (PAGE,)))

    def begin(self) -> None:
        """From here on the workspace changes. Settings that were edited since are written into the ledger first."""
        self.open_seal()
        self.record_settings()

    def open_seal(self) -> None:
        opened = self.seal.with_files(seal_files(self.folder.path, (toml.FILE,))).opened(self.command)
        if opened != self.seal:
            self.seal = opened
            self.seal.write(self.folder.path)
            self._sweep()

    def record_settings(self) -> None:
        """What was edited, and which key is in force from here on."""
        changed = toml.changes(self.recorded, self.settings)
        if changed or self.signing.changed:
            details = {"changes": changed, "settings": self.settings.to_dict(), **self.signing.named()}
            self.ledger.append("configured", None, details)
            self.signing = replace(self.signing, old=self.signing.public)

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
        self.check_ledger()
        whole = {**details, "before": before and before.details["after"], "after": summary(made), "files": made}
        entry = self.ledger.append(kind, request, whole, samples)
        self.tidy_up()
        return entry

    def settle(self, details: Mapping[str, Any]) -> Entry:
        """All that waits is confirmed; what was kept for it goes, as the settings say."""
        self.check_ledger()
        entry = self.ledger.append("confirmed", None, details)
        self.tidy_up()
        return entry

    def check_ledger(self) -> None:
        """Before anything that cannot be taken back: the whole of the ledger's file is as it was when we began.

        What this command has written is not in it yet: SQLite writes into its log first.
        """
        if self.ledger_digest is not None and digest_file(self.folder.ledger) != self.ledger_digest:
            raise Damaged(
                f"'{self.folder.ledger}' was altered while this command worked, and not by it. Nothing of the old "
                "state was removed. Restore a backup; `ssse verify` says more."
            )

    def tidy_up(self) -> None:
        """Bring the folder to what the ledger says: after an entry that made a state, or after a kill at any moment."""
        self.check_ledger()
        there = read_holdings(self.ledger)
        current = there.current
        for name in there.files:
            self.folder.refuse_linked(name)
        self._sweep()
        if self.ledger.first("fitted") is None:
            files.remove(self.folder.path / SAMPLES)  # of a first fit that never was entered
        for path in self.folder.states.iterdir():
            if not path.name.isdecimal() or int(path.name) > current.seq:
                files.remove(path)  # was never finished, or never entered into the ledger
        target = f"states/{state_name(current)}"
        if not self.folder.current.is_symlink() or os.readlink(self.folder.current) != target:
            files.point(self.folder.current, target)
        for path in sorted(self.folder.states.iterdir()):
            self._retire(path, there.files)
        files.sync(self.folder.states)
        created = self.ledger.created
        repaired = self.ledger.last_in_force("repaired") if there.unsealed else None
        for entry in there.unsealed:
            fates = {"keep": "kept", "shred": "shredded"}
            done = {f"old_{part}": fates[fate] for part, fate in entry.details["old"].items()}
            erased, made = (read_details(one.kind, one.details) for one in (entry, created))
            since = repaired is not None and repaired.seq > entry.seq
            remains = what_remains(erased, made, repaired=since)
            self.ledger.append("sealed", entry.request, {**done, "remains": remains})

    def give_up(self) -> None:
        """After an error: leave the folder tidy and sealed where that still can be, else to the next command."""
        if self.seal.command is None:
            return
        with suppress(OSError, SSSEError):
            if self._altered():
                self.close()  # with the digest that the ledger does not match
                return
            carried = self.seal.with_files(Seal({ledgers.FILE: self._ledger_now()}))
            with Ledger.open(self.folder.ledger, after=self.ledger) as ledger:
                ledger.signer = self.signing.key
                again = replace(self, ledger=ledger, seal=carried, ledger_digest=carried.files[ledgers.FILE])
                again.finish()
            again.close()

    def close(self) -> None:
        """After the ledger was closed: what changed in place is sealed as it is now."""
        if self.seal.command is None:
            return
        kept = {name: digest for name, digest in self.seal.files.items() if (self.folder.path / name).is_file()}
        kept[ledgers.FILE] = self._ledger_now()
        self.seal = replace(self.seal, files=kept, command=None).with_files(seal_files(self.folder.path, (toml.FILE,)))
        self.seal.write(self.folder.path)

    def publish(self) -> None:
        """After all is sealed: the head goes to its anchors, where it is not there yet."""
        published = {**self.seal.published, **self.anchors.publish(self.folder.ledger, self.seal.published)}
        if published != self.seal.published and self.seal.command is None:
            self._sweep()  # a process that was killed here left a seal that is closed, so nobody else does
            self.seal = replace(self.seal, published=published)
            self.seal.write(self.folder.path)

    def _ledger_now(self) -> str:
        """Its digest after what this command wrote.

        A file that somebody altered while the command worked keeps the digest that was sealed, which it does not match:
        an alteration cannot slip into a new seal.
        """
        sealed = self.seal.files.get(ledgers.FILE)
        return sealed if self._altered() and sealed is not None else digest_file(self.folder.ledger)

    def _altered(self) -> bool:
        before = self.ledger.digest_before
        known = None not in (before, self.ledger_digest)
        return self.ledger.foreign or (known and before != self.ledger_digest)

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
            if path.name == FITTING:
                files.shred(path)  # it holds sums over samples, and may hold their rows
            elif path.name.startswith(TEMPORARY):
                files.remove(path)

    def _retire(self, state: Path, expected: Mapping[str, str]) -> None:
        """What of an old state is not to be there any more. A link is never entered: what is behind it is not ours."""
        if state.is_symlink():
            state.unlink()
            return
        for name in (*MODELS, CURVATURE):
            path, where = state / name, f"states/{state.name}/{name}"
            if not os.path.lexists(path) or any(one == where or one.startswith(f"{where}/") for one in expected):
                continue
            if path.is_symlink() or any(
                path.samefile(self.folder.path / one) for one in expected if self._is_model(one)
            ):
                path.unlink()  # the model lives on under a new name: to overwrite it would be to overwrite that one
            else:
                files.shred(path)
        if state.is_dir() and not any(state.iterdir()):
            state.rmdir()

    def _is_model(self, name: str) -> bool:
        path = self.folder.path / name
        return path.name in MODELS and path.exists()
