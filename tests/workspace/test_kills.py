"""Killed at any moment, a workspace is whole, and the same command again ends where it would have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.kills import OPERATIONS
from tests.support.sizes import sized

pytestmark = pytest.mark.long

MANY_ONCE, MANY_TWICE = 21, 30
ONCE, TWICE = sized(3, MANY_ONCE), sized(2, MANY_TWICE)
RANDOM = [
    (ONCE, ["fit", "fit again", "erase"]),
    (ONCE, ["erase lowrank", "erase joint", "erase after a fit", "erase and keep", "calibrate", "repair"]),
    (ONCE, ["erase and hold", "erase and hold another", "erase and settle", "confirm", "revert"]),
]
SETTLING = ["erase and hold", "erase and hold another", "erase and settle", "confirm", "revert"]
LINES = sized(
    ["erase", "repair", "report", "confirm", "revert"],
    [
        *("fit", "fit again", "erase", "erase after a fit", "erase and keep", "calibrate", "repair", "report"),
        *("revert estimator", *SETTLING),
    ],
)
# On a disk in memory, where there is one: what a killed process wrote is not lost, so nothing depends on the real one.
MEMORY = Path("/dev/shm")


def kill(group: str) -> dict[str, dict[str, int]]:
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ssse-kills-", dir=place) as home:
        command = [sys.executable, "-m", "tests.support.kills", home, group]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_the_kills_are_as_many_as_promised():
    """In full; in small every kind of operation is killed, too."""
    operations = [name for _, names in RANDOM for name in names]
    assert MANY_ONCE * len(operations) + 2 * MANY_TWICE >= 200
    elsewhere = {"report", "upgrade", "change key", "erase with key"}  # killed at every line
    assert set(operations) == {name for name in OPERATIONS if "estimator" not in name} - elsewhere


@pytest.mark.parametrize(("wanted", "names"), RANDOM, ids=["one by one", "of every kind", "that wait"])
def test_killed_at_random_moments(wanted, names):
    for name, counts in kill(f"{wanted},{','.join(names)}").items():
        assert counts["killed"] >= wanted, name
        assert counts["middle"] >= max(1, wanted // 5), name  # something was written, and not all


def test_killed_and_killed_again():
    for name, counts in kill(f"twice{TWICE},fit,erase").items():
        assert counts["killed"] >= TWICE, name
        assert counts["middle"] >= max(1, TWICE // 5), name
        assert counts["twice"] >= 1, name


def test_killed_while_it_signs_and_publishes():
    """Once all is sealed the head is still to be published, which the next command does."""
    counts = kill(f"lines{sized(8, 1)},erase with key")["erase with key"]
    assert counts["killed"] >= sized(3, 30)
    assert counts["middle"] >= counts["killed"] // 2


def test_killed_while_it_is_upgraded():
    counts = kill(f"lines{sized(2, 1)},upgrade")["upgrade"]
    assert counts["killed"] >= sized(4, 8)


def test_killed_while_key_and_anchor_change():
    """The ledger comes first; ssse.toml follows, by the next command where this one did not come to it."""
    counts = kill("lines1,change key")["change key"]
    assert counts["killed"] >= 8


def test_killed_at_lines_that_find_the_disk_changed():
    """Between two such lines nothing on the disk tells one moment from the other. In full size at each of them."""
    every = sized(5, 1)
    for name, counts in kill(f"lines{every},{','.join(LINES)}").items():
        assert counts["killed"] >= (8 if name == "report" else 16) // every, name
        assert counts["middle"] >= counts["killed"] - 2, name  # the first sees the seal opening, the last all done
