"""Who can write the workspace, and has neither key nor anchor, gets no code run, no signature, and no model served."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ssse.errors import Damaged
from ssse.workspace.proof.merkle import frontier, leaf_hash
from ssse.workspace.record import transaction as transactions
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.record.transaction import Transaction
from ssse.workspace.results import Verification
from ssse.workspace.workspace import Workspace
from tests.support import keyed
from tests.support.rewrites import forge, seal_anew
from tests.support.workspaces import snapshot


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> keyed.Keyed:
    kept = keyed.make(tmp_path_factory.mktemp("forged"))
    assert kept.made.workspace.erase("r-1", ids=["s3"]).outcome == "erased"
    return kept


@pytest.fixture
def path(original, tmp_path) -> Path:
    """To be forged, with data, key and anchor of its own beside it."""
    shutil.copytree(original.made.home, tmp_path / "home", symlinks=True)
    return tmp_path / "home" / "ws"


def edited(path: Path, section: str, **values: str) -> None:
    """The settings of entry 1 and of ssse.toml name something else; the hash of the entry is kept."""
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        details = json.loads(connection.execute("SELECT details FROM entries WHERE seq = 1").fetchone()[0])
    details["settings"][section] |= values
    forge(path, f"UPDATE entries SET details = '{json.dumps(details)}' WHERE seq = 1")
    text = (path / "ssse.toml").read_text()
    for name, value in values.items():
        kept = [line for line in text.split("\n") if not line.startswith(f"{name} =")]
        text = "\n".join(kept).replace(f"[{section}]", f'[{section}]\n{name} = "{value}"')
    (path / "ssse.toml").write_text(text)
    seal_anew(path)


def test_no_code_is_run_that_an_edited_ledger_names(path):
    flag = path.parent / "ran"
    (path.parent / "evil.py").write_text(f"open({str(flag)!r}, 'w')\n")
    edited(path, "model", factory="evil:build")
    before = snapshot(path)
    with pytest.raises(Damaged, match="entry 1 does not match its hash"):
        Workspace(path).erase("r-2", ids=["s7"])
    assert snapshot(path) == before
    assert not flag.exists()


def test_no_command_is_run_that_an_edited_ledger_names(path):
    flag = path.parent / "ran"
    edited(path, "record", anchor_command=f"touch {flag}")
    with pytest.raises(Damaged, match="entry 1 does not match its hash"):
        Workspace(path).erase("r-2", ids=["s7"])
    assert not flag.exists()


def forged_frontier(size: int) -> str:
    """Of a tree that the attacker chose."""
    return frontier([leaf_hash(b"never asked")] * size).to_text()


def signatures(path: Path) -> list[str | None]:
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        return [row[0] for row in connection.execute("SELECT signature FROM leaves ORDER BY seq")]


def test_no_tree_is_signed_from_a_view_in_the_place_of_the_leaves(path):
    size = len(signatures(path))
    chosen = f"seq = {size} AND (SELECT max(seq) FROM entries) > {size}"
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        connection.executescript(
            "ALTER TABLE leaves RENAME TO leaves_;"
            f"CREATE VIEW leaves AS SELECT seq, leaf, CASE WHEN {chosen} THEN '{forged_frontier(size)}' "
            "ELSE frontier END AS frontier, signature FROM leaves_;"
            "CREATE TRIGGER t INSTEAD OF INSERT ON leaves BEGIN "
            "INSERT INTO leaves_ VALUES (NEW.seq, NEW.leaf, NEW.frontier, NEW.signature); END;"
        )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    seal_anew(path)
    before = snapshot(path)
    with pytest.raises(Damaged, match="tables or its append-only triggers are not the original ones"):
        Workspace(path).erase("r-2", ids=["s7"])
    assert snapshot(path) == before


def insert(path: Path) -> None:
    """An entry that fits the chain, with a leaf and a frontier of the attacker's: into SQLite's log."""
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        query = "SELECT seq, time, hash FROM entries ORDER BY seq DESC LIMIT 1"
        seq, time, previous = connection.execute(query).fetchone()
        entry = Entry(seq + 1, time, "evaluated", None, {}, previous, "").hashed()
        row = (entry.seq, time, entry.kind, None, "{}", previous, entry.hash)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("INSERT INTO leaves VALUES (?, ?, ?, ?)", (seq + 1, "{}", forged_frontier(seq + 1), None))
        connection.commit()


def cut(path: Path) -> None:
    """The newest entry is gone, as before a fork."""
    with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for table in ("leaves", "entries"):
            connection.execute(f"DELETE FROM {table} WHERE seq = (SELECT max(seq) FROM {table})")
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize("moment", ["begin", "advance", "tidy_up"])
@pytest.mark.parametrize("act", [insert, cut])
def test_no_tree_is_signed_that_another_connection_wrote(path, original, monkeypatch, act: Callable, moment):
    """While the owner's command works; also not by what that command does before it gives up."""
    known, real = signatures(path), getattr(Transaction, moment)
    at = []

    def then(self, *arguments, **options):
        found = real(self, *arguments, **options)
        if not at:
            at.extend(entry.hash for entry in self.ledger.entries())
            act(path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(transactions.Transaction, moment, then)
        with pytest.raises(Damaged, match="altered while this command worked"):
            Workspace(path).erase("r-2", ids=["s7"])
    assert at
    assert len([one for one in signatures(path) if one]) <= max(len(known), len(at))  # nothing was signed since
    heads = (path.parent / "heads.txt").read_bytes()
    assert not Workspace(path).verify(keys=[original.public]).ok
    with pytest.raises(Damaged):  # and it stays seen
        Workspace(path).fit()
    assert (path.parent / "heads.txt").read_bytes() == heads


def test_an_entry_of_ours_whose_commit_was_interrupted_is_not_anothers(path, monkeypatch):
    """Ctrl-C just behind a COMMIT: it is in the ledger, and `append` never came to say so."""
    real, done = Ledger._transaction, []

    @contextmanager
    def interrupted(self):
        with real(self):
            yield
        if not done:
            done.append(True)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Workspace(path).erase("r-2", ids=["s7"])
    assert Workspace(path).erase("r-2", ids=["s7"]).outcome == "erased"
    assert Workspace(path).verify().ok


@pytest.fixture
def victim(path) -> Path:
    """Somebody's folder that looks like a state."""
    folder = path.parent / "victim"
    (folder / "curvature").mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"precious")
    (folder / "curvature" / "notes.txt").write_text("mine")
    return folder


