"""`ssse verify`: every byte of a workspace against what the ledger and the seal say. Reads only, without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssse.errors import BrokenArtefact, InvalidSetting, SSSEError
from ssse.system import files
from ssse.system.digests import digest_file
from ssse.system.lock import locked
from ssse.workspace import settings as toml
from ssse.workspace.commands.vouching import Vouching, times_that_run_backwards
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.configuration import CHANGES, recorded_settings
from ssse.workspace.record.database import INDEX, JOURNAL, LOG
from ssse.workspace.record.folder import (
    MAKERS,
    PAGE,
    SAMPLES,
    STATES,
    TEMPORARY,
    Folder,
    model_file,
    open_to_others,
    state_name,
    summary,
)
from ssse.workspace.record.heads import NAMES_KEY, Heads
from ssse.workspace.record.holdings import holdings
from ssse.workspace.record.ledger import Entry, Ledger
from ssse.workspace.record.seal import FILE as SEAL
from ssse.workspace.record.seal import Seal
from ssse.workspace.results import Verification

LINKED = "is a symbolic link, or lies behind one"


@dataclass
class _Findings:
    """What becomes the Verification, while it is being collected."""

    damages: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    head: str | None = None
    entries: int = 0
    checked: list[str] = field(default_factory=list)
    interrupted: str | None = None
    signed: int = 0
    anchored: int = 0
    tree: str | None = None

    def damage(self, name: str, what: str) -> None:
        self.damages.append((name, what))


def verify(
    folder: Folder,
    *,
    head: str | None = None,
    keys: Sequence[Path] = (),
    anchor: Path | None = None,
    unsigned_until: int = 0,
    wait: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Verification:
    """Check ledger, settings, weights, curvature, digests.

    `head`: a hash noted earlier, which must still be there. `keys`: public ones, of which the one in force must have
    signed each entry; `unsigned_until`: but for so many at the beginning. `anchor`: a file of heads, each of which the
    ledger must continue.
    """
    folder.check()
    vouching = Vouching.read(keys, anchor, unsigned_until)
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise InvalidSetting(f"A head is all 64 characters of a hash, as `ssse log` prints it last; not {head!r}.")
    with locked(folder.path, shared=True, wait=wait, waiting=waiting):
        findings = _Findings()
        seal = _check_seal(folder, findings)
        entries = _check_ledger(folder, seal, head, vouching, findings)
        if entries is not None:
            try:
                _check_settings(folder, entries, findings)
                _check_states(folder, entries, seal.files if seal else (), findings)
            except (KeyError, TypeError, AttributeError, IndexError):  # the whole chain was written anew
                findings.damage(ledgers.FILE, "its entries are not as ssse writes them")
        _note_modes(folder, findings)
        return Verification(**vars(findings))


def _check_seal(folder: Folder, findings: _Findings) -> Seal | None:
    try:
        seal = Seal.read(folder.path)
    except BrokenArtefact as error:
        findings.damage(SEAL, _after_name(error))
        return None
    findings.checked.append(SEAL)
    findings.interrupted = seal.command
    if seal.command is not None:
        findings.notes.append(f"`ssse {seal.command}` was interrupted; the next command finishes what it began.")
    for name in seal.altered(folder.path):
        if seal.command is not None and (name == ledgers.FILE or (name == PAGE and seal.command == "report")):
            continue  # was about to change
        if seal.command == CHANGES and name == toml.FILE:
            continue  # so was this; it is compared with the ledger
        if files.behind_link(folder.path, name):
            findings.damage(name, LINKED)
        elif name == PAGE and not (folder.path / PAGE).exists():
            findings.notes.append(f"{PAGE} was removed; `ssse report` makes it again.")
        elif name == toml.FILE and (folder.path / name).is_file():
            findings.damage(name, "was changed; the next command takes it over into the ledger, or refuses it")
        else:
            findings.damage(name, "is missing" if not (folder.path / name).exists() else "is not as it was written")
    for name in {ledgers.FILE, toml.FILE} - set(seal.files):
        findings.damage(SEAL, f"does not say what {name} should be")
    findings.checked += seal.files
    return seal


def _check_ledger(
    folder: Folder, seal: Seal | None, head: str | None, vouching: Vouching, findings: _Findings
) -> list[Entry] | None:
    """The chain, entry by entry, from memory: reading a SQLite file in place may write beside it."""
    at_rest = seal is not None and seal.command is None
    for name in (LOG, JOURNAL):
        if (at_rest or name == JOURNAL) and files.size(folder.path / name):
            findings.damage(name, "should not be there: no command left it")
    if not folder.ledger.is_file():
        if not any(name == ledgers.FILE for name, _ in findings.damages):
            findings.damage(ledgers.FILE, "is missing")
        return None
    try:
        with Ledger.read_at_rest(folder.ledger) as ledger:
            damages = ledger.damages()
            entries = list(ledger.entries()) if not damages else []
            heads = Heads.of(ledger) if not damages and ledger.has_leaves else None
            damages = damages or vouching.damages(heads)
    except BrokenArtefact as error:
        findings.damage(ledgers.FILE, _after_name(error))
        return None
    for damage in damages:
        findings.damage(ledgers.FILE, damage)
    if damages:
        return None
    findings.entries, findings.head = len(entries), entries[-1].hash
    findings.tree = None if heads is None else heads.newest().digest
    findings.notes += [*vouching.notes(heads), *times_that_run_backwards(entries)]
    findings.signed = 0 if heads is None else sum(signature is not None for signature in heads.signatures)
    findings.anchored = len(vouching.published)
    if head is not None and head not in {entry.hash for entry in entries}:
        findings.damage(ledgers.FILE, f"does not contain the entry {head[:12]}…: it was cut or written anew since")
    return entries


def _check_settings(folder: Folder, entries: list[Entry], findings: _Findings) -> None:
    """That the file has who vouches for the ledger from the ledger: commands go by both, and refuse what differs."""
    if any(name == toml.FILE for name, _ in findings.damages):
        return
    known = [entry for entry in entries if entry.kind in NAMES_KEY]
    allowed = known[-2:] if findings.interrupted == CHANGES else known[-1:]
    try:
        if toml.read(folder.path / toml.FILE).record not in [recorded_settings(entry).record for entry in allowed]:
            findings.damage(toml.FILE, "names another key or anchor than the ledger; no command goes on from it")
    except SSSEError as error:
        findings.damage(toml.FILE, _after_name(error))


def _check_states(folder: Folder, entries: list[Entry], sealed: Iterable[str], findings: _Findings) -> None:
    makers = [entry for entry in entries if entry.kind in MAKERS]
    for before, after in zip([None, *makers], makers, strict=False):
        if after.details["before"] != (before and before.details["after"]):
            findings.damage(ledgers.FILE, f"entry {after.seq} did not start from the state before it")
        if summary(after.details["files"]) != after.details["after"]:
            findings.damage(ledgers.FILE, f"entry {after.seq} contradicts itself about its files")
    sealings = {entry.request: entry for entry in entries if entry.kind == "sealed"}
    undone = {seq for entry in entries if entry.kind == "reverted" for seq in entry.details["entries"]}
    sealed_makers = [entry for entry in makers if entry.kind == "erased" and entry.request in sealings]
    for entry in (entry for entry in sealed_makers if entry.seq not in undone):
        done = sealings[entry.request]
        fates = {part: {"keep": "kept", "shred": "shredded"}[fate] for part, fate in entry.details["old"].items()}
        if any(done.details[f"old_{part}"] != fate for part, fate in fates.items()):
            findings.damage(
                ledgers.FILE, f"entry {done.seq} contradicts entry {entry.seq} about what became of the old"
            )
    for entry in (entry for entry in makers if entry.kind == "reverted"):
        if entry.details["files"] != entries[entry.details["back_to"] - 1].details["files"]:
            findings.damage(ledgers.FILE, f"entry {entry.seq} did not go back to the state that it names")
    there = holdings(entries)
    current, expected = there.current, dict(there.files)
    if there.waiting and findings.interrupted is None:
        names = ", ".join(f"'{name}'" for name in there.requests[:5])
        findings.notes.append(
            f"{names} {'waits' if len(there.waiting) == 1 else 'wait'} for confirmation, and the model from before is "
            "kept: `ssse confirm`, or `ssse revert`."
        )
    fitted = [entry for entry in entries if entry.kind == "fitted"]
    if fitted:
        expected[SAMPLES] = fitted[-1].details["samples_file"]
    for name, digest in expected.items():
        path = folder.path / name
        if files.behind_link(folder.path, name):
            findings.damage(name, LINKED)
        elif not path.is_file():
            findings.damage(name, "is missing")
        elif digest_file(path) != digest:
            findings.damage(name, "is not as it was written")
    findings.checked += expected
    _check_link(folder, current, makers, findings)
    known = {*expected, *sealed, SEAL, ledgers.FILE, toml.FILE, "current", LOG, INDEX}
    known |= {PAGE} if findings.interrupted == "report" else set()  # about to be sealed
    present = [path for path in folder.path.rglob("*") if path.is_symlink() or path.is_file()]
    unknown = {path.relative_to(folder.path).as_posix() for path in present} - known
    left = set[str]() if findings.interrupted is None else {name for name in unknown if _is_left(name, entries)}
    _note_files(left, "are left of what was interrupted, and the next command removes them", findings)
    _note_files(unknown - left, "are not the workspace's own and were not checked", findings)


def _check_link(folder: Folder, current: Entry, makers: Sequence[Entry], findings: _Findings) -> None:
    """Which model is served. A kill may leave the link at the state before the newest one, whole as its entry says."""
    if folder.current.exists() and not folder.current.is_symlink():
        findings.damage("current", "should be a link and is a copy")
        return
    link, found = f"states/{state_name(current)}", os.readlink(folder.current) if folder.current.is_symlink() else None
    before = None if findings.interrupted is None or len(makers) < 2 else makers[-2]
    if found == link:
        return
    if before is None or found != f"states/{state_name(before)}":
        findings.damage("current", f"does not point to {link}")
        return
    made = before.details["files"]
    name = f"{found}/{model_file(made)}"
    if not Seal({name: made[model_file(made)]}).fits(folder.path, name):
        findings.damage(name, "is served, and is not as it was written")


def _is_left(name: str, entries: Sequence[Entry]) -> bool:
    """Whether a kill may have left it: temporary names, a state not yet entered, one that was about to be removed."""
    top, _, rest = name.partition("/")
    if not rest:
        return top.startswith(TEMPORARY) or (top == SAMPLES and all(entry.kind != "fitted" for entry in entries))
    state, _, file = rest.partition("/")
    following = f"{len(entries) + 1:06d}"
    if top != STATES or not file:
        return False
    if state in (following, f".{following}"):
        return True
    made = entries[int(state) - 1] if state.isdecimal() and 1 <= int(state) <= len(entries) else None
    return made is not None and made.kind in MAKERS and state == state_name(made) and file in made.details["files"]


def _note_files(names: set[str], what: str, findings: _Findings) -> None:
    if names:
        some = ", ".join(sorted(names)[:3]) + (" …" if len(names) > 3 else "")
        findings.notes.append(f"{len(names)} files {what}: {some}.")


def _note_modes(folder: Folder, findings: _Findings) -> None:
    """Earlier versions made workspaces as the umask said, and whoever copies one may open it."""
    if wide := open_to_others(folder.path):
        some = ", ".join("the folder itself" if name == "." else name for name in wide[:3])
        findings.notes.append(
            f"Others may read {some}{' …' if len(wide) > 3 else ''}; `ssse upgrade` or chmod -R go= keeps them out."
        )


def _after_name(error: Exception) -> str:
    """Our messages begin with the file's path in quotes, which is said already."""
    text = str(error)
    return text.split("' ", 1)[-1].rstrip(".") if text.startswith("'") else text.rstrip(".")
