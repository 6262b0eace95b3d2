"""Another program has the ledger open while a command works: `python -m tests.support.readers FOLDER ROUNDS`.

It reads, locks, checkpoints, writes without an end, ends or is killed. The command waits for it, or ends with an error
in words; what was done is finished by the next one, and nothing is done twice.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ssse.workspace.record import database
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.tally import Tally

PROGRAM = """
import sqlite3, sys, threading
ledger, way = sys.argv[1:]
connection = sqlite3.connect(ledger, isolation_level=None, timeout=60, check_same_thread=False)
if way == "locks all":
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
if way in ("reads", "locks", "locks all"):
    connection.execute("BEGIN" if way == "reads" else "BEGIN EXCLUSIVE")
connection.execute("SELECT * FROM entries").fetchall()
over = threading.Event()
def checkpoint():
    kinds = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")
    while not over.wait(0.001):
        for kind in kinds:
            connection.execute(f"PRAGMA wal_checkpoint({kind})").fetchall()
worker = threading.Thread(target=checkpoint, daemon=True)
if way == "checkpoints":
    connection.execute("PRAGMA busy_timeout = 5")
    worker.start()
print("ready", flush=True)
sys.stdin.read()
over.set()
if worker.is_alive():
    worker.join()
if connection.in_transaction:
    connection.execute("COMMIT")
connection.close()
"""
WAYS = ("is open", "reads", "locks", "locks all", "checkpoints")
PASSES = ("is open", "checkpoints")  # a command need not wait for these
ENDS = ("ends", "is killed")
SHORT = 0.2  # seconds instead of database.WAIT


class Foreign:
    """The other program, in a process of its own, from when it has what it wants."""

    def __init__(self, ledger: Path, way: str):
        command = [sys.executable, "-c", PROGRAM, str(ledger), way]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self, how: str) -> None:
        if how == "is killed":
            self._process.kill()
        self._process.communicate()
        assert self._process.returncode == (-9 if how == "is killed" else 0)


def erase(workspace: Workspace) -> str:
    return workspace.erase("r-1", ids=["s3", "s11"]).outcome


def fit(workspace: Workspace) -> str:
    return "fitted" if workspace.fit(again=True).now else ""


def evaluate(workspace: Workspace) -> str:
    return workspace.evaluate().entry.kind


COMMANDS: dict[str, tuple[Callable[[Workspace], str], str]] = {
    "erase": (erase, "erased"),
    "fit": (fit, "fitted"),
    "evaluate": (evaluate, "evaluated"),
}


@dataclass
class Held:
    """One workspace, made anew from `pristine` for every trial."""

    pristine: Path
    path: Path
    known: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def fresh(self) -> Workspace:
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.pristine, self.path, symlinks=True)
        return Workspace(self.path)

    def attempt(self, command: str, way: str, end: str) -> str:
        """What went wrong; nothing, as it should be. No command waits long for what will not end before it."""
        with patch.object(database, "WAIT", database.WAIT if way in PASSES else SHORT):
            return self._attempt(command, way, end)

    def _attempt(self, command: str, way: str, end: str) -> str:
        wanted = self.undisturbed(command)
        workspace = self.fresh()
        run, makes = COMMANDS[command]
        entries = len(workspace.log().entries)
        foreign = Foreign(workspace.folder.ledger, way)
        said = ""
        try:
            assert run(workspace) == makes
        except OSError as error:
            said = str(error)
        finally:
            during = workspace.verify()  # needs no lock of SQLite's
            foreign.end(end)
        if way in PASSES and said:
            return f"it should have passed: {said}"
        if way not in PASSES and not said:
            return "it should have waited"
        if not during.ok:
            return f"meanwhile damaged: {during.damages}"
        if makes not in [entry.kind for entry in workspace.log().entries[entries:]]:
            assert run(workspace) == makes
        found = self.afterwards(workspace)
        return (
            "" if found == wanted else f"{'doubled: ' if len(found[1]) > len(wanted[1]) else ''}{found}, not {wanted}"
        )

    def undisturbed(self, command: str) -> tuple[Any, ...]:
        """What is there in the end where nobody has the ledger open."""
        if command not in self.known:
            workspace = self.fresh()
            COMMANDS[command][0](workspace)
            self.known[command] = self.afterwards(workspace)
        return self.known[command]

    def afterwards(self, workspace: Workspace) -> tuple[Any, ...]:
        workspace.erase("r-2", ids=["s5"])  # whatever comes next
        found = workspace.verify()
        kinds = [(entry.kind, entry.request) for entry in workspace.log().entries]
        return found.ok, kinds, found.notes, found.interrupted


def make(home: Path) -> Held:
    made = workspaces.make(home, n=300, p=3)  # so many that nothing is to be cautious about
    made.workspace.erase("r-0", ids=["s1"])  # so that there is something to evaluate
    return Held(made.path, home / "held")


def attempt(home: Path, rounds: int) -> Tally:
    tally, chooser, held = Tally(), random.Random(0), make(home)
    cases = [(way, end) for way in WAYS for end in ENDS]
    for turn in range(rounds):
        way, end = cases[turn % len(cases)]
        command = list(COMMANDS)[turn // len(cases) % len(COMMANDS)] if turn < 30 else chooser.choice(list(COMMANDS))
        tally.ways[f"one that {way} and {end}"] += 1
        try:
            wrong = held.attempt(command, way, end)
        except Exception as error:
            wrong = f"lost: {error!r}"
        if wrong:
            tally.note("doubled" if wrong.startswith("doubled") else "lost", f"{command}, {way}, {end}: {wrong}")
    return tally


def main(home: Path, rounds: int) -> Tally:
    torch.set_num_threads(1)
    return attempt(home, rounds)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2])).to_dict()))
