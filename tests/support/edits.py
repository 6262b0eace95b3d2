"""A workspace's files altered as somebody with write access would: in place, with size and time of change kept.

`python -m tests.support.edits FOLDER COUNT SEED` tries so many. Each must be named by `verify`, and every command that
relies on the file must refuse it and change nothing.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.cli.console import DAMAGED, HINT, IMPOSSIBLE
from ssse.workspace.record.entry import FIRST, Entry
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.kills import KEPT, report
from tests.support.rewrites import read, seal_anew
from tests.support.tally import Tally

COMMANDS = {
    "erase": ("--request", "r-9", "--ids", "s5"),
    "fit": ("--again",),
    "calibrate": ("--ids", "s5,s6", "--method", "line_search", "--scales", "0.5,1"),
    "evaluate": (),
    "report": (),
}
ALWAYS = ("ledger.sqlite", "seal.json", "samples.safetensors", "current")  # what every command relies on
USES = {"weights.safetensors": tuple(COMMANDS), "curvature": ("erase", "calibrate", "report")}  # of the current state
SEALS = ("of another workspace", "of an older version")  # whole seals: what they do not fit is named in their place
DONE = (0, 6)  # with an ok or a caution
SETTINGS, PAGE = "ssse.toml", "report.html"


@dataclass(frozen=True)
class Scene:
    """`path`: a workspace with two requests answered, old states kept and a page. `older`: the same before the second.
    `other`: another one with the same history. Side by side, so that all find the data."""

    path: Path
    older: Path
    other: Path
    whole: dict[str, bytes | str]

    @classmethod
    def make(cls, home: Path) -> Scene:
        path = _answered(home, 24)
        other = _answered(home / "elsewhere", 26)
        older = home / "older"
        shutil.copytree(path, older, symlinks=True)
        for one in (path, other):
            assert Workspace(one).erase("r-2", ids=["s7"]).outcome == "erased"
            report(Workspace(one))
        return cls(path, older, other, workspaces.snapshot(path))

    def files(self) -> list[str]:
        return [name for name, body in self.whole.items() if isinstance(body, bytes)]

    def copy(self, name: str) -> Scene:
        """For another process to alter."""
        path = self.path.with_name(name)
        shutil.copytree(self.path, path, symlinks=True)
        return Scene(path, self.older, self.other, self.whole)

    def restore(self) -> None:
        found = workspaces.snapshot(self.path)
        for name in sorted({*found, *self.whole}):
            if found.get(name) == self.whole.get(name):
                continue
            path, body = self.path / name, self.whole.get(name)
            if path.is_symlink() or path.exists():
                path.unlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(body, bytes):
                path.write_bytes(body)
            elif body is not None:
                path.symlink_to(body)
        for folder in sorted((p for p in self.path.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()

    def needed_by(self, name: str) -> tuple[str, ...]:
        """The commands that must refuse where this file was altered."""
        if name in ALWAYS:
            return tuple(COMMANDS)
        state = f"{os.readlink(self.path / 'current')}/" if (self.path / "current").is_symlink() else "?"
        part = name.removeprefix(state).split("/")[0]
        return USES.get(part, ()) if name.startswith(state) else ("report",)


def _answered(home: Path, n: int) -> Path:
    made = workspaces.make(home, n=n, p=3, **KEPT)
    assert made.workspace.erase("r-1", ids=["s3", "s11"]).outcome == "erased"
    report(made.workspace)
    return made.path


# ------------------------------------------------------------------------------------------------ bytes

Change = Callable[[Scene, str, bytes, random.Random], bytes]


def _fitted(body: bytes, length: int) -> bytes:
    return (body + bytes(length))[:length]


def flip(_: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    changed = bytearray(body)
    changed[chooser.randrange(len(body))] ^= chooser.choice((0x01, 0x20, 0x80, 0xFF, chooser.randrange(1, 256)))
    return bytes(changed)


def cut_and_padded(_: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    end = chooser.randrange(len(body))
    return body[:end] + chooser.choice((bytes(len(body) - end), chooser.randbytes(len(body) - end)))


def blocks_exchanged(_: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    size = min(chooser.choice((1, 8, 64, 512, 4096)), len(body) // 2)
    first, second = (chooser.randrange(len(body) // size) * size for _ in "ab")
    changed = bytearray(body)
    for there, here in ((first, second), (second, first)):
        changed[there : there + size] = body[here : here + size]
    return _fitted(bytes(changed), len(body))


def of_another_workspace(scene: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    there = scene.other / name
    return _fitted(there.read_bytes(), len(body)) if there.is_file() else body


def of_an_older_version(scene: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    there = scene.older / name
    if not there.is_file():  # of a state that was not yet there: the file of the state before
        there = scene.older / "current" / Path(*Path(name).parts[2:])
    return _fitted(there.read_bytes(), len(body)) if there.is_file() else body


def of_another_file(scene: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    return _fitted((scene.path / chooser.choice(scene.files())).read_bytes(), len(body))


def one_number(scene: Scene, name: str, body: bytes, chooser: random.Random) -> bytes:
    """As an editor would: another digit in a text, another number among the tensors."""
    digits = [place for place, sign in enumerate(body) if 48 <= sign <= 57]
    if not digits:
        return body
    changed, place = bytearray(body), chooser.choice(digits)
    changed[place] = 48 + (changed[place] - 48 + chooser.randrange(1, 10)) % 10
    return bytes(changed)


KEPT_SIZE: dict[str, Change] = {
    "a byte flipped": flip,
    "cut and padded": cut_and_padded,
    "blocks exchanged": blocks_exchanged,
    "of another workspace": of_another_workspace,
    "of an older version": of_an_older_version,
    "of another file": of_another_file,
    "a number edited": one_number,
}
OTHER_SIZE: dict[str, Change] = {
    "truncated": lambda scene, name, body, chooser: body[: chooser.randrange(len(body))],
    "lengthened": lambda scene, name, body, chooser: body + chooser.randbytes(chooser.randrange(1, 9)),
    "swapped whole": lambda scene, name, body, chooser: (scene.path / chooser.choice(scene.files())).read_bytes(),
}


def put_in_silence(path: Path, body: bytes) -> None:
    """In place, the time of change as it was."""
    before = path.stat()
    with path.open("r+b") as opened:
        opened.write(body)
        opened.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edited(scene: Scene, chooser: random.Random) -> Iterator[tuple[str, str]]:
    """Way and file of one alteration after the other, without an end; the caller restores."""
    while True:
        for name in scene.files():
            way, change = chooser.choice([*KEPT_SIZE.items()] * 3 + [*OTHER_SIZE.items()])
            body = scene.whole[name]
            assert isinstance(body, bytes)
            changed = change(scene, name, body, chooser)
            if changed != body:
                put_in_silence(scene.path / name, changed)
                yield way, name


# ------------------------------------------------------------------------------------------------ meaning


def forge(path: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """As somebody would who knows SQLite: without the triggers, which are put back; the time of change as it was."""
    before = (path / "ledger.sqlite").stat()
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in made:
            connection.execute(f"DROP TRIGGER {name}")
        for statement, values in statements:
            connection.execute(statement, values)
        for _, sql in made:
            connection.execute(sql)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.utime(path / "ledger.sqlite", ns=(before.st_atime_ns, before.st_mtime_ns))


def rehash(path: Path, first: int) -> None:
    """New hashes for all entries from one on."""
    statements: list[tuple[str, tuple[Any, ...]]] = []
    previous = FIRST
    for entry in read(path):
        if entry.seq >= first:
            fresh = Entry(**{**entry.to_dict(), "previous": previous}).expected_hash()
            statements.append(("UPDATE entries SET previous = ?, hash = ? WHERE seq = ?", (previous, fresh, entry.seq)))
            previous = fresh
        else:
            previous = entry.hash
    forge(path, *statements)


def _leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = False
    for key, below in inner:
        found = True
        yield from _leaves(below, (*way, key))
    if not found and way:
        yield way


def _other(value: Any, chooser: random.Random) -> Any:
    """Of the same length, where that can be."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if len(str(value + 1)) == len(str(value)) else value - 1
    if isinstance(value, float):
        return -value if value else 1.0
    if isinstance(value, str) and value:
        place = chooser.randrange(len(value))
        sign = chooser.choice([one for one in "0123456789abcdef" if one != value[place]])
        return value[:place] + sign + value[place + 1 :]
    return "other"


