"""Files that are nearly right, and bytes that are nothing: an exit code that is documented, one line, nothing changed.

What is typed and configured is tried by test_fuzz.py as well, with Hypothesis.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import call
from tests.support.fuzz import KINDS, Ground, attempt
from tests.support.sizes import sized

MANY = sized(2 * len(KINDS), 100 * len(KINDS))


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    before = Path.cwd()
    yield Ground.make(tmp_path_factory.mktemp("fuzz"))
    os.chdir(before)


def test_inputs_of_every_kind(ground):
    """The same ones every time, of every kind as many."""
    found = attempt(ground, MANY, seed=0)
    assert found.unharmed, found.failures
    assert found.ways == dict.fromkeys(KINDS, MANY // len(KINDS))


def test_files_that_have_no_end_or_no_writer(ground):
    """A device would be read for ever, and a pipe that nobody writes to as well."""
    os.mkfifo(ground.made.home / "pipe.npz")
    (ground.made.home / "zero.npz").symlink_to("/dev/zero")
    path = ground.made.path
    for name in ("pipe.npz", "zero.npz", "/dev/zero"):
        call("erase", path, "--request", "new", "--forget", name, code=2)
        call("evaluate", path, "--original", name, code=2)
    said = call("erase", path, "--request", "new", "--ids", "@/dev/zero", code=2)[1]
    assert "which no list of ids is" in said
    ground.restore()
