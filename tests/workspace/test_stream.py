"""Hundreds of requests in a row, or a thousand: nothing grows but the ledger, and nothing drifts that should not."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ssse.verdict import BOUNDS
from tests.support.sizes import sized
from tests.support.workspaces import Made, make

pytestmark = pytest.mark.long

MANY, FEW = sized(100, 1000), sized(30, 100)
N = MANY + 50
OF_MANY = 1050  # beside which a few are few


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch):
    """Calls of Python functions, and steps of SQLite's machine (which reads rows one step at a time)."""
    found = {"calls": 0, "steps": 0}
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def step() -> int:
        found["steps"] += 1
        return 0

    def watched(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_progress_handler(step, 1)
        return connection

    def call(_: Any, event: str, __: Any) -> None:
        found["calls"] += event == "call"

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        sys.setprofile(call)
        try:
            yield found
        finally:
            sys.setprofile(None)


def sizes(made: Made) -> tuple[int, int]:
    """How many files the workspace has, and the bytes of its state."""
    state = [path for path in (made.path / "current").resolve().rglob("*") if path.is_file()]
    return sum(path.is_file() for path in made.path.rglob("*")), sum(path.stat().st_size for path in state)


def away(made: Made, other: Made) -> float:
    """‖θ − θ'‖ over ‖θ' − θ*‖: the difference beside what the requests changed."""
    mine, theirs = made.weights(), other.weights()
    before = load_file(other.home / "w.safetensors")
    here, there, start = (torch.cat([found[name].flatten() for name in theirs]) for found in (mine, theirs, before))
    return float((here - there).norm() / (there - start).norm())


def test_a_thousand_requests_are_one(tmp_path, monkeypatch):
    """Policy joint: any grouping of the same samples is the same request."""
    made = make(tmp_path / "many", n=N, p=3, c=2, erase__policy="joint")
    measured: dict[int, dict[str, int]] = {}
    grown: dict[int, tuple[int, int]] = {}
    for number in range(1, MANY + 1):
        if number in (10, MANY):
            with counting(monkeypatch) as measured[number]:
                answer = made.workspace.erase(str(number), ids=[f"s{number}"])
            grown[number] = sizes(made)
        else:
            answer = made.workspace.erase(str(number), ids=[f"s{number}"])
        assert answer.outcome == "erased"
    found = made.workspace.verify()
    assert found.ok
    assert found.entries == 2 + 3 * MANY
    once = make(tmp_path / "once", n=N, p=3, c=2, erase__policy="joint")
    everything = [f"s{number}" for number in range(1, MANY + 1)]
    once.workspace.erase("all", ids=everything, override=BOUNDS)  # at once they are more than one step is trusted with
    assert away(made, once) < 1e-6
    (files, early), (files_later, late) = grown[10], grown[MANY]
    assert files == files_later
    assert late <= early + 64  # numbers in the manifest have more digits
    first, last = measured[10], measured[MANY]
    assert first["steps"] > 100  # the ledger was watched
    assert last["calls"] <= 1.02 * first["calls"], (first, last)
    assert last["steps"] <= 1.2 * first["steps"], (first, last)
    assert made.workspace.erase("1", ids=["s1"]).outcome == "repeated"
    assert made.workspace.erase("last", ids=["s7", "s8"]).already == {"7": 1, "8": 1}


def test_requests_that_rebase_drift_little(tmp_path):
    """Each starts from the model of the one before; the curvature is of samples seen at other parameters."""
    made = make(tmp_path / "many", n=OF_MANY, p=3, c=2)
    for number in range(FEW):
        made.workspace.erase(str(number), ids=[f"s{number}"])
    once = make(tmp_path / "once", n=OF_MANY, p=3, c=2)
    once.workspace.erase("all", ids=[f"s{number}" for number in range(FEW)])
    drift = away(made, once)
    print(f"{FEW} requests that rebase end {drift:.1%} of the way from where one request ends")
    assert 0 < drift < 0.05
    assert made.workspace.verify().ok