def test_nothing_is_shredded_through_a_link_among_the_states(path, victim):
    before = snapshot(victim)
    (path / "states" / "000000").symlink_to(victim)
    (path / "states" / "000001").mkdir()
    (path / "states" / "000001" / "curvature").symlink_to(victim / "curvature")
    (path / "states" / "000001" / "weights.safetensors").symlink_to(victim / "weights.safetensors")
    assert Workspace(path).erase("r-2", ids=["s7"]).outcome == "erased"
    assert snapshot(victim) == before
    assert sorted(state.name for state in (path / "states").iterdir()) == [(path / "current").readlink().name]


@pytest.mark.parametrize("name", ["states", "states/000004", "states/000004/curvature"])
def test_what_the_workspace_needs_is_not_elsewhere(path, name):
    """Else the next request would shred it there."""
    (path / name).rename(path.parent / "elsewhere")
    (path / name).symlink_to(path.parent / "elsewhere")
    there = snapshot(path.parent / "elsewhere")
    for command in (None, "erase"):
        seal_anew(path, command)
        with pytest.raises(Damaged):
            Workspace(path).erase("r-2", ids=["s7"])
        assert snapshot(path.parent / "elsewhere") == there


def serve(path: Path, target: str) -> None:
    (path / "current").unlink()
    (path / "current").symlink_to(target)


def test_no_other_model_is_served_under_an_open_seal(path, original):
    """A seal that says "interrupted" excuses what a kill leaves, and nothing else."""
    (path / "states" / "evil").mkdir()
    shutil.copyfile(path.parent / "w.safetensors", path / "states" / "evil" / "weights.safetensors")
    for target in ("states/evil", "../victim", "states/000001", "states/000005"):
        serve(path, target)
        seal_anew(path, "erase")
        found = Workspace(path).verify(keys=[original.public], anchor=path.parent / "heads.txt")
        assert found.damages == [("current", "does not point to states/000004")], target
        assert any("not the workspace's own" in note and "states/evil" in note for note in found.notes)


@pytest.mark.parametrize("linked", [False, True])
def test_the_state_before_is_served_only_as_its_entry_says(path, linked):
    """Under its name the original weights would be found by nobody."""
    state = path / "states" / "000002"
    state.mkdir()
    serve(path, "states/000002")
    seal_anew(path, "erase")
    weights = state / "weights.safetensors"
    if linked:
        weights.symlink_to(path.parent / "w.safetensors")  # the same bytes, elsewhere
    else:
        shutil.copyfile(path / "states" / "000004" / "weights.safetensors", weights)
    assert ("states/000002/weights.safetensors", "is served, and is not as it was written") in verified(path).damages
    weights.unlink()
    shutil.copyfile(path.parent / "w.safetensors", weights)  # what a kill before the link was moved leaves
    found = verified(path)
    assert found.ok, found.damages
    left = "are left of what was interrupted, and the next command removes them: states/000002/weights.safetensors."
    assert any(left in note for note in found.notes)
    assert Workspace(path).fit(again=True)
    assert not state.exists()
    assert Workspace(path).verify().ok


def verified(path: Path) -> Verification:
    return Workspace(path).verify()
