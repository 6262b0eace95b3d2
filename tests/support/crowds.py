"""Very many processes in one workspace at the same time: `python -m tests.support.crowds FOLDER PROCESSES`."""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.concurrency import check, erase, ids_of, together, watch
from tests.support.tally import Tally


def main(home: Path, processes: int) -> Tally:
    """Most ask for samples of their own, some for the same, some do not wait, and a few only read."""
    torch.set_num_threads(1)
    readers, same, hasty = max(1, processes // 40), max(2, processes // 8), max(2, processes // 8)
    own = processes - readers - same - hasty
    pristine = workspaces.make(home, n=2 * (own + 20), p=3, fit__structure="dense").path
    path = home / "shared"
    shutil.copytree(pristine, path, symlinks=True)
    size = len(Workspace(path).log().entries)

    def ask(number: int, wait: bool = True) -> Callable[[], str]:
        return lambda: erase(path, f"r-{number}", ids_of(f"r-{number}"), wait)

    tasks = [ask(number) for number in range(own)] + [ask(own)] * same + [ask(own + 1, wait=False)] * hasty
    found = together([*tasks, *[lambda: watch(path, size + own)] * readers])
    tally = Tally()
    tally.ways.update(asking=own, asking_the_same=same, not_waiting=hasty, reading=readers)
    asked, alike, quick, read = (
        found[:own],
        found[own : own + same],
        found[own + same : own + same + hasty],
        found[own + same + hasty :],
    )
    if asked != ["erased"] * own or read != ["read"] * readers or not set(quick) <= {"erased", "busy", "repeated"}:
        tally.note("lost", f"{asked} {quick} {read}")
    if alike.count("erased") != 1 or alike.count("repeated") != same - 1 or quick.count("erased") > 1:
        tally.note("doubled", f"{alike} {quick}")
    try:
        order = check(path, pristine)
        assert len(order) == len(set(order)) == found.count("erased"), order
    except AssertionError:
        tally.note("lost", traceback.format_exc()[-1500:])
    return tally


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2])).to_dict()))
