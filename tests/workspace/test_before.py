"""Workspaces that an earlier version wrote: read, described and gone on with as if this version had written them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ssse.workspace.record.describe import describe
from ssse.workspace.record.details import read_details
from ssse.workspace.record.folder import restrict
from ssse.workspace.record.residues import what_remains
from ssse.workspace.record.seal import FORM, Seal
from ssse.workspace.workspace import Workspace
from tests.support.commands import call, call_json

BEFORE = Path(__file__).parents[1] / "before"
ENGINES = ("torch", "sklearn")


@pytest.fixture(params=ENGINES)
def home(request, tmp_path) -> Path:
    return Path(shutil.copytree(BEFORE / request.param, tmp_path / request.param, symlinks=True))


def test_it_is_as_it_was_written(home):
    assert json.loads((home / "ws" / "seal.json").read_bytes()).get("form") is None  # else this tests nothing
    verification = Workspace(home / "ws").verify()
    assert verification.ok, verification.damages
    assert (verification.entries, verification.interrupted) == (5, None)
    restrict(home / "ws")  # it was made as the umask said
    lacks = [note.split(":")[0] for note in Workspace(home / "ws").verify().notes]
    assert lacks == ["It was made by an earlier version and has no leaves"]


def test_one_altered_byte_is_seen(home):
    path = home / "ws" / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    assert next(name for name, _ in Workspace(home / "ws").verify().damages) == "ledger.sqlite"
    call("erase", home / "ws", "--request", "second", "--ids", "s5", code=4)


def test_its_entries_are_in_the_log_in_one_line_each(home):
    text, _ = call("log", home / "ws")
    of_sklearn = home.name == "sklearn"
    assert ("distance from a refit: not proved" in " ".join(text.split())) == of_sklearn
    assert ("ε = 1" in text) != of_sklearn
    assert [entry["kind"] for entry in call_json("log", home / "ws")["entries"]] == [
        *("created", "fitted", "received", "erased", "sealed")
    ]


def test_it_has_a_page(home):
    page = Workspace(home / "ws").report().page.read_text(encoding="utf-8")
    assert "1 request came: 1 carried out." in page
    assert ("distance from a refit" in page) == (home.name == "sklearn")
    assert "None" not in page
    assert Workspace(home / "ws").verify().ok


def test_requests_go_on(home):
    workspace = Workspace(home / "ws")
    assert workspace.erase("first", forget=home / "forget.npz").outcome == "repeated"
    assert workspace.erase("second", ids=["s5", "s6"]).outcome == "erased"
    assert Seal.read(home / "ws").form == FORM
    new = workspace.log("second").entries[1].details
    assert new["engine"] == home.name
    assert new["holds"] == "sums over the samples, from which the forgotten ones were subtracted"
    assert "epsilon" not in new
    verification = workspace.verify()
    assert verification.ok, verification.damages
    assert workspace.fit(again=True).entry.details["excluded"] == 4
    page = workspace.report().page.read_text(encoding="utf-8")
    assert "2 requests came: 2 carried out." in page


def test_all_that_is_asked_for_may_be_erased_before(home):
    forget = np.load(home / "forget.npz")
    np.savez(home / "again.npz", x=forget["x"], y=forget["y"])
    assert Workspace(home / "ws").erase("second", forget=home / "again.npz").already == {"first": 2}


def test_old_details_have_todays_names(home):
    entries = {entry.kind: entry for entry in Workspace(home / "ws").log().entries}
    created, fitted, erased = (read_details(kind, entries[kind].details) for kind in ("created", "fitted", "erased"))
    assert {created["engine"], fitted["engine"], erased["engine"]} == {home.name}
    of_sklearn = home.name == "sklearn"
    assert ("distance_bound" in fitted, "distance_bound" in erased) == (of_sklearn, of_sklearn)
    assert not {"epsilon", "gradient"} & {*fitted, *erased}
    assert entries["erased"].hash == entries["erased"].expected_hash()
    lines = {line["what"]: line["status"] for line in what_remains(erased, created)}
    assert lines["curvature now"].startswith(
        "holds sums over the samples, from which the forgotten ones were subtracted"
    )


def test_todays_details_are_read_as_they_are(tmp_path):
    for kind in ("created", "fitted", "erased", "received", "something new"):
        details = {"engine": "torch", "epsilon": 1}
        assert read_details(kind, details) is details


def test_a_step_that_was_once_taken_by_force_still_says_so():
    """When bounds had no names one option was for all of them."""
    for forced, overridden in ((True, ["force"]), (False, [])):
        details = {"engine": "torch", "forced": forced, "verdict": "caution", "k": 2, "n": 9}
        assert read_details("erased", details)["overridden"] == overridden
        assert ("overriding force" in describe("erased", details)) == forced
