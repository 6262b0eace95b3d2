"""What nothing vouches for can be taken back: the state from before stays until somebody confirms, or goes back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssse.errors import InvalidSetting
from ssse.workspace.record.entry import Entry
from ssse.workspace.record.ledger import Ledger
from ssse.workspace.results import Erased
from ssse.workspace.workspace import Workspace
from tests.support import workspaces
from tests.support.commands import call, call_json
from tests.support.rewrites import rebuild
from tests.support.workspaces import snapshot

UNSURE = {"erase.scale": 1.5}  # no Newton step: the verdict is caution


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return workspaces.make(tmp_path_factory.mktemp("torch"), erase__probe="none")


@pytest.fixture
def made(pristine, tmp_path):
    return workspaces.copy(pristine, tmp_path / "home")


@pytest.fixture(scope="module")
def pristine_estimator(tmp_path_factory):
    return workspaces.make_estimator(tmp_path_factory.mktemp("sklearn"), erase__confirm="always")


def names(path: Path) -> list[str]:
    return sorted(child.name for child in (path / "states").iterdir())


def kinds(workspace: Workspace) -> list[str]:
    return [entry.kind for entry in workspace.log().entries]


def hold(made: workspaces.Made, request: str = "r-1", ids: list[str] | None = None, **options: Any) -> Erased:
    answer = made.workspace.erase(request, ids=ids or ["s3", "s11"], options={**UNSURE, **options})
    assert answer.outcome == "erased"
    return answer


def test_what_is_vouched_for_goes_at_once(made):
    answer = made.workspace.erase("r-1", ids=["s3"])
    assert (answer.details["verdict"], answer.details["held"], answer.held) == ("ok", False, [])
    assert kinds(made.workspace)[-1] == "sealed"
    assert names(made.path) == ["000004"]
    assert call("confirm", made.path)[0].startswith("No request waits for confirmation; there is nothing to confirm.")
    assert call("revert", made.path)[0].startswith("No request waits for confirmation; there is nothing to revert.")


def test_what_is_not_is_kept_until_it_is_confirmed(made):
    before = snapshot(made.path)
    text, _ = call("erase", made.path, "--request", "r-1", "--ids", "s3,s11", "--scale", "1.5", code=6)
    assert "Waits for confirmation: The verdict is 'caution', and no test data says" in text
    assert f"ssse confirm {made.path}" in text
    assert f"ssse revert {made.path}" in text
    after = snapshot(made.path)
    assert {name for name in before if name.startswith("states/")} <= set(after)
    assert all(after[name] == body for name, body in before.items() if name.startswith("states/"))
    assert kinds(made.workspace)[-1] == "erased"
    entry = made.workspace.log().entries[-1]
    assert (entry.details["held"], len(entry.details["why_held"])) == (True, 1)
    seen = made.workspace.verify()
    assert seen.ok
    assert any("waits for confirmation" in note for note in seen.notes)
    assert call_json("log", made.path)["held"] == ["r-1"]
    assert "Confirm it, or go back" in call("log", made.path)[0]
    assert hold_again(made) == "repeated"
    assert call("confirm", made.path, "--request", "r-1")[0].startswith("Confirmed 1 request: r-1.")
    assert kinds(made.workspace)[-2:] == ["confirmed", "sealed"]
    assert made.workspace.log().entries[-1].details["old_weights"] == "shredded"
    assert names(made.path) == ["000004"]
    assert made.workspace.verify().notes == []
    assert call_json("confirm", made.path) == {"requests": [], "entry": None}


def hold_again(made: workspaces.Made) -> str:
    return made.workspace.erase("r-1", ids=["s3", "s11"]).outcome


def test_what_waits_can_be_taken_back(made):
    weight = made.weights()["weight"].clone()  # the file is overwritten under its readers
    curvature = (made.path / "current" / "curvature" / "manifest.json").read_bytes()
    hold(made)
    assert not torch.equal(made.weights()["weight"], weight)
    assert call("revert", made.path)[0].startswith("Reverted 1 request: r-1.")
    assert torch.equal(made.weights()["weight"], weight)
    assert (made.path / "current" / "curvature" / "manifest.json").read_bytes() == curvature
    assert names(made.path) == ["000005"]
    seen = made.workspace.verify()
    assert (seen.ok, seen.notes) == (True, [])
    assert "“r-1” undone: back to the state of entry 2" in call("log", made.path)[0].replace("\n", " ")
    # Its samples are in the model again, and its id is free.
    answer = made.workspace.erase("r-1", ids=["s3", "s12"])
    assert (answer.outcome, answer.already, answer.details["held"]) == ("erased", {}, False)
    assert kinds(made.workspace)[-4:] == ["reverted", "received", "erased", "sealed"]
    assert made.workspace.verify().ok
    assert made.workspace.erase("r-2", ids=["s11"]).already == {}
    found = made.workspace.fit(again=True).entry.details
    assert (found["n"], found["excluded"]) == (37, 3)


def test_the_last_sound_state_stays_and_none_of_those_between(made):
    hold(made)
    hold(made, "r-2", ["s5"])
    assert names(made.path) == ["000002", "000006"]
    answer = made.workspace.erase("r-3", ids=["s6"])  # ok or not: a verdict is of its own step alone
    assert answer.held == ["r-1", "r-2", "r-3"]
    assert names(made.path) == ["000002", "000008"]
    assert made.workspace.verify().ok
    copy = workspaces.copy(made, made.home.parent / "copy")
    made.workspace.confirm()
    assert kinds(made.workspace)[-4:] == ["confirmed", "sealed", "sealed", "sealed"]
    assert names(made.path) == ["000008"]
    copy.workspace.revert()
    assert copy.workspace.log().entries[-1].details["requests"] == ["r-1", "r-2", "r-3"]
    assert (copy.path / "current/weights.safetensors").read_bytes() != (
        made.path / "current/weights.safetensors"
    ).read_bytes()
    for one in (made, copy):
        assert (one.workspace.verify().ok, one.workspace.verify().notes) == (True, [])


def test_test_data_that_does_no_worse_does_not_settle_what_waits(made):
    """It compares with the model that waits, which may be ruined already."""
    hold(made)
    kept = names(made.path)
    answer = made.workspace.erase("r-2", ids=["s5"], options={"erase.probe": "test"})
    assert answer.details["diagnostics"]["probe_worse"] is False
    assert (answer.details["held"], answer.held) == (True, ["r-1", "r-2"])
    assert names(made.path)[0] == kept[0]
    assert made.workspace.verify().ok


@pytest.mark.parametrize(("policy", "held"), [("never", False), ("always", True)])
def test_a_stated_policy_decides(made, policy, held):
    chosen: Any = {"erase.confirm": policy}
    answer = hold(made, **chosen)
    assert answer.details["held"] is held
    vouched = made.workspace.erase("r-2", ids=["s5"], options=chosen)
    assert vouched.details["held"] is held
    assert len(names(made.path)) == 1 + held
    assert made.workspace.verify().ok


def test_the_other_commands_go_on_meanwhile(made):
    hold(made)
    made.workspace.fit(again=True)
    assert names(made.path) == ["000002", "000005"]
    assert made.workspace.verify().ok
    assert "original" in made.workspace.evaluate().entry.details["table"]["models"]
    call("report", made.path)
    page = (made.path / "report.html").read_text()
    assert "◐ erased, waits for confirmation" in page
    assert "kept until somebody confirms them" in page
    made.workspace.calibrate(ids=["s20", "s21"], options={"calibrate.scales": [0.5, 1.0, 2.0]})
    copy = workspaces.copy(made, made.home.parent / "copy")
    made.workspace.confirm()
    copy.workspace.revert()
    for one in (made, copy):
        assert one.workspace.verify().ok
        assert len(names(one.path)) == 1
        call("report", one.path)
    assert "↶ erased and undone" in (copy.path / "report.html").read_text()
    # The fit and the ε of the way that was left are not in force any more.
    answer = copy.workspace.erase("r-9", ids=["s7"])
    assert (answer.details["n"], answer.details["scale"]) == (40, 1.0)


def test_old_files_that_are_to_be_kept_are_kept_when_it_is_confirmed(made):
    kept: Any = {"erase.old_weights": "keep"}
    hold(made, **kept)
    hold(made, "r-2", ["s5"], **kept)
    assert made.workspace.verify().ok
    made.workspace.confirm()
    assert names(made.path) == ["000002", "000004", "000006"]
    assert [p.name for p in (made.path / "states" / "000002").iterdir()] == ["weights.safetensors"]
    assert made.workspace.verify().ok
    hold(made, "r-3", ["s6"], **{"erase.old_weights": "keep", "erase.old_curvature": "keep"})
    assert kinds(made.workspace)[-1] == "sealed"  # nothing would go, so nothing waits


def test_an_estimator_too(pristine_estimator, tmp_path):
    for way in ("confirm", "revert"):
        made = workspaces.copy(pristine_estimator, tmp_path / way)
        before = (made.path / "current" / "model.skops").read_bytes()
        assert made.workspace.erase("r-1", ids=["s3"]).details["held"]
        assert getattr(made.workspace, way)().requests == ["r-1"]
        assert made.workspace.verify().ok
        assert len(names(made.path)) == 1
        assert ((made.path / "current" / "model.skops").read_bytes() == before) == (way == "revert")


def test_a_request_that_was_interrupted_is_finished_as_its_samples_stand_then(made, monkeypatch):
    """Received while one of its samples was erased by a request that waited and was then undone."""
    hold(made, "x", ["s3"])

    class Killed(BaseException):
        pass

    append = Ledger.append

    def dies(self: Ledger, kind: str, *rest: Any) -> Entry:
        entry = append(self, kind, *rest)
        if kind == "received":
            raise Killed
        return entry

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", dies)
        with pytest.raises(Killed):
            made.workspace.erase("y", ids=["s3", "s4"])
    assert made.workspace.log().pending == ["y"]
    made.workspace.revert()
    assert made.workspace.erase("y", ids=["s3", "s4"]).details["k"] == 2
    assert made.workspace.verify().ok
    entries = made.workspace.log("y").entries
    assert [(entry.kind, entry.details["k"]) for entry in entries[:3]] == [
        ("received", 1),
        ("received", 2),
        ("erased", 2),
    ]


def test_what_settled_a_request_belongs_to_it(made):
    """Else who asks for a request sees an erasure that was undone."""
    hold(made, "x", ["s3"])
    hold(made, "y", ["s4"])
    made.workspace.revert()
    hold(made, "x", ["s3"])
    made.workspace.confirm()
    for request, after in (("x", ["received", "erased", "confirmed", "sealed"]), ("y", [])):
        whole = ["received", "erased", "reverted", *after]
        assert [entry.kind for entry in made.workspace.log(request).entries] == whole
        proof = made.workspace.prove(request=request).proof
        assert [one.shown["kind"] for one in proof.members] == whole
        assert call("log", made.path, "--request", request)[0].count("undone: back to the state") == 1


def test_who_was_refused_because_of_what_is_undone_is_named(made):
    made.workspace.erase("before", ids=["s9"])
    assert made.workspace.erase("none", ids=["s9"]).outcome == "refused"
    hold(made, "x", ["s3", "s5"])
    for request, ids in (("y", ["s3"]), ("z", ["s5", "s3"]), ("none", ["s9"])):
        assert made.workspace.erase(request, ids=ids).outcome == "refused"
    hold(made, "w", ["s6"])
    text = call("revert", made.path)[0]
    assert "Refused because of them, and to be asked for again: 'y', 'z'." in text
    entry = made.workspace.log().entries[-1]
    assert (entry.details["requests"], entry.details["refused"]) == (["x", "w"], ["y", "z"])
    assert "to be asked for again: “y”, “z”" in call("log", made.path)[0].replace("\n", " ")
    assert made.workspace.erase("y", ids=["s3"]).outcome == "erased"


def test_which_request_is_meant(made):
    hold(made)
    before = snapshot(made.path)
    for command in ("confirm", "revert"):
        _, complaint = call(command, made.path, "--request", "r-2", code=2)
        assert "Request 'r-2' does not wait for confirmation; 'r-1' do" in complaint
    assert snapshot(made.path) == before
    with pytest.raises(InvalidSetting):
        made.workspace.confirm("nobody")


@pytest.mark.parametrize("command", ["confirm", "revert"])
@pytest.mark.parametrize("state", ["000002", "000004"])
def test_neither_state_goes_where_the_other_is_damaged(made, command, state):
    hold(made)
    target = made.path / "states" / state / "weights.safetensors"
    target.write_bytes(target.read_bytes()[:-1] + b"\xff")
    before = snapshot(made.path)
    _, complaint = call(command, made.path, code=4)
    assert f"states/{state}/weights.safetensors" in complaint
    assert snapshot(made.path) == before


def test_going_back_to_another_state_than_the_entry_names_is_seen(made):
    """As who writes the whole chain anew might."""
    hold(made)
    made.workspace.revert()
    folder = made.home / "forged"
    shutil.copytree(made.path, folder, symlinks=True)

    def forged(entries: list[Entry]) -> list[Entry]:
        return [*entries[:-1], replace(entries[-1], details={**entries[-1].details, "back_to": 4})]

    rebuild(folder, forged)
    assert any("did not go back" in what for _, what in Workspace(folder).verify().damages)
