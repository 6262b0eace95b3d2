"""Copies of ledgers that earlier versions left in the temporary folder go; nothing else there is touched."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from ssse.workspace.record import leftovers
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call

SECRET = b"salt" * 1000


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def leave(place: Path, name: str = "ssse-ledger-abc", hours: float = 2.0) -> Path:
    folder = place / name
    folder.mkdir(mode=0o700)
    for file in ("ledger.sqlite", "ledger.sqlite-wal"):
        (folder / file).write_bytes(SECRET)
    age(folder, hours)
    return folder


def age(folder: Path, hours: float) -> None:
    then = time.time() - 3600 * hours
    os.utime(folder, (then, then))


def test_the_next_command_overwrites_and_removes_them(place, tmp_path):
    made = workspaces.make(tmp_path / "home", fit=False, n=24, p=3)
    folder = leave(place)
    held = (folder / "ledger.sqlite").open("rb")  # what is overwritten is so for who has it open
    leave(place, "ssse-ledger-def")
    _, said = call("log", made.path)
    assert [line for line in said.splitlines() if "copies of ledgers" in line] == [said.strip()]
    assert "Shredded 2 copies" in said
    assert list(place.iterdir()) == []
    assert held.read() == bytes(len(SECRET))
    held.close()
    assert call("log", made.path)[1] == ""


def test_a_fresh_one_may_still_be_in_use(place):
    folder = leave(place, hours=0.5)
    assert leftovers.sweep() == 0
    assert (folder / "ledger.sqlite").read_bytes() == SECRET
    age(folder, 1.1)
    assert leftovers.sweep() == 1


def test_links_are_not_followed(place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ledger.sqlite").write_bytes(SECRET)
    age(outside, 3)
    (place / "ssse-ledger-link").symlink_to(outside)
    inner = leave(place, "ssse-ledger-inner")
    (inner / "ledger.sqlite").unlink()
    (inner / "ledger.sqlite").symlink_to(outside / "ledger.sqlite")
    age(inner, 3)
    twin = leave(place, "ssse-ledger-twin")
    (twin / "ledger.sqlite").unlink()
    os.link(outside / "ledger.sqlite", twin / "ledger.sqlite")
    age(twin, 3)
    before = workspaces.snapshot(tmp_path)
    assert leftovers.sweep() == 0
    assert workspaces.snapshot(tmp_path) == before


def test_what_is_not_ours_stays(place, monkeypatch):
    strange = leave(place, "ssse-ledger-strange")
    (strange / "notes.txt").write_text("mine")
    age(strange, 3)
    nested = leave(place, "ssse-ledger-nested")
    (nested / "ledger.sqlite-shm").mkdir()
    age(nested, 3)
    (place / "ssse-ledger-file").write_text("a file")
    age(place / "ssse-ledger-file", 3)
    leave(place, "ssse-other")
    before = workspaces.snapshot(place)
    assert leftovers.sweep() == 0
    assert workspaces.snapshot(place) == before
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    leave(place)
    before = workspaces.snapshot(place)
    assert leftovers.sweep() == 0
    assert workspaces.snapshot(place) == before


def test_without_a_temporary_folder_there_is_nothing_to_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert leftovers.sweep() == 0
    Workspace(tmp_path)