def meaning(scene: Scene, chooser: random.Random) -> Iterator[tuple[str, str]]:
    """One entry says something else: a field of it or any leaf of its details; or a digest of a sample does.

    By turns nothing else is mended, the hashes from there on, or the seal. Both at once is a history written anew,
    which only a key or an anchor can tell.
    """
    entries = read(scene.path)
    while True:
        entry = chooser.choice(entries)
        what = chooser.choice(("time", "kind", "request", "details", "details", "details", "samples"))
        first = entry.seq
        if what == "samples":
            change = "UPDATE samples SET digest = digest + ? WHERE rowid = 1"
            forge(scene.path, (change, (chooser.randrange(1, 99),)))
        elif what == "details":
            details = json.loads(json.dumps(entry.details))
            *above, last = chooser.choice(list(_leaves(details)))
            inner = details
            for key in above:
                inner = inner[key]
            inner[last] = _other(inner[last], chooser)
            text = json.dumps(details, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            forge(scene.path, ("UPDATE entries SET details = ? WHERE seq = ?", (text, first)))
        else:
            value = _other(getattr(entry, what), chooser)
            forge(scene.path, (f"UPDATE entries SET {what} = ? WHERE seq = ?", (value, first)))
        mended = chooser.choice(("nothing", "the hashes", "the seal")) if what != "samples" else "the seal"
        if mended == "the hashes":
            rehash(scene.path, first)
        elif mended == "the seal":
            seal_anew(scene.path)
        yield f"an entry says another {what}, {mended} mended", "ledger.sqlite"


def links(scene: Scene, chooser: random.Random) -> Iterator[tuple[str, str]]:
    """`current` points elsewhere: to an older state, to the same by another way, to nothing."""
    link = scene.path / "current"
    target = os.readlink(link)
    states = sorted(f"states/{path.name}" for path in (scene.path / "states").iterdir())
    while True:
        for other in [one for one in states if one != target] + [f"./{target}", str(scene.other / target), "states/9"]:
            link.unlink()
            link.symlink_to(other)
            yield "the link points elsewhere", "current"


BY_VERIFY = (
    ", the seal mended"  # commands trust a seal that fits; that the chain is broken `verify` says, and goes on saying
)
KINDS = {"bytes": edited, "meaning": meaning, "links": links}


# ------------------------------------------------------------------------------------------------ what must hold


def check(scene: Scene, way: str, name: str, command: str, tally: Tally) -> None:
    """`verify` names it; the command refuses it, or does not rely on it and leaves it named."""
    tally.ways[way] += 1
    before, what = workspaces.snapshot(scene.path), f"{name}, {way}"
    by_meaning = name == SETTINGS or way.endswith(BY_VERIFY)  # is read, and taken or refused for what it says
    try:
        named = damaged(scene.path)
    except Exception as error:
        tally.note("tracebacks", f"{what}: verify: {error!r}")
        return
    if name not in named and not (named and name == "seal.json" and way in SEALS):
        tally.note("unseen", f"{what}: verify names {named}")
    done = CliRunner().invoke(app, [command, str(scene.path), *COMMANDS[command]])
    after = workspaces.snapshot(scene.path)
    said = f"{what}: {command} ends with {done.exit_code}: {done.stderr}"
    if not isinstance(done.exception, SystemExit | None) or HINT in done.stderr:
        tally.note("tracebacks", f"{said} {done.exception!r}")
    elif done.exit_code == DAMAGED or (done.exit_code == IMPOSSIBLE and by_meaning):
        if after != before:
            tally.note("unseen", f"{said}, and {sorted(set(after.items()) ^ set(before.items()))[:3]} changed")
        if not re.search(r"(^|\n)Error: [^\n]+\n\Z", done.stderr):
            tally.note("not told", said)
    elif done.exit_code not in DONE:
        tally.note("not told", said)
    elif not by_meaning and command in scene.needed_by(name):
        tally.note("unseen", said)
    elif name != SETTINGS and after.get(name) == before[name] and name not in damaged(scene.path):
        tally.note("unseen", f"{said}, and verify names it no more")


def damaged(path: Path) -> set[str]:
    return {name for name, _ in Workspace(path).verify().damages}


def attempt(scene: Scene, count: int, seed: int) -> Tally:
    chooser, tally = random.Random(seed), Tally()
    kinds = {kind: make(scene, chooser) for kind, make in KINDS.items()}
    turns = ["bytes"] * 6 + ["meaning"] * 3 + ["links"]
    for turn in range(count):
        way, name = next(kinds[turns[turn % len(turns)]])
        check(scene, way, name, chooser.choice(list(COMMANDS)), tally)
        scene.restore()
    return tally


def main(home: Path, count: int, seed: int) -> Tally:
    torch.set_num_threads(1)
    return attempt(Scene.make(home), count, seed)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).to_dict()))
