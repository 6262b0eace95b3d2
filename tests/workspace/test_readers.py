"""Another program has the ledger open: commands wait for it, or end in words, and nothing is lost or done twice."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest

from ssse.workspace.record import database
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call, call_json
from tests.support.readers import COMMANDS, ENDS, WAYS, Foreign, Held, make
from tests.support.sizes import sized


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> Held:
    return make(tmp_path_factory.mktemp("readers") / "home")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_holds_the_ledger(way, end, held):
    for command in sized(["erase"], list(COMMANDS)):
        assert held.attempt(command, way, end) == "", command


def test_a_checkpoint_of_another_program_does_not_reach_the_file_before_its_digest(tmp_path):
    """Else the ledger would be taken for one that somebody altered while the command worked, for good."""
    path = tmp_path / database.FILE
    Ledger.create(path)
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        ledger.append("created", None, {"text": "x" * 9000})
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.01)) as other:
            for kind in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
                other.execute(f"PRAGMA wal_checkpoint({kind})").fetchall()
                assert path.read_bytes() == before
        ledger.append("fitted", None, {})
    assert path.read_bytes() != before
    assert not path.with_name(database.LOG).exists()


def test_a_checkpoint_that_is_under_way_is_waited_for(tmp_path):
    """SQLite itself answers at once that it is busy."""
    path = tmp_path / database.FILE
    Ledger.create(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        tried = threading.Event()

        class Connection:
            """The real one after the first answer."""

            def execute(self, statement: str):
                if tried.is_set():
                    return other.execute(statement)
                tried.set()
                return other.execute("SELECT 1, 0, 0")

        database.settle(Connection())  # type: ignore[arg-type]
    assert tried.is_set()


def test_the_command_line_says_who_is_waited_for(held, monkeypatch):
    monkeypatch.setattr(database, "WAIT", 0.1)
    workspace = held.fresh()
    ask = ["erase", workspace.folder.path, "--request", "r-1", "--ids", "s3"]
    for way, words in (("locks all", "cannot be used now"), ("locks", "cannot be used now"), ("reads", "kept reading")):
        workspace = held.fresh()
        foreign = Foreign(workspace.folder.ledger, way)
        try:
            assert words in call(*ask, code=1)[1]
            assert call_json("log", workspace.folder.path)["entries"]  # to read is always possible
            assert workspace.verify().ok
        finally:
            foreign.end("ends")
        call(*ask)
        assert Workspace(workspace.folder.path).verify().ok
        kinds = [entry.kind for entry in workspace.log().entries if entry.request == "r-1"]
        assert kinds == ["received", "erased", "sealed"]


def test_nothing_is_left_of_a_reader_that_was_killed(held):
    workspace = held.fresh()
    before = workspaces.snapshot(workspace.folder.path)
    Foreign(workspace.folder.ledger, "reads").end("is killed")
    assert workspace.verify().ok
    assert workspace.log().entries
    assert workspaces.snapshot(workspace.folder.path) == before
