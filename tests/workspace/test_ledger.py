"""The ledger by itself: a chain that only grows, and the samples that it knows by their digests."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssse.errors import BrokenArtefact, InvalidData
from ssse.workspace.record import database
from ssse.workspace.record import ledger as ledgers
from ssse.workspace.record.entry import SHOWN, canonical
from ssse.workspace.record.ledger import FIRST, Ledger, digest_of_samples
from ssse.workspace.record.membership import Membership, places_among, shown


@pytest.fixture
def path(tmp_path) -> Path:
    Ledger.create(tmp_path / ledgers.FILE)
    return tmp_path / ledgers.FILE


@pytest.fixture
def ledger(path) -> Iterator[Ledger]:
    with Ledger.open(path) as opened:
        yield opened


def erased(ledger: Ledger, request: str, digests: list[int]) -> None:
    ledger.append("received", request, {"k": len(digests)})
    details = {"k": len(digests), "erased_samples": digest_of_samples(digests)}
    ledger.append("erased", request, details, digests)


# ---------------------------------------------------------------------------------------------- the chain


def test_each_entry_carries_the_hash_of_the_one_before(ledger):
    made = [ledger.append("created", None, {"a": 1}), ledger.append("fitted", None, {}), ledger.append("x", "r", {})]
    assert [entry.seq for entry in made] == [1, 2, 3]
    assert [entry.previous for entry in made] == [FIRST, made[0].hash, made[1].hash]
    assert list(ledger.entries()) == made
    assert all(entry.hash == entry.expected_hash() for entry in made)
    assert ledger.damages() == []
    assert ledger.last() == ledger.last_of_request("r") == made[2]
    assert ledger.last("created", "fitted") == ledger.last_before(3, "created", "fitted", "x") == made[1]
    assert ledger.first("fitted") == made[1]
    assert ledger.last("nothing") is ledger.first("nothing") is ledger.last_before(1, "created")


def test_every_part_of_an_entry_is_in_its_hash(ledger):
    fields = ("seq", "time", "kind", "request", "details", "previous")
    entry = ledger.append("erased", "r-1", {"k": 0})
    others = {"seq": 2, "time": "x", "kind": "x", "request": None, "details": {"k": 1}, "previous": "x"}
    for field in fields:
        changed = type(entry)(**{**entry.to_dict(), field: others[field]})
        assert changed.expected_hash() != entry.hash, field


def test_an_entry_is_read_as_it_was_returned(ledger):
    """Tuples become lists and numbers of any size stay, in the entry that `append` returns already."""
    details = {
        "b": (1, 2),
        "a": {"ö": 'Ž 👩‍🔬 \u202e \x00 \\ "'},
        "c": 1e-300,
        "d": 2**70,
        "e": None,
        "f": True,
        "g": 0.1,
    }
    entry = ledger.append("x", "ü", details)
    assert entry.details == {**details, "b": [1, 2], SHOWN: entry.details[SHOWN]}
    assert next(ledger.entries()) == entry
    assert ledger.damages() == []


def test_the_same_content_has_the_same_text():
    assert canonical({"b": 1, "a": "é"}) == canonical({"a": "é", "b": 1}) == '{"a":"é","b":1}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), {1, 2}, b"x", object()])
def test_what_json_does_not_know_is_refused_and_nothing_written(value, ledger):
    with pytest.raises((ValueError, TypeError)):
        ledger.append("x", None, {"value": value})
    assert ledger.last() is None


def test_an_empty_ledger_is_damaged(ledger):
    assert ledger.damages() == ["it is empty"]


# -------------------------------------------------------------------------------------------- append-only


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET kind = 'x'",
        "UPDATE entries SET details = details",
        "DELETE FROM entries",
        "DELETE FROM entries WHERE seq = 1",
        "UPDATE samples SET digest = 1",
        "DELETE FROM samples",
        "INSERT INTO entries VALUES (9, 't', 'k', NULL, '{}', 'p', 'h')",
        "INSERT OR REPLACE INTO entries VALUES (1, 't', 'k', NULL, '{}', 'p', 'h')",
        "INSERT INTO entries VALUES (NULL, 't', 'k', NULL, '{}', 'p', 'h')",
        "UPDATE leaves SET leaf = '{}'",
        "UPDATE leaves SET signature = 'x'",
        "UPDATE leaves SET frontier = ''",
        "DELETE FROM leaves",
        "INSERT INTO leaves VALUES (9, '{}', '', NULL)",
        "INSERT OR REPLACE INTO leaves VALUES (1, '{}', '', NULL)",
    ],
)
def test_the_file_itself_refuses_to_forget(statement, path):
    with Ledger.open(path) as ledger:
        erased(ledger, "r", [1, 2])
        before = list(ledger.entries())
    refused = pytest.raises(sqlite3.IntegrityError, match="append-only")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, refused:
        connection.execute(statement)
    with Ledger.read(path) as ledger:
        assert list(ledger.entries()) == before
        assert ledger.samples_of(2) == [1, 2]


def test_who_reads_cannot_append(path):
    with Ledger.open(path) as ledger:
        ledger.append("created", None, {})
    with pytest.raises(OSError, match="readonly"), Ledger.read(path) as ledger:
        ledger.append("x", None, {})


def test_an_entry_and_its_samples_are_there_together_or_not_at_all(path):
    with Ledger.open(path) as ledger:
        erased(ledger, "r", [1])
        for samples in ([5, 6, 2**63], [5, "six"]):  # beyond SQLite's numbers; no number at all
            with pytest.raises((OverflowError, ValueError, TypeError)):
                ledger.append("erased", "s", {"k": 3}, samples)  # type: ignore[arg-type]
        assert ledger.last_of_request("s") is None
        assert ledger.erased([5, 6]) == {}
        assert ledger.append("received", "s", {"k": 1}).seq == 3  # and the connection is of use
        assert ledger.damages() == []


def grow(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger._connection.execute("PRAGMA max_page_count = 1")
        ledger.append("x", None, {"much": "x" * 100_000})


def test_a_ledger_that_cannot_grow_says_so(path):
    with pytest.raises(OSError, match="full"):
        grow(path)
    with Ledger.read(path) as ledger:
        assert ledger.last() is None


def test_a_transaction_that_sqlite_has_ended_by_itself_keeps_its_own_error(ledger):
    """As on a failing disk; a ROLLBACK on top of that would be the error that is seen."""

    class Failing(list[int]):
        def __iter__(self):
            ledger._connection.execute("ROLLBACK")
            raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        ledger.append("x", None, {}, Failing([1]))
    assert ledger.last() is None
    assert ledger.append("created", None, {}).seq == 1


def test_when_it_is_closed_all_is_in_one_file(path):
    with Ledger.open(path) as ledger:
        ledger.append("created", None, {"x": "y" * 10_000})
        assert path.with_name(database.LOG).stat().st_size
    assert [found.name for found in path.parent.iterdir()] == [ledgers.FILE]
    assert b"y" * 1000 in path.read_bytes()


def test_a_reader_that_does_not_end_is_named_and_nothing_lost(path, monkeypatch):
    monkeypatch.setattr(database, "WAIT", 0.05)
    with Ledger.open(path) as ledger:
        ledger.append("created", None, {})
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM entries").fetchall()
        with pytest.raises(OSError, match="kept reading the ledger") as caught, Ledger.open(path) as ledger:
            ledger.append("fitted", None, {})
        assert not isinstance(caught.value, BrokenArtefact)
        reader.execute("COMMIT")
    with Ledger.open(path) as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["created", "fitted"]


def test_a_reader_that_only_stays_connected_is_no_hindrance(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        assert reader.execute("SELECT count(*) FROM entries").fetchall() == [(0,)]
        with Ledger.open(path) as ledger:
            ledger.append("created", None, {})
        assert path.with_name(database.LOG).stat().st_size == 0
        assert reader.execute("SELECT count(*) FROM entries").fetchall() == [(1,)]


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_ledger_says_so(content, path):
    path.write_bytes(content)
    with pytest.raises(BrokenArtefact, match="damaged"), Ledger.read(path) as ledger:
        list(ledger.entries())


# ------------------------------------------------------------------------------------- requests and samples


def test_pending_is_what_was_received_and_nothing_since(ledger):
    ledger.append("received", "a", {"k": 1})
    ledger.append("received", "b", {"k": 1})
    ledger.append("refused", "b", {})
    assert ledger.pending() == ["a"]
    ledger.append("received", "b", {"k": 1})  # asked again after a refusal
    ledger.append("received", "c", {"k": 1})
    assert ledger.pending() == ["a", "b", "c"]
    ledger.append("erased", "a", {"k": 0})
    ledger.append("sealed", "a", {})
    assert ledger.pending() == ["b", "c"]


def test_erased_samples_count_once_for_each_time(ledger):
    erased(ledger, "a", [7, 7, 8])
    erased(ledger, "b", [7, -(2**63), 2**63 - 1])
    assert ledger.erased([7, 8, 9]) == {7: ["a", "a", "b"], 8: ["a"]}
    assert ledger.erased_samples() == Counter({7: 3, 8: 1, -(2**63): 1, 2**63 - 1: 1})
    assert ledger.erased_samples(["b"]) == Counter({7: 1, -(2**63): 1, 2**63 - 1: 1})
    assert ledger.erased(np.array([2**63 - 1, -(2**63)])) == {-(2**63): ["b"], 2**63 - 1: ["b"]}
    assert ledger.damages() == []


def test_more_digests_than_one_statement_takes(ledger):
    many = list(range(3 * ledgers.AT_A_TIME + 1))
    erased(ledger, "a", many)
    assert ledger.erased([*many, -1]) == {digest: ["a"] for digest in many}


@pytest.mark.parametrize(
    ("received", "erased_k", "samples", "says"),
    [
        (2, 2, [1, 2], None),
        (3, 2, [1, 2], None),  # another request came first with one of them
        (1, 2, [1, 2], "than were received"),
        (2, 2, [1, 3], "were altered"),
        (2, 2, [1], "not those that it erased"),
        (2, 1, [1, 2], "not those that it erased"),
        (None, 2, [1, 2], "than were received"),
    ],
)
def test_the_samples_are_those_of_the_entry(received, erased_k, samples, says, ledger):
    if received is not None:
        ledger.append("received", "r", {"k": received})
    ledger.append("erased", "r", {"k": erased_k, "erased_samples": digest_of_samples([1, 2])}, samples)
    found = ledger.damages()
    assert found == [] if says is None else says in found[0]


def test_samples_of_entries_that_erase_none(ledger):
    ledger.append("received", "r", {"k": 1}, [3])
    assert "not those that it erased" in ledger.damages()[0]


def test_one_digest_for_samples_in_any_order():
    assert digest_of_samples([3, 1, 2, 1]) == digest_of_samples(np.array([1, 1, 2, 3]))
    assert len({digest_of_samples(s) for s in ([], [1], [1, 1], [11], [-1], [1, 2], [12])}) == 7


# ---------------------------------------------------------------------------------------------- membership

FEW = st.integers(0, 4)  # so that the same sample comes often
anywhere = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anywhere
@given(trained=st.lists(FEW, max_size=12), requests=st.lists(st.lists(FEW, min_size=1, max_size=6), max_size=4))
def test_standing_agrees_with_counting(trained, requests, tmp_path_factory):
    """Against a Counter: of each sample so many can be erased as are left, then those that were, then unknown ones."""
    path = tmp_path_factory.mktemp("ledger") / ledgers.FILE
    Ledger.create(path)
    known = Membership(np.sort(np.array(trained, dtype=np.int64)))
    at_first, gone = Counter(trained), Counter()
    with Ledger.open(path) as ledger:
        for number, wanted in enumerate(requests):
            found = known.standing(np.array(wanted, dtype=np.int64), ledger)
            fresh, already, unknown, seen = [], 0, [], Counter()
            for place, sample in enumerate(wanted):
                seen[sample] += 1
                if seen[sample] <= at_first[sample] - gone[sample]:
                    fresh.append(place)
                elif seen[sample] <= at_first[sample]:
                    already += 1
                else:
                    unknown.append(place)
            assert found.fresh.tolist() == fresh
            assert found.unknown == unknown
            assert sum(found.already.values()) == already
            assert set(found.already) <= {f"r-{earlier}" for earlier in range(number)}
            if fresh:
                digests = [wanted[place] for place in fresh]
                erased(ledger, f"r-{number}", digests)
                gone.update(digests)
        assert ledger.erased_samples() == gone
        assert all(gone[sample] <= at_first[sample] for sample in gone)  # nothing is erased twice
        assert ledger.last() is None or ledger.damages() == []


@anywhere
@given(trained=st.lists(FEW, max_size=10), data=st.data())
def test_remaining_agrees_with_counting(trained, data):
    """Erased samples may have left the file or not; the others must all be there, and nothing else."""
    gone = Counter(data.draw(st.lists(st.sampled_from(trained), max_size=8))) if trained else Counter()
    gone = gone & Counter(trained)
    left = Counter(trained) - gone
    still = Counter({sample: data.draw(st.integers(0, count)) for sample, count in gone.items()})
    file = data.draw(st.permutations(sorted((left + still).elements())))
    known = Membership(np.sort(np.array(trained, dtype=np.int64)))
    places = known.remaining(np.array(file, dtype=np.int64), gone)
    assert Counter(file[place] for place in places) == left
    assert places.tolist() == sorted(places)
    erased_places = places_among(np.array(file, dtype=np.int64), gone)
    assert Counter(file[place] for place in erased_places) == gone & Counter(file)
    assert Counter(file) == left + still
    for sample in set(file):  # once more than it was trained on: excluded where it was erased, else refused
        more = np.array([*file, *[sample] * (1 + trained.count(sample) - file.count(sample))], dtype=np.int64)
        if gone[sample]:
            assert Counter(more[known.remaining(more, gone)].tolist()) == left
        else:
            with pytest.raises(InvalidData, match="more often"):
                known.remaining(more, gone)
    if left:
        lacking = list(file)
        sample = next(iter(left))
        lacking = [other for other in lacking if other != sample]
        with pytest.raises(InvalidData, match="lacks"):
            known.remaining(np.array(lacking, dtype=np.int64), gone)
    with pytest.raises(InvalidData, match="not those that the first fit saw"):
        known.remaining(np.array([*file, 99], dtype=np.int64), gone)


def test_membership_is_stored_sorted_and_read_as_it_was(tmp_path):
    path = tmp_path / "samples.safetensors"
    Membership.save(path, np.array([5, -(2**63), 5, 2**63 - 1], dtype=np.int64))
    known = Membership.load(path)
    assert known.digests.tolist() == [-(2**63), 5, 5, 2**63 - 1]
    assert known.times(np.array([5, 6, 2**63 - 1])).tolist() == [2, 0, 1]
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    for content in (b"", path.read_bytes()[:-1], b"\xff" * 50):
        path.write_bytes(content)
        with pytest.raises(BrokenArtefact, match=r"samples\.safetensors"):
            Membership.load(path)


def test_places_in_words():
    assert shown([3]) == "at place 3"
    assert shown(range(7)) == "at places 0, 1, 2, 3, 4 and 2 more"


def test_entries_are_json_that_others_can_read(path):
    with Ledger.open(path) as ledger:
        entry = ledger.append("x", "r", {"é": [1.5]})
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT * FROM entries").fetchone()
    assert json.loads(row[4]) == entry.details
    assert row[3] == "r"
    assert row[6] == entry.hash
