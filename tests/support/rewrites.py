"""Seven ways to rewrite the history of a workspace, as somebody would who can write all of its folder and knows ssse.

Each leaves a folder in which every hash, leaf, root, digest, link and seal fits, signed throughout by a key of the
attacker's own: nothing inside of it can tell. `REWRITES[name](path, earlier)` rewrites the workspace at `path`, which
has answered two requests or more; `earlier` is a copy of its folder from before the last of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from ssse.system.digests import digest_file
from ssse.workspace import settings as toml
from ssse.workspace.proof.checkpoint import Checkpoint, encoded, origin_of
from ssse.workspace.proof.keys import PrivateKey
from ssse.workspace.proof.merkle import Frontier, leaf_hash
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.entry import BLIND, FIRST, SHOWN, Entry, canonical
from ssse.workspace.record.folder import MAKERS, PAGE, model_file
from ssse.workspace.record.ledger import Ledger, complete, leaf_of
from ssse.workspace.record.seal import Seal, seal_files
from ssse.workspace.workspace import Workspace

Change = Callable[[list[Entry]], Iterable[Entry]]


@cache
def attackers_key() -> PrivateKey:
    return PrivateKey.generate()


def seal_anew(path: Path, command: str | None = None) -> None:
    """The seal has no secret: who can write the folder can close it again."""
    files = seal_files(path, (ledgers.FILE, toml.FILE, PAGE)).files
    Seal(files, command, published=Seal.read(path).published).write(path)


def forge(path: Path, *statements: str, triggers: bool = True) -> None:
    """As somebody would who knows SQLite: without the triggers, which are put back unless `triggers` is false."""
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in made:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in made if triggers else ():
            connection.execute(sql)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def read(path: Path) -> list[Entry]:
    """Also those that do not match their hashes, which Ledger does not read."""
    with closing(sqlite3.connect(path / ledgers.FILE)) as connection:
        query = "SELECT seq, time, kind, request, details, previous, hash FROM entries ORDER BY seq"
        rows = connection.execute(query).fetchall()
    return [Entry(seq, time, kind, request, json.loads(d), *ends) for seq, time, kind, request, d, *ends in rows]


def rebuild(path: Path, change: Change = list, key: PrivateKey | None = None) -> None:
    """The ledger written anew from changed entries, and the folder made to fit; signed by the key, or by none.

    `change` returns those that stay; each is known by its old number.
    """
    with Ledger.read(path / ledgers.FILE) as ledger:
        entries = list(ledger.entries())
        samples = {entry.seq: ledger.samples_of(entry.seq) for entry in entries}
    (path / ledgers.FILE).unlink()
    Ledger.create(path / ledgers.FILE)
    numbers: dict[int, int] = {}
    previous, grown, first, before = FIRST, Frontier(), "", None
    salt = entries[0].details["salt"]
    with closing(sqlite3.connect(path / ledgers.FILE, isolation_level=None)) as connection:
        for seq, old in enumerate(change(entries), start=1):
            numbers[old.seq] = seq
            details = {name: value for name, value in old.details.items() if name not in (BLIND, SHOWN)}
            if old.kind == "created" or "public_key" in details:
                details["public_key"] = key.public.text if key else None
            if old.kind in MAKERS:
                details["before"], before = before, details["after"]
            entry = complete(replace(old, seq=seq, details=details, previous=previous), salt)
            previous, leaf = entry.hash, leaf_of(entry)
            grown, first = grown.add(leaf_hash(leaf.encode())), first or entry.hash
            head = Checkpoint(origin_of(first), seq, grown.root(), entry.hash, entry.time)
            signature = encoded(key.sign(head.text().encode())) if key else None
            row = (seq, entry.time, entry.kind, entry.request, canonical(entry.details), entry.previous, entry.hash)
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany("INSERT INTO samples VALUES (?, ?)", [(seq, d) for d in sorted(samples[old.seq])])
            connection.execute("INSERT INTO leaves VALUES (?, ?, ?, ?)", (seq, leaf, grown.to_text(), signature))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _rename_states(path, numbers)
    seal_anew(path)


def _rename_states(path: Path, numbers: Mapping[int, int]) -> None:
    """States are named by the entries that made them."""
    current = int(Path(os.readlink(path / "current")).name)
    for state in sorted((path / "states").iterdir()):
        new = numbers.get(int(state.name))
        if new is None:
            shutil.rmtree(state)
        elif f"{new:06d}" != state.name:
            state.rename(state.with_name(f"{new:06d}"))
    (path / "current").unlink()
    (path / "current").symlink_to(f"states/{numbers[current]:06d}")


def shifted(entry: Entry, **by: float) -> Entry:
    return replace(entry, time=(datetime.fromisoformat(entry.time) + timedelta(**by)).isoformat(timespec="seconds"))


def whole_history(path: Path, earlier: Path) -> None:
    """Every entry is another one: other times, other names of requests."""

    def change(entries: list[Entry]) -> list[Entry]:
        return [shifted(replace(e, request=e.request and f"new-{e.request}"), days=1) for e in entries]

    rebuild(path, change, attackers_key())


def original_weights(path: Path, earlier: Path) -> None:
    """The model from before the last request, under a chain that says "erased"."""
    last = [entry for entry in read(path) if entry.kind == "erased"][-1]
    name = model_file(last.details["files"])
    shutil.copyfile(earlier / "current" / name, path / "current" / name)
    digest = digest_file(path / "current" / name)

    def change(entries: list[Entry]) -> list[Entry]:
        made = [entry.seq for entry in entries if entry.kind in MAKERS][-1]  # a fit may have come since
        return [with_weights(entry) if last.seq <= entry.seq <= made else entry for entry in entries]

    def with_weights(entry: Entry) -> Entry:
        if entry.kind not in MAKERS:
            return entry
        after: dict[str, Any] = {**entry.details["after"], "weights": digest}
        files = {**entry.details["files"], name: digest}
        return replace(entry, details={**entry.details, "after": after, "files": files})

    rebuild(path, change, attackers_key())


def times_backwards(path: Path, earlier: Path) -> None:
    """All was done a month before it was."""
    rebuild(path, lambda entries: [shifted(entry, days=-30) for entry in entries], attackers_key())


def rolled_back(path: Path, earlier: Path) -> None:
    """The whole folder as it was: genuine, signatures included."""
    shutil.rmtree(path)
    shutil.copytree(earlier, path, symlinks=True)


def name_reused(path: Path, earlier: Path, ids: tuple[str, ...] = ("s5",)) -> None:
    """Rolled back, and the last request's name given to another sample."""
    name = [entry.request for entry in read(path) if entry.request][-1]
    rolled_back(path, earlier)
    settings = toml.read(path / toml.FILE)
    plain = settings.model_copy(update={"record": toml.Record()})
    (path / toml.FILE).write_text(plain.to_toml())

    def change(entries: list[Entry]) -> list[Entry]:
        return [
            replace(e, details={**e.details, "settings": plain.to_dict()}) if "settings" in e.details else e
            for e in entries
        ]

    rebuild(path, change)
    assert name is not None
    assert Workspace(path).erase(name, ids=list(ids)).outcome == "erased"
    rebuild(path, list, attackers_key())


def request_cut_out(path: Path, earlier: Path) -> None:
    """The first request was never made."""
    gone = next(entry.request for entry in read(path) if entry.kind == "erased")
    rebuild(path, lambda entries: [entry for entry in entries if entry.request != gone], attackers_key())


def signed_by_another(path: Path, earlier: Path) -> None:
    """Not a word is changed but the key."""
    rebuild(path, list, attackers_key())


REWRITES: dict[str, Callable[[Path, Path], None]] = {
    "the whole history rewritten": whole_history,
    "the original weights under a chain that says erased": original_weights,
    "times set backwards": times_backwards,
    "the folder rolled back": rolled_back,
    "a request's name reused after a rollback": name_reused,
    "one request cut out": request_cut_out,
    "all signatures replaced": signed_by_another,
}
