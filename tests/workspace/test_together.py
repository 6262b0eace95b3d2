"""One command at a time changes a workspace; others wait or are told to, and readers always see a whole one."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssse.cli.app import app
from ssse.errors import Busy
from ssse.system.lock import locked
from ssse.workspace.record import database, image
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.workspace import Workspace
from tests.support import workspaces


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    return workspaces.make(tmp_path_factory.mktemp("together"), n=24, p=3).path


@pytest.fixture
def path(pristine) -> Path:
    copy = pristine.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(pristine, copy, symlinks=True)
    return copy


@pytest.mark.long
def test_processes_that_erase_at_the_same_time(tmp_path):
    """What the parent checks itself: the chain, each request in one piece, and states as of one after the other."""
    command = [sys.executable, "-m", "tests.support.concurrency", str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["two"] == ["erased", "erased"], done.stderr
    assert sorted(found["order of two"]) == ["r-1", "r-2"]
    assert found["ten and two readers"] == ["erased"] * 10 + ["read"] * 2, done.stderr
    assert sorted(found["order of ten"]) == [f"r-{number}" for number in range(10)]
    assert sorted(found["the same"]) == ["erased", "repeated", "repeated", "repeated"], done.stderr
    assert found["order of the same"] == ["r-3"]
    assert set(found["without waiting"]) <= {"erased", "busy"}, done.stderr
    assert found["without waiting"].count("erased") == len(found["order without waiting"]) >= 1


def test_threads_of_one_process(path):
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(Workspace(path).erase, f"r-{i % 4}", ids=[f"s{i % 4}"]) for i in range(8)]
        outcomes = [job.result().outcome for job in jobs]
    assert sorted(outcomes) == ["erased"] * 4 + ["repeated"] * 4
    assert Workspace(path).verify().ok
    assert len(Workspace(path).log().entries) == 2 + 3 * 4


def test_told_to_wait_or_not(path):
    said: list[str] = []
    patient = Workspace(path, say=said.append)
    with locked(path):
        for call in (lambda w: w.erase("r-1", ids=["s1"]), lambda w: w.fit(again=True), lambda w: w.verify()):
            with pytest.raises(Busy, match="Another ssse command is at work"):
                call(Workspace(path, wait=False))
        for command in (["erase", "--request", "r-1", "--ids", "s1"], ["fit", "--again"], ["verify"], ["report"]):
            done = CliRunner().invoke(app, [command[0], str(path), *command[1:], "--no-wait"])
            assert done.exit_code == 5, done.output
            assert "Another ssse command is at work" in done.stderr
        assert [entry.kind for entry in Workspace(path).log().entries] == ["created", "fitted"]  # to read is allowed
        waiting = threading.Thread(target=patient.erase, args=("r-1",), kwargs={"ids": ["s1"]})
        waiting.start()
        until(lambda: said != [])
        assert len(Workspace(path).log().entries) == 2
    waiting.join()
    assert len(said) == 1
    assert [entry.kind for entry in Workspace(path).log().entries][2:] == ["received", "erased", "sealed"]


def until(holds, seconds: float = 600.0) -> None:
    """The limit only ends what hangs: machines are slow at times."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_who_verifies_shares_with_others_and_not_with_writers(path):
    with locked(path, shared=True):
        assert Workspace(path, wait=False).verify().ok
        with pytest.raises(Busy):
            Workspace(path, wait=False).erase("r-1", ids=["s1"])


def test_a_reader_in_the_middle_of_reading_is_waited_for(path):
    with closing(sqlite3.connect(path / ledgers.FILE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM entries").fetchall() == [(2,)]
        writer = threading.Thread(target=Workspace(path).erase, args=("r-1",), kwargs={"ids": ["s1"]})
        writer.start()
        until(lambda: len(Workspace(path).log().entries) == 5)  # all is written, and not yet in the one file
        assert reader.execute("SELECT count(*) FROM entries").fetchall() == [(2,)]  # what it began with
        reader.execute("COMMIT")
        writer.join()
        assert Workspace(path).verify().ok  # the reader is still connected, and SQLite's files are there, empty
    assert Workspace(path).verify().notes == []


def test_a_reader_that_never_ends_leaves_the_rest_to_the_next_command(path, monkeypatch):
    monkeypatch.setattr(database, "WAIT", 0.05)
    with closing(sqlite3.connect(path / ledgers.FILE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM entries").fetchall()
        with pytest.raises(OSError, match="kept reading the ledger"):
            Workspace(path).erase("r-1", ids=["s1"])
        found = Workspace(path).verify()
        assert found.ok, found.damages
        assert found.interrupted == "erase"
    assert Workspace(path).erase("r-1", ids=["s1"]).outcome == "repeated"
    found = Workspace(path).verify()
    assert found.ok, found.damages
    assert found.interrupted is None


def test_who_reads_after_a_kill_does_not_disturb_who_verifies(path, monkeypatch):
    """The last reader to leave brings the log into the file; verify reads both, and must not get one of each."""
    content, read = image._content, []

    def reads(log: Path) -> bytes:
        found = content(log)
        if not read:
            read.append(len(Workspace(path).log().entries))  # between the log and its file
        return found

    command = [sys.executable, "-c", KILLED, str(path)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9
    assert (path / database.LOG).stat().st_size
    monkeypatch.setattr(image, "_content", reads)
    found = Workspace(path).verify()
    assert read == [4]
    assert found.ok, found.damages
    assert found.entries == 4


KILLED = """
import os, signal, sys
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.workspace import Workspace
Transaction._retire = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Workspace(sys.argv[1]).erase("r-1", ids=["s1"])
"""
