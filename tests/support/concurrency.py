"""Several processes in one workspace at the same time: `python -m tests.support.concurrency FOLDER`.

In a process of its own, for it forks: the children have torch imported and start together. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ssse.errors import Busy
from ssse.workspace.workspace import Workspace
from tests.support import workspaces

OUTCOMES = ["failed", "erased", "repeated", "refused", "busy", "read"]


def together(tasks: Sequence[Callable[[], str]]) -> list[str]:
    """Each in a process of its own; all wait until the last one is there. What each returned."""
    waits, starts = os.pipe()
    children = []
    for task in tasks:
        child = os.fork()
        if not child:
            outcome = "failed"
            try:
                os.close(starts)
                os.read(waits, 1)  # until nobody holds the other end
                outcome = task()
            except Busy:
                outcome = "busy"
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(OUTCOMES.index(outcome))
        children.append(child)
    os.close(starts)
    os.close(waits)
    return [OUTCOMES[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] for child in children]


def erase(path: Path, request: str, ids: list[str], wait: bool = True) -> str:
    return Workspace(path, wait=wait).erase(request, ids=ids).outcome


def watch(path: Path, until: int) -> str:
    """Read again and again while others write: every view is whole, and none forgets what an earlier one knew."""
    known: list[Any] = []
    while len(known) < until:
        seen = Workspace(path).log().entries
        assert seen[: len(known)] == known
        assert all(entry.hash == entry.expected_hash() for entry in seen)
        known = seen
        found = Workspace(path).verify()
        assert found.ok, found.damages
        assert found.interrupted is None
        assert found.entries >= len(known)
    return "read"


def check(path: Path, pristine: Path) -> list[str]:
    """Whole, and as if the requests had come one after the other. Their order."""
    found = Workspace(path).verify()
    assert found.ok, found.damages
    assert found.notes == []
    assert found.interrupted is None
    entries = Workspace(path).log().entries
    order = [entry.request for entry in entries if entry.kind == "erased" and entry.request]
    for request in order:
        mine = [entry for entry in entries if entry.request == request]
        assert [entry.kind for entry in mine] == ["received", "erased", "sealed"]
        assert mine[2].seq - mine[0].seq == 2, "another request came between"
    again = path.with_name("in-order")
    shutil.copytree(pristine, again, symlinks=True)
    for request in order:
        assert erase(again, request, ids_of(request)) == "erased"
    states = [
        {k: v for k, v in workspaces.snapshot(p).items() if k.startswith(("states/", "current"))} for p in (path, again)
    ]
    assert states[0] == states[1]
    shutil.rmtree(again)
    return order


def ids_of(request: str) -> list[str]:
    number = int(request.split("-")[1])
    return [f"s{2 * number}", f"s{2 * number + 1}"]


def main(home: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    pristine = workspaces.make(home, n=60, p=3).path
    path = home / "shared"

    def fresh() -> Path:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pristine, path, symlinks=True)
        return path

    found: dict[str, Any] = {}

    def ask(number: int, wait: bool = True) -> Callable[[], str]:
        return lambda: erase(path, f"r-{number}", ids_of(f"r-{number}"), wait)

    fresh()
    found["two"] = together([ask(1), ask(2)])
    found["order of two"] = check(path, pristine)

    size = len(Workspace(fresh()).log().entries)
    readers = [lambda: watch(path, size + 30)] * 2
    found["ten and two readers"] = together([*(ask(number) for number in range(10)), *readers])
    found["order of ten"] = check(path, pristine)

    fresh()
    found["the same"] = together([ask(3)] * 4)
    found["order of the same"] = check(path, pristine)

    fresh()
    found["without waiting"] = together([ask(number, wait=False) for number in range(4)])
    found["order without waiting"] = check(path, pristine)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
