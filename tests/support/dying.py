"""Commands killed inside the calls that change the disk, SQLite's own among them; or the disk fails at such a call.

`build` compiles dying.c; `run(library, FOLDER, GROUPS)` starts `python -m tests.support.dying` with it preloaded, in a
process of its own that forks as tests/support/kills.py does. GROUPS, with a semicolon between them, are a way, how many
of the calls are taken, and the operations: "kills/7,erase" kills at every seventh call of one run, before it, in the
middle of it and after it by turns.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from ssse.cli.console import FAILED, HINT, failures_in_one_line
from ssse.workspace.workspace import Workspace
from tests.support.kills import OPERATIONS, Rehearsal
from tests.support.tally import Tally

SOURCE = Path(__file__).with_suffix(".c")
COUNT, BEFORE, HALF, AFTER, FAIL, FAIL_ON, SHORT = range(7)  # as dying.c has them
KILLS = {BEFORE: "before", HALF: "in the middle", AFTER: "after"}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
FINE, TOLD, SILENT, ODD = 0, 10, 11, 12  # how a child of ours ended


def build(folder: Path) -> Path | None:
    """The library, or None where nothing can be preloaded or there is no compiler for C."""
    compiler = shutil.which("cc")
    if not sys.platform.startswith("linux") or compiler is None:
        return None
    library = folder / "dying.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    seen = subprocess.run(
        [sys.executable, "-c", ""], env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True
    )
    return library if seen.returncode == 0 and not seen.stderr else None


def run(library: Path, home: Path, groups: str) -> Tally:
    command = [sys.executable, "-m", "tests.support.dying", str(home), groups]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    return Tally.from_dict(json.loads(done.stdout))


class Preloaded:
    """The library in this process, and in the children that it forks."""

    def __init__(self) -> None:
        library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        library.dying_names.restype = ctypes.c_char_p
        library.dying_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
        library.dying_arm.restype = None
        self._library = library

    def arm(self, folder: Path, call: int = 0, mode: int = COUNT, error: int = 0) -> None:
        self._library.dying_arm(os.fsencode(folder), call, mode, error)

    def names(self) -> list[str]:
        """One line a call; nothing is counted any more afterwards."""
        found = os.fsdecode(self._library.dying_names()).splitlines()
        assert len(found) == self._library.dying_calls()
        self._library.dying_arm(b"", 0, COUNT, 0)
        return found


@dataclass
class Dying:
    """One operation, disturbed at its calls one after the other."""

    rehearsal: Rehearsal
    preloaded: Preloaded
    tally: Tally
    name: str

    def disturb(self, way: str, step: int) -> None:
        by_turns, all_of_them = tuple((mode,) for mode in KILLS), (tuple(KILLS),)
        {
            "kills": lambda: self.kill(step, by_turns),
            "all": lambda: self.kill(step, all_of_them),
            "twice": lambda: self.kill(step, by_turns, random.Random(self.name)),
            "errors": lambda: self.fail(step),
            "short": lambda: self.shorten(step),
        }[way]()

    def calls(self) -> list[str]:
        """Of a run that nothing disturbs."""
        self.rehearsal.start()
        self.preloaded.arm(self.rehearsal.trial.resolve())
        self.rehearsal.operation.run(Workspace(self.rehearsal.trial))
        return self.preloaded.names()

    def kill(self, step: int, modes: tuple[tuple[int, ...], ...], again: random.Random | None = None) -> None:
        """At every so many-th call; `again`: what is left is finished by a command that is killed as well."""
        calls = self.calls()
        for turn, place in enumerate(self._places(calls, step)):
            for mode in modes[turn % len(modes)]:
                self.rehearsal.start()
                if not self.rehearsal.attempt(lambda p=place, m=mode: self._arm(p, m)):
                    continue  # a call less than before: it was done
                self._count(calls[place - 1], f"killed {KILLS[mode]}")
                if again is not None and self._whole(calls[place - 1], finish=False):
                    second = again.randrange(1, len(calls) + 1)
                    killed = self.rehearsal.attempt(lambda p=second, m=mode: self._arm(p, m))
                    self.tally.ways["killed again"] += killed
                self._whole(calls[place - 1])

    def fail(self, step: int) -> None:
        """The call fails, and by turns the disk is well again afterwards or every later call fails, too."""
        calls = self.calls()
        for turn, place in enumerate(self._places(calls, step)):
            number, mode = ERRORS[turn % len(ERRORS)], (FAIL, FAIL_ON)[turn % 2]
            self.rehearsal.start()
            ended = self._attempt(place, mode, number)
            self._count(calls[place - 1], "failed once" if mode == FAIL else "failed from then on")
            what = f"{self.name}: {errno.errorcode[number]} at call {place}, {calls[place - 1]}"
            if ended not in (FINE, TOLD):
                self.tally.note("tracebacks" if ended == ODD else "not told", what)
            self._whole(what)

    def shorten(self, step: int) -> None:
        """Only half of the bytes are taken, as the system is free to do, and the rest is left to the caller."""
        calls = self.calls()
        for place in range(1, len(calls) + 1):
            if not calls[place - 1].startswith(("write", "pwrite")) or place % step:
                continue
            self.rehearsal.start()
            ended = self._attempt(place, SHORT, 0)
            self._count(calls[place - 1], "written by halves")
            if ended != FINE:
                self.tally.note("lost", f"{self.name}: a short write at call {place}, {calls[place - 1]}")
            self._whole(calls[place - 1])

    def _places(self, calls: list[str], step: int) -> range:
        """Every so many-th, from another one on in every operation."""
        return range(1 + len(self.name) % step, len(calls) + 1, step)

    def _arm(self, call: int, mode: int, error: int = 0) -> None:
        self.preloaded.arm(self.rehearsal.trial.resolve(), call, mode, error)

    def _count(self, call: str, way: str) -> None:
        self.tally.ways[f"{way}, in SQLite" if "ledger.sqlite" in call else way] += 1

    def _attempt(self, call: int, mode: int, error: int) -> int:
        """In a child, as the command line would end it."""
        child = os.fork()
        if not child:
            ended, said = ODD, io.StringIO()
            try:
                with redirect_stderr(said), failures_in_one_line("Stopped."):
                    self._arm(call, mode, error)
                    self.rehearsal.operation.run(Workspace(self.rehearsal.trial))
                ended = FINE
            except typer.Exit as left:
                in_words = re.fullmatch(r"Error: [^\n]+\n", said.getvalue()) and HINT not in said.getvalue()
                ended = TOLD if left.exit_code == FAILED and in_words else ODD if HINT in said.getvalue() else SILENT
                if ended != TOLD:
                    print(left.exit_code, said.getvalue(), file=sys.stderr)
            finally:
                os._exit(ended)
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)

    def _whole(self, what: str, finish: bool = True) -> bool:
        try:
            self.rehearsal.check_killed()
            if finish:
                self.rehearsal.finish()
        except Exception:
            self.tally.note(self._harm(), f"{self.name}, {what}: {traceback.format_exc()[-1500:]}")
            return False
        return True

    def _harm(self) -> str:
        try:
            kinds = Counter((e["kind"], e["request"]) for e in self.rehearsal.entries() if e["kind"] == "erased")
        except Exception:
            return "lost"
        return "doubled" if max(kinds.values(), default=0) > 1 else "lost"


def main(home: Path, groups: str) -> Tally:
    torch.set_num_threads(1)
    tally, preloaded = Tally(), Preloaded()
    for group in groups.split(";"):
        way, *names = group.split(",")
        way, step = way.split("/")
        for name in names:
            dying = Dying(Rehearsal(home / name.replace(" ", "_"), OPERATIONS[name]), preloaded, tally, name)
            dying.disturb(way, int(step))
            shutil.rmtree(dying.rehearsal.home)
    return tally


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2]).to_dict()))
