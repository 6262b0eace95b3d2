"""A workspace of an earlier version goes on as it is, says what it lacks, and gets it on request."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ssse.errors import Damaged
from ssse.workspace.proof.keys import make_pair
from ssse.workspace.record.anchors import read_heads
from ssse.workspace.record.seal import FORM, Seal
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call, call_error, call_json
from tests.support.rewrites import forge, seal_anew
from tests.support.workspaces import snapshot

BEFORE = Path(__file__).parents[1] / "before"


@pytest.fixture(params=["torch", "sklearn"])
def home(request, tmp_path) -> Path:
    return Path(shutil.copytree(BEFORE / request.param, tmp_path / request.param, symlinks=True))


def test_it_says_what_it_lacks_and_goes_on_without(home):
    workspace = Workspace(home / "ws")
    found = workspace.verify()
    assert (found.ok, len(found.notes), found.signed) == (True, 2, 0)
    assert "has no leaves: nothing can be proved" in found.notes[0]
    assert "Others may read the folder itself" in found.notes[1]
    assert all("ssse upgrade" in note for note in found.notes)
    assert workspace.erase("second", ids=["s5"]).outcome == "erased"
    assert workspace.verify().notes == found.notes
    assert "`ssse upgrade` makes them" in call_error("prove", home / "ws", "--entry", "1")
    make_pair(home / "key.pem")
    for option in (["--key", home / "key.pem.pub"],):
        assert "has no leaves" in call_json("verify", home / "ws", *option, code=4)["damages"][0]["what"]


def test_it_is_upgraded_once_and_has_all(home):
    workspace = Workspace(home / "ws")
    before = workspace.log().entries
    said = call("upgrade", home / "ws")[0]
    assert "leaves for its 5 entries" in said
    assert "nobody else may read it" in said
    entries = workspace.log().entries
    assert entries[:-1] == before
    assert entries[-1].kind == "upgraded"
    found = workspace.verify()
    assert (found.ok, found.notes) == (True, [])
    assert Seal.read(home / "ws").form == FORM
    now = snapshot(home / "ws")
    assert call_json("upgrade", home / "ws") == {"upgraded": False, "gained": []}
    assert snapshot(home / "ws") == now
    assert [one.shown["hash"] for one in workspace.prove(request="first").proof.members] == [
        entry.hash for entry in entries if entry.request == "first"
    ]
    assert workspace.erase("second", ids=["s5"]).outcome == "erased"
    assert workspace.verify().ok
    assert "leaves for 5 entries" in " ".join(call("log", home / "ws")[0].split())
    assert "workspace upgraded" in workspace.report().page.read_text(encoding="utf-8")


def test_the_upgraded_ledger_has_the_tables_of_a_new_one(home, tmp_path):
    Workspace(home / "ws").upgrade()
    fresh = workspaces.make(tmp_path / "fresh", fit=False)
    schemas = []
    for path in (home / "ws", fresh.path):
        with closing(sqlite3.connect(path / "ledger.sqlite")) as connection:
            schemas.append(sorted(connection.execute("SELECT type, name, sql FROM sqlite_schema")))
    assert schemas[0] == schemas[1]


def test_a_key_and_an_anchor_need_the_upgrade_first_and_take_effect_with_it(home):
    make_pair(home / "key.pem")
    before = snapshot(home / "ws")
    anchor = ["--set", f"record.anchor={home / 'heads.txt'}"]
    for words in (["erase", "--request", "second", "--ids", "s5"], ["fit"]):
        assert "`ssse upgrade` it first" in call_error(words[0], home / "ws", *words[1:], *anchor)
    (home / "taken.txt").write_text("mine")
    assert "is not empty" in call_error("upgrade", home / "ws", "--anchor", home / "taken.txt")
    assert snapshot(home / "ws") == before
    said = call_json("upgrade", home / "ws", "--key", home / "key.pem", "--anchor", home / "heads.txt")
    assert [text.split()[0] for text in said["gained"]] == ["leaves", "modes", "signatures", "its"]
    workspace = Workspace(home / "ws")
    assert [entry.kind for entry in workspace.log().entries[-2:]] == ["upgraded", "configured"]
    assert workspace.erase("second", ids=["s5"]).outcome == "erased"
    found = workspace.verify(keys=[home / "key.pem.pub"], anchor=home / "heads.txt", unsigned_until=6)
    assert (found.ok, found.signed) == (True, 4)
    assert "The first 6 entries were not signed when they were made" in found.notes[0]
    assert [head.size for head in read_heads(home / "heads.txt").heads] == [7, 10]


def test_leaves_from_before_the_upgrade_are_vouched_for_by_it(home):
    """No hash of theirs covers them; that of the upgrade does."""
    Workspace(home / "ws").upgrade()
    forge(home / "ws", 'UPDATE leaves SET leaf = replace(leaf, \'"by":"\', \'"by":"x\') WHERE seq = 3')
    seal_anew(home / "ws")
    assert "was altered" in Workspace(home / "ws").verify().damages[0][1]
    with pytest.raises(Damaged, match="was altered"):
        Workspace(home / "ws").prove(entry=3)


def test_tables_of_neither_form_are_damage(home):
    Workspace(home / "ws").upgrade()
    forge(home / "ws", "DROP TABLE leaves", triggers=False)
    seal_anew(home / "ws")
    assert "not the original ones" in Workspace(home / "ws").verify().damages[0][1]


def test_it_is_not_downgraded_unseen(home):
    """Without leaves a new ledger looks like an old one; but it says that it was upgraded."""
    Workspace(home / "ws").upgrade()
    with closing(sqlite3.connect(home / "ws" / "ledger.sqlite", isolation_level=None)) as connection:
        for name in ("leaves_stay", "leaves_are_kept", "leaves_follow"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP TABLE leaves")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    seal_anew(home / "ws")
    assert Workspace(home / "ws").verify().damages == [("ledger.sqlite", "its leaves are gone")]
