"""The ledger's digest: of the whole file, checked by every command, and never made to fit an altered file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssse.errors import BrokenArtefact, Damaged
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record import page_sum
from ssse.workspace.record import transaction as transactions
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.page_sum import sum_of_pages
from ssse.workspace.record.seal import FILE, FORM, Seal, seal_files
from tests.support import workspaces


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 3_000)), min_size=1, max_size=6))
def test_until_the_ledger_is_closed_its_file_is_as_it_was(tmp_path_factory, writes):
    """So that the file can be compared with the seal once more before anything new comes into it."""
    path = tmp_path_factory.mktemp("ledger") / ledgers.FILE
    Ledger.create(path)
    for length, samples in writes:
        before = sha256(path)
        with Ledger.open(path) as ledger:
            ledger.append("erased", "a", {"text": "x" * length}, range(samples))
            ledger.append("sealed", "a", {})
            assert sha256(path) == before
        assert ledger.digest_before == before != sha256(path)


def test_nothing_written_is_no_change(tmp_path):
    path = tmp_path / ledgers.FILE
    Ledger.create(path)
    before = sha256(path)
    with Ledger.open(path) as ledger:
        assert ledger.last() is None
    assert ledger.digest_before == before == sha256(path)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 4096, b"x" * 8199], ids=len)
@pytest.mark.parametrize("form", [1, FORM])
def test_every_byte_and_every_length_counts(tmp_path, content, form):
    path = tmp_path / ledgers.FILE
    path.write_bytes(content)
    digest = sum_of_pages(path) if form == 1 else seal_files(tmp_path, (ledgers.FILE,)).files[ledgers.FILE]
    seal = Seal({ledgers.FILE: digest}, form=form)
    assert seal.altered(tmp_path) == []
    for other in (content + b"\0", content[::-1] + b"y", bytes(len(content)), content[:-1]):
        path.write_bytes(other)
        assert seal.fits(tmp_path, ledgers.FILE) == (other == content)


def test_pages_that_changed_places_are_seen(tmp_path):
    path, pages = tmp_path / ledgers.FILE, (b"a" * page_sum.PAGE, b"b" * page_sum.PAGE)
    path.write_bytes(pages[0] + pages[1])
    seals = seal_files(tmp_path, (ledgers.FILE,)), Seal({ledgers.FILE: sum_of_pages(path)}, form=1)
    path.write_bytes(pages[1] + pages[0])
    assert [seal.altered(tmp_path) for seal in seals] == [[ledgers.FILE]] * 2


def altered_in_silence(path: Path, place: int) -> None:
    """As a failing disk would do it: the time of change stays."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def unread_places(ledger: Path) -> list[int]:
    """Zeros within a page that nobody reads: one in each page that has unused space."""
    content, places = ledger.read_bytes(), []
    for number in range(len(content) // page_sum.PAGE):
        start = content.find(bytes(64), number * page_sum.PAGE + 200, (number + 1) * page_sum.PAGE)
        places += [start + 32] if start >= 0 else []
    return places


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.95])
def test_an_alteration_between_commands_stops_the_next_one(tmp_path, share):
    """Also where size and time of the file are as they were, and where no entry is touched."""
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s1"])
    ledger = made.workspace.folder.ledger
    places = unread_places(ledger)
    altered_in_silence(ledger, places[int(share * len(places))])
    before = workspaces.snapshot(made.path)
    with pytest.raises(Damaged, match="not as it was written"):
        made.workspace.erase("b", ids=["s2"])
    assert workspaces.snapshot(made.path) == before
    assert [name for name, _ in made.workspace.verify().damages] == [ledgers.FILE]


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.95])
def test_an_alteration_during_a_command_does_not_slip_into_its_seal(tmp_path, share, monkeypatch):
    made = workspaces.make(tmp_path / "home")
    made.workspace.erase("a", ids=["s1"])
    ledger, advance = made.workspace.folder.ledger, transactions.Transaction.advance
    places = unread_places(ledger)

    def alter(*arguments, **named):
        altered_in_silence(ledger, places[int(share * len(places))])
        return advance(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(transactions.Transaction, "advance", alter)
        with pytest.raises(Damaged, match="was altered while this command worked"):
            made.workspace.erase("b", ids=["s2"])
    assert Seal.read(made.path).command is None
    assert ledgers.FILE in [name for name, _ in made.workspace.verify().damages]
    with pytest.raises(Damaged):
        made.workspace.erase("c", ids=["s3"])


def test_a_file_that_was_touched_is_the_same_file(tmp_path):
    made = workspaces.make(tmp_path / "home")
    os.utime(made.workspace.folder.ledger)  # as a copy or a restored backup would be
    assert made.workspace.erase("a", ids=["s1"]).outcome == "erased"
    assert made.workspace.verify().ok


def in_form_1(folder: Path, command: str | None = None) -> None:
    """The seal as earlier versions wrote it."""
    path = folder / ledgers.FILE
    files = {**Seal.read(folder).files, ledgers.FILE: sum_of_pages(path)}
    stat = path.stat()
    body = {"files": files, "command": command, "stamp": [stat.st_size, stat.st_mtime_ns]}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    text = json.dumps({**body, "digest": digest}, sort_keys=True, ensure_ascii=False, indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def test_a_seal_of_form_1_is_checked_by_its_sum_and_renewed(tmp_path):
    made = workspaces.make(tmp_path / "home")
    in_form_1(made.path)
    before = workspaces.snapshot(made.path)
    assert made.workspace.verify().ok
    assert not made.workspace.fit().now  # nothing to do, nothing written
    assert workspaces.snapshot(made.path) == before
    made.workspace.erase("a", ids=["s1"])
    seal = Seal.read(made.path)
    assert (seal.form, seal.files[ledgers.FILE]) == (FORM, sha256(made.workspace.folder.ledger))
    assert made.workspace.verify().ok


def test_a_command_of_an_earlier_version_that_was_killed_is_finished(tmp_path):
    made = workspaces.make(tmp_path / "home")
    in_form_1(made.path, "erase")
    assert made.workspace.verify().interrupted == "erase"
    made.workspace.erase("a", ids=["s1"])
    assert Seal.read(made.path).form == FORM
    assert made.workspace.verify().ok


def test_an_altered_ledger_with_a_seal_of_form_1_is_not_sealed_anew(tmp_path):
    made = workspaces.make(tmp_path / "home")
    in_form_1(made.path)
    ledger = made.workspace.folder.ledger
    altered_in_silence(ledger, unread_places(ledger)[0])
    with pytest.raises(Damaged):
        made.workspace.erase("a", ids=["s1"])
    assert Seal.read(made.path).form == 1


def test_a_seal_of_a_later_version_is_refused_with_what_to_do(tmp_path):
    body = {"files": {}, "command": None, "form": FORM + 1}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    text = json.dumps({**body, "digest": digest}, sort_keys=True, ensure_ascii=False, indent=1)
    (tmp_path / FILE).write_text(text + "\n", encoding="utf-8")
    with pytest.raises(BrokenArtefact, match=f"form {FORM + 1}.*use the version that wrote it"):
        Seal.read(tmp_path)
