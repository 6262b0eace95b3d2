"""Killed inside the calls that change the disk, SQLite's own among them; and a disk that fails at any of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support import dying
from tests.support.kills import OPERATIONS
from tests.support.sizes import sized
from tests.support.tally import Tally
from tests.workspace.test_kills import MEMORY

pytestmark = pytest.mark.long

EVERY = ",".join(OPERATIONS)
KILLS = sized("kills/29,erase,report;twice/61,erase", f"kills/1,{EVERY};twice/5,fit,erase")
ERRORS = sized("errors/29,erase,report;short/47,erase", f"errors/1,{EVERY};short/1,fit,erase")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Tally:
    """In one process: what takes time in small is to import torch."""
    library = dying.build(tmp_path_factory.mktemp("library"))
    if library is None:
        pytest.skip("nothing can be preloaded here, or there is no compiler for C")
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ssse-dying-", dir=place) as home:
        return dying.run(library, Path(home), f"{KILLS};{ERRORS}")


def test_nothing_is_lost_doubled_or_left_unsaid(attacked):
    assert attacked.unharmed, attacked.failures


def test_every_way_was_tried_in_sqlite_and_outside_of_it(attacked):
    """ENOSPC, EIO and EROFS: an error in one line, or no matter; and half of the bytes are no error at all."""
    ways = {way.removesuffix(", in SQLite") for way in attacked.ways}
    kills = {f"killed {when}" for when in dying.KILLS.values()}
    assert ways == {*kills, "killed again", "failed once", "failed from then on", "written by halves"}
    inside = sum(count for way, count in attacked.ways.items() if way.endswith("SQLite"))
    assert attacked.tried / 4 <= inside <= attacked.tried
