"""`ssse verify`: every byte of a workspace against what the ledger and the seal say. Reads only, without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ssse.errors import BrokenArtefact, InvalidSetting
from ssse.system import files
from ssse.system.digests import digest_file
from ssse.workspace import settings as toml
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.database import (
    INDEX,
    JOURNAL,
    LOG,
    copied,
)
from ssse.workspace.record.folder import (
    MAKERS,
    MODELS,
    PAGE,
    SAMPLES,
    Folder,
    state_name,
    summary,
)
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.lock import locked
from ssse.workspace.record.seal import FILE as SEAL
from ssse.workspace.record.seal import Seal

LINKED = "is a symbolic link, or lies behind one"


@dataclass
class Verification:
    """What was found.

    Attributes:
        damages: the file, and what is wrong with it. notes: what is worth knowing and no damage.
        head: the hash of the newest entry. entries: how many were checked. checked: the files, by name.
        interrupted: the command that was under way when a process died, which the next command finishes.
    """

    damages: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    head: str | None = None
    entries: int = 0
    checked: list[str] = field(default_factory=list)
    interrupted: str | None = None

    @property
    def files(self) -> int:
        return len(self.checked)

    @property
    def ok(self) -> bool:
        return not self.damages

    def damage(self, name: str, what: str) -> None:
        self.damages.append((name, what))

    def plain(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "damages": [{"file": name, "what": what} for name, what in self.damages],
            "notes": self.notes,
            "head": self.head,
            "entries": self.entries,
            "files": self.files,
            "interrupted": self.interrupted,
        }


def verify(
    folder: Folder, *, head: str | None = None, wait: bool = True, waiting: Callable[[], None] = lambda: None
) -> Verification:
    """Check ledger, settings, weights, curvature, digests. `head`: a hash noted earlier, which must still be there."""
    folder.check()
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise InvalidSetting(f"A head is all 64 characters of a hash, as `ssse log` prints it last; not {head!r}.")
    with locked(folder.path, shared=True, wait=wait, waiting=waiting):
        found = Verification()
        seal = _check_seal(folder, found)
        entries = _check_ledger(folder, seal, head, found)
        if entries is not None:
            try:
                _check_states(folder, entries, seal.files if seal else (), found)
            except (KeyError, TypeError, AttributeError, IndexError):  # the whole chain was written anew
                found.damage(ledgers.FILE, "its entries are not as ssse writes them")
        return found


def _check_seal(folder: Folder, found: Verification) -> Seal | None:
    try:
        seal = Seal.read(folder.path)
    except BrokenArtefact as error:
        found.damage(SEAL, _after_name(error))
        return None
    found.checked.append(SEAL)
    found.interrupted = seal.command
    if seal.command is not None:
        found.notes.append(f"`ssse {seal.command}` was interrupted; the next command finishes what it began.")
    for name in seal.altered(folder.path):
        if seal.command is not None and (name == ledgers.FILE or (name == PAGE and seal.command == "report")):
            continue  # was about to change
        if files.behind_link(folder.path, name):
            found.damage(name, LINKED)
        elif name == PAGE and not (folder.path / PAGE).exists():
            found.notes.append(f"{PAGE} was removed; `ssse report` makes it again.")
        elif name == toml.FILE and (folder.path / name).is_file():
            found.damage(name, "was changed; the next command takes it over into the ledger")
        else:
            found.damage(name, "is missing" if not (folder.path / name).exists() else "is not as it was written")
    for name in {ledgers.FILE, toml.FILE} - set(seal.files):
        found.damage(SEAL, f"does not say what {name} should be")
    found.checked += seal.files
    return seal


def _check_ledger(folder: Folder, seal: Seal | None, head: str | None, found: Verification) -> list[Entry] | None:
    """The chain, entry by entry, in a copy: reading a SQLite file in place may write beside it."""
    at_rest = seal is not None and seal.command is None
    for name in (LOG, JOURNAL):
        if (at_rest or name == JOURNAL) and files.size(folder.path / name):
            found.damage(name, "should not be there: no command left it")
    if not folder.ledger.is_file():
        if not any(name == ledgers.FILE for name, _ in found.damages):
            found.damage(ledgers.FILE, "is missing")
        return None
    with copied(folder.ledger) as copy:
        try:
            with Ledger.read(copy) as ledger:
                damages = ledger.damages()
                entries = list(ledger.entries()) if not damages else []
        except BrokenArtefact as error:
            found.damage(ledgers.FILE, _after_name(error))
            return None
    for damage in damages:
        found.damage(ledgers.FILE, damage)
    if damages:
        return None
    found.entries, found.head = len(entries), entries[-1].hash
    if head is not None and head not in {entry.hash for entry in entries}:
        found.damage(ledgers.FILE, f"does not contain the entry {head[:12]}…: it was cut or written anew since")
    return entries


def _check_states(folder: Folder, entries: list[Entry], sealed: Iterable[str], found: Verification) -> None:
    makers = [entry for entry in entries if entry.kind in MAKERS]
    for before, after in zip([None, *makers], makers, strict=False):
        if after.details["before"] != (before and before.details["after"]):
            found.damage(ledgers.FILE, f"entry {after.seq} did not start from the state before it")
        if summary(after.details["files"]) != after.details["after"]:
            found.damage(ledgers.FILE, f"entry {after.seq} contradicts itself about its files")
    sealings = {entry.request: entry for entry in entries if entry.kind == "sealed"}
    for entry in (entry for entry in makers if entry.kind == "erased" and entry.request in sealings):
        done = sealings[entry.request]
        fates = {part: {"keep": "kept", "shred": "shredded"}[fate] for part, fate in entry.details["old"].items()}
        if any(done.details[f"old_{part}"] != fate for part, fate in fates.items()):
            found.damage(ledgers.FILE, f"entry {done.seq} contradicts entry {entry.seq} about what became of the old")
    current = makers[-1]
    expected = {f"states/{state_name(current)}/{name}": digest for name, digest in current.details["files"].items()}
    expected |= _kept(makers)
    fitted = [entry for entry in entries if entry.kind == "fitted"]
    if fitted:
        expected[SAMPLES] = fitted[-1].details["samples_file"]
    for name, digest in expected.items():
        path = folder.path / name
        if files.behind_link(folder.path, name):
            found.damage(name, LINKED)
        elif not path.is_file():
            found.damage(name, "is missing")
        elif digest_file(path) != digest:
            found.damage(name, "is not as it was written")
    found.checked += expected
    link = f"states/{state_name(current)}"
    if folder.current.exists() and not folder.current.is_symlink():
        found.damage("current", "should be a link and is a copy")
    elif found.interrupted is None and (not folder.current.is_symlink() or os.readlink(folder.current) != link):
        found.damage("current", f"does not point to {link}")
    known = {*expected, *sealed, SEAL, ledgers.FILE, toml.FILE, "current", LOG, INDEX}
    _note_strangers(folder, known, found)


def _kept(makers: list[Entry]) -> dict[str, str]:
    """Old weights and curvature that the settings said to keep, until a later request said to shred."""
    kept: dict[str, dict[str, str]] = {"weights": {}, "curvature": {}}
    for before, after in pairwise(makers):
        if after.kind != "erased":
            continue
        for name, digest in before.details["files"].items():
            kept["weights" if name in MODELS else "curvature"][f"states/{state_name(before)}/{name}"] = digest
        for part, there in kept.items():
            if after.details["old"][part] != "keep":
                there.clear()
    return kept["weights"] | kept["curvature"]


def _note_strangers(folder: Folder, known: set[str], found: Verification) -> None:
    """Files that nobody knows cannot be checked; after a kill there may be some that the next command removes."""
    found_here = [path for path in folder.path.rglob("*") if path.is_symlink() or path.is_file()]
    strange = sorted({path.relative_to(folder.path).as_posix() for path in found_here} - known)
    if strange and found.interrupted is None:
        some = ", ".join(strange[:3]) + (" …" if len(strange) > 3 else "")
        found.notes.append(f"{len(strange)} files are not the workspace's own and were not checked: {some}.")


def _after_name(error: Exception) -> str:
    """Our messages begin with the file's path in quotes, which is said already."""
    text = str(error)
    return text.split("' ", 1)[-1].rstrip(".") if text.startswith("'") else text.rstrip(".")
