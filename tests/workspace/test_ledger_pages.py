"""The ledger's digest is carried on from request to request, and cannot be made to fit an altered file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record import pages
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.seal import Seal
from tests.support import workspaces


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 3_000)), min_size=1, max_size=6))
def test_the_sum_that_is_carried_on_is_that_of_the_whole_file(tmp_path_factory, writes):
    path = tmp_path_factory.mktemp("ledger") / ledgers.FILE
    Ledger.create(path)
    known = pages.sum_of(path)
    for length, samples in writes:
        with Ledger.open(path) as ledger:
            ledger.append("erased", "a", {"text": "x" * length}, range(samples))
            ledger.append("sealed", "a", {})
        assert ledger.change is not None
        known = ledger.change.applied_to(known, path)
        assert known == pages.sum_of(path)


def test_nothing_written_is_no_change(tmp_path):
    path = tmp_path / ledgers.FILE
    Ledger.create(path)
    before = pages.sum_of(path)
    with Ledger.open(path) as ledger:
        assert ledger.last() is None
    assert ledger.change is not None
    assert ledger.change.applied_to(before, path) == before == pages.sum_of(path)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * pages.PAGE, b"x" * (2 * pages.PAGE + 7)], ids=len)
def test_every_byte_and_every_length_counts(tmp_path, content):
    path = tmp_path / "file"
    seen = set()
    for text in (content, content + b"\0", content[::-1] + b"y", bytes(len(content))):
        path.write_bytes(text)
        seen.add((pages.sum_of(path), text))
    assert len({total for total, _ in seen}) == len({text for _, text in seen})


def test_pages_that_changed_places_are_seen(tmp_path):
    path, other = tmp_path / "one", tmp_path / "other"
    path.write_bytes(b"a" * pages.PAGE + b"b" * pages.PAGE)
    other.write_bytes(b"b" * pages.PAGE + b"a" * pages.PAGE)
    assert pages.sum_of(path) != pages.sum_of(other)


def altered_in_silence(path: Path, place: int) -> None:
    """As a failing disk would do it: the time of change stays."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.95])
def test_an_alteration_that_no_command_looked_for_does_not_slip_into_the_next_seal(tmp_path, share):
    """Commands trust a file that was not touched; a later verify must find it all the same."""
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s1"])
    ledger = made.workspace.folder.ledger
    content, places = ledger.read_bytes(), []
    for number in range(len(content) // pages.PAGE):  # zeros within a page that nobody reads: unused space
        start = content.find(bytes(64), number * pages.PAGE + 200, (number + 1) * pages.PAGE)
        places += [start + 32] if start >= 0 else []
    altered_in_silence(ledger, places[int(share * len(places))])
    made.workspace.erase("b", ids=["s2"])
    assert Seal.read(made.path).command is None
    assert [name for name, _ in made.workspace.verify().damages] == [ledgers.FILE]


def test_a_file_that_was_touched_is_read_whole_by_every_command(tmp_path):
    made = workspaces.make(tmp_path / "home")
    ledger = made.workspace.folder.ledger
    os.utime(ledger)  # as a copy or a restored backup would be
    assert made.workspace.erase("a", ids=["s1"]).outcome == "erased"
    assert made.workspace.verify().ok
