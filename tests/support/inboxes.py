"""An inbox that is killed again and again: `python -m tests.support.inboxes FOLDER FILES KILLS`.

In a process of its own, for it forks; KILLS may be "lines", or "entered" for one kill right after the last erasure was
entered into the ledger, its old state still there. Every request file has one answer in the end, ledger and
answers agree, and the model is the one of an inbox that nobody killed. One JSON object of counts is the output.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ssse.workspace.commands import inbox
from ssse.workspace.record import answers
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.workspace import Workspace
from tests.support import kills, workspaces

ANSWER = answers.ANSWER


def fill(box: Path, files: int) -> None:
    """One sample each; among them a table, an id that nobody has, an id twice, and one that is no request."""
    box.mkdir()
    for number in range(files):
        name = f"r{number:04d}"
        body: Any = {"request": f"2026-{number}", "ids": [f"s{number}"]}
        if number % 10 == 3:
            (box / f"{name}.csv").write_text(f"id,who\ns{number},x\n")
        elif number % 10 == 5:
            body["ids"] = ["nobody"]
        elif number % 10 == 7:
            body = {"request": f"2026-{number - 1}", "ids": [f"s{number - 1}"]}
        elif number % 10 == 9:
            body = {"ids": 3}
        if number % 10 != 3:
            (box / f"{name}.json").write_text(json.dumps(body))
        path = next(box.glob(f"{name}.*"))
        then = 1_750_000_000 + number
        os.utime(path, (then, then))


def expected(number: int) -> str:
    return {5: "refused", 7: "repeated", 9: "unreadable"}.get(number % 10, "erased")


def run(home: Path) -> None:
    for _ in Workspace(home / "ws").inbox(home / "box"):
        pass


def told(box: Path) -> dict[str, Any]:
    """The answers, without what differs from run to run: hashes and times."""
    found = {path.name: json.loads(path.read_text()) for path in sorted(box.glob(f"*{ANSWER}"))}
    return {name: {**body, "time": "", "head": "", "reason": ""} for name, body in found.items()}


def check(home: Path, truth: Path, files: int) -> None:
    """As if nobody had killed anything."""
    assert told(home / "box") == told(truth / "box")
    assert len(told(home / "box")) == files
    for name, body in told(home / "box").items():
        assert body["outcome"] == expected(int(name[1:5])), body
    assert not list((home / "box").glob(".*"))
    seen = Workspace(home / "ws").verify()
    assert seen.ok, seen.damages
    mine, theirs = (
        [(entry.kind, entry.request) for entry in Workspace(one / "ws").log().entries] for one in (home, truth)
    )
    assert mine == theirs, (mine, theirs)
    assert max(Counter(request for kind, request in mine if kind == "erased").values()) == 1
    weights = [(one / "ws" / "current" / "weights.safetensors").read_bytes() for one in (home, truth)]
    assert weights[0] == weights[1]


def attempt(home: Path, delay: float | None = None, prepare: Callable[[], None] = lambda: None) -> bool:
    """The inbox in a child, killed after the delay or where `prepare` sees to it. Whether it was killed."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            prepare()
            run(home)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def prepared(home: Path, files: int) -> tuple[Path, Path, float]:
    """A home for the kills, one that was left in peace, and how long that took."""
    made = workspaces.make(home / "first", n=3 * files + 20, p=3, c=2)
    fill(made.home / "box", files)
    shutil.copytree(made.home, home / "truth", symlinks=True)
    started = time.perf_counter()
    assert not attempt(home / "truth")
    return made.home, home / "truth", time.perf_counter() - started


def at_random(home: Path, files: int, wanted: int, seed: int = 0) -> dict[str, float]:
    """At least so many kills while the files are answered."""
    trial, truth, seconds = prepared(home, files)
    chooser, killed = random.Random(seed), 0
    while len(told(trial / "box")) < files:  # a kill a few files on the average; the first come soon, so that all can
        soon = min(1.0, (1 + killed) / wanted)
        killed += attempt(trial, chooser.uniform(0, 2 * soon * seconds / wanted) if killed < 2 * wanted else None)
    assert not attempt(trial)
    check(trial, truth, files)
    return {"files": files, "killed": killed, "seconds_undisturbed": seconds}


def at_lines(home: Path, files: int, every: int) -> dict[str, float]:
    """At lines of what the inbox writes with that find the disk changed: at each, or every so many."""
    first, truth, _ = prepared(home, files)
    trial = home / "trial"
    kills.WATCHED = {inbox.__file__, answers.__file__}

    def start() -> None:
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(first, trial, symlinks=True)

    start()
    changing: list[int] = []
    last = kills.fingerprint(trial)

    def look(line: int) -> None:
        nonlocal last
        found = kills.fingerprint(trial)
        if found != last:
            changing.append(line)
            last = found

    kills.traced(look, lambda: run(trial))
    chosen = changing[::every]
    for line in chosen:
        start()
        assert attempt(trial, prepare=lambda line=line: kills.dies_at(line))
        assert not attempt(trial)
        check(trial, truth, files)
    return {"files": files, "killed": len(chosen)}


def at_entry(home: Path, files: int) -> dict[str, float]:
    """Once the last erasure is in the ledger. The files after it change nothing, so that nobody else tidies up."""
    trial, truth, _ = prepared(home, files)
    erasures = Counter(expected(number) for number in range(files))["erased"]
    done = 0

    def die_at_the_last() -> None:
        tidy_up = Transaction.tidy_up

        def tidied(self: Transaction) -> None:
            nonlocal done
            done += 1
            if done == erasures:
                os.kill(os.getpid(), signal.SIGKILL)
            tidy_up(self)

        Transaction.tidy_up = tidied

    assert attempt(trial, prepare=die_at_the_last)
    assert not attempt(trial)
    check(trial, truth, files)
    return {"files": files, "killed": 1}


def main(home: Path, files: int, way: str) -> dict[str, float]:
    torch.set_num_threads(1)
    if way == "entered":
        return at_entry(home, files)
    if way.startswith("lines"):
        return at_lines(home, files, int(way.removeprefix("lines") or 1))
    return at_random(home, files, int(way))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
