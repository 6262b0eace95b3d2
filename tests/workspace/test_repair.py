"""`ssse repair`: a state of its own, entered as what it is; nothing forgotten comes near, and nothing is half done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ssse
from ssse.errors import BrokenArtefact, Damaged, InvalidData, InvalidSetting
from ssse.workspace import settings as toml
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.record.published import published
from ssse.workspace.workspace import Workspace
from tests.support import commands, workspaces
from tests.support.commands import OVERRIDES, call, call_error, call_json
from tests.support.workspaces import Made

GONE = ["s3", "s8", "s11"]


def made(home: Path, **options) -> Made:
    """A network with BatchNorm, from which some samples are erased."""
    x, y = workspaces.files(home)
    save_file(commands.batch_norm().state_dict(), home / "w.safetensors")
    named = {name.replace("__", "."): value for name, value in options.items()}
    settings = {
        **{"model.factory": "tests.support.commands:batch_norm", "model.search": "..", "model.device": "cpu"},
        **{
            "data.train": "../train.npz",
            "data.test": "../test.npz",
            "fit.weight_decay": 0.01,
            "erase.confirm": "never",
        },
        **named,
    }
    workspace = Workspace.init(home / "ws", toml.from_options(settings), home / "w.safetensors").workspace
    workspace.fit()
    found = Made(home, workspace, x, y)
    assert workspace.erase("r1", ids=GONE, override=ssse.BOUNDS).outcome == "erased"
    return found


def kinds(workspace: Workspace) -> list[str]:
    return [entry.kind for entry in workspace.log().entries]


def current(found: Made) -> torch.nn.Module:
    model = commands.batch_norm()
    model.load_state_dict(found.weights())
    return model.eval()


def stays(found: Made) -> list[int]:
    return [place for place in range(len(found.y)) if f"s{place}" not in GONE]


def test_it_is_the_librarys_own_to_the_last_bit(tmp_path):
    found = made(tmp_path)
    before, places = current(found), stays(found)
    wanted = ssse.repair(
        before, [(found.x[places], found.y[places])], "cross_entropy", forget=None, epochs=2, learning_rate=0.02,
        batch_size=8, weight_decay=0.01, seed=3, progress=False,
    )  # fmt: skip
    done = found.workspace.repair(epochs=2, learning_rate=0.02, batch_size=8, seed=3)
    assert done.now
    for name, value in wanted.model.state_dict().items():
        assert torch.equal(found.weights()[name], value), name
    details = done.entry.details
    assert (details["samples"], details["epochs"], details["steps"], details["seed"]) == (37, 2, 8, 3)
    assert details["retained_loss"] == pytest.approx(wanted.curve[-1].losses["retained"])
    assert details["weight_decay"] == 0.01  # the fit's
    assert kinds(found.workspace)[-1] == "repaired"
    assert found.workspace.verify().ok
    assert not (found.path / "current" / "curvature").exists()


def test_the_entry_holds_no_sample_and_what_is_shown_of_it_no_digest_of_all(tmp_path):
    found = made(tmp_path)
    entry = found.workspace.repair().entry
    shown = published(entry)["details"]
    assert "data" in entry.details
    assert not {"data", "retained_accuracy"} & shown.keys()
    assert not any("forget=" in note for note in shown["notes"])
    assert shown["retained_loss"] != entry.details["retained_loss"]


def test_a_second_time_only_if_asked_to(tmp_path):
    found = made(tmp_path)
    first = found.workspace.repair()
    again = found.workspace.repair()
    assert (again.now, again.entry) == (False, first.entry)
    assert found.workspace.repair(again=True).now
    found.workspace.fit()
    assert not found.workspace.repair().now
    found.workspace.erase("r2", ids=["s5"], override=ssse.BOUNDS)
    assert found.workspace.repair().now
    assert found.workspace.verify().ok


def test_the_next_request_takes_a_curvature_of_its_own(tmp_path):
    found = made(tmp_path)
    found.workspace.repair()
    assert found.workspace.erase("r2", ids=["s5"], override=ssse.BOUNDS).outcome == "erased"
    fitted = found.workspace.log().entries[-4]
    assert (fitted.kind, fitted.details["because"]) == ("fitted", "repaired")
    assert fitted.details["n"] == 37
    assert found.workspace.verify().ok


def test_where_no_fit_is_allowed_it_says_what_to_do(tmp_path):
    found = made(tmp_path, erase__refit="never")
    found.workspace.repair()
    with pytest.raises(InvalidSetting, match="a repair has dropped it: run `ssse fit`"):
        found.workspace.erase("r2", ids=["s5"])
    found.workspace.fit()
    assert found.workspace.erase("r2", ids=["s5"], override=ssse.BOUNDS).outcome == "erased"


def test_samples_that_stay_from_a_file(tmp_path):
    found = made(tmp_path)
    entry = found.workspace.repair(data=found.forget_file([0, 1, 2, 4, 5, 6], "some.npz")).entry
    assert (entry.details["samples"], entry.details["by"]) == (6, "file")


def test_forgotten_and_unknown_samples_are_refused_before_anything_is_written(tmp_path):
    found = made(tmp_path)
    before = workspaces.snapshot(found.path)
    with pytest.raises(InvalidData, match=r"2 of the 4 samples of .* were erased: a training on them would teach"):
        found.workspace.repair(data=found.forget_file([0, 3, 8, 9]))
    other = tmp_path / "other.npz"
    np.savez(other, x=found.x[:5].numpy() + 1, y=found.y[:5].numpy())
    with pytest.raises(InvalidData, match=r"5 of the 5 samples .* were never in the training data"):
        found.workspace.repair(data=other)
    assert workspaces.snapshot(found.path) == before


def test_nothing_erased_nothing_to_repair(tmp_path):
    found = workspaces.make(tmp_path)
    with pytest.raises(InvalidSetting, match="Nothing was erased yet"):
        found.workspace.repair()


def test_an_estimator_is_not_repaired(tmp_path):
    found = workspaces.make_estimator(tmp_path)
    found.workspace.erase("r1", ids=["s3"])
    before = workspaces.snapshot(found.path)
    with pytest.raises(InvalidSetting, match="a short training of a network"):
        found.workspace.repair()
    with pytest.raises(InvalidSetting, match="Leave --resurfacing out"):
        found.workspace.evaluate(resurfacing=True)
    assert workspaces.snapshot(found.path) == before


def test_a_repair_that_makes_it_worse_or_diverges_changes_nothing(tmp_path, monkeypatch):
    found = made(tmp_path)
    before = workspaces.snapshot(found.path)
    with pytest.raises(InvalidSetting, match="diverged"):
        found.workspace.repair(learning_rate=1e200, epochs=30)
    for name in ("WORSE_ACCURACY", "NOISE"):  # as if any repair were one
        monkeypatch.setattr(f"ssse.workspace.commands.repair.{name}", -9.0)
    with pytest.raises(InvalidSetting, match="The repair makes the model worse"):
        found.workspace.repair()
    assert workspaces.snapshot(found.path) == before


def test_what_does_not_read_back_is_not_entered(tmp_path, monkeypatch):
    found = made(tmp_path)
    before, weights = kinds(found.workspace), found.weights()

    def other(*_) -> None:
        raise BrokenArtefact("it answers otherwise.")

    with monkeypatch.context() as patched:
        patched.setattr(TorchEngine, "check_same", other)
        with pytest.raises(Damaged, match=r"The repaired model .* does not read back .* The old model stays"):
            found.workspace.repair()
    assert kinds(found.workspace) == before
    assert all(torch.equal(value, weights[name]) for name, value in found.weights().items())
    assert found.workspace.verify().ok


def states(found: Made) -> set[str]:
    return {path.name for path in (found.path / "states").iterdir()}


def test_the_state_before_goes_or_stays_as_the_settings_say(tmp_path):
    for fate in ("shred", "keep"):
        found = made(tmp_path / fate, erase__old_weights=fate)
        erased = found.workspace.folder.current.resolve().name
        found.workspace.repair()
        assert (erased in states(found)) == (fate == "keep")
        assert found.workspace.verify().ok


def test_requests_that_wait_go_on_waiting(tmp_path):
    found = made(tmp_path, erase__confirm="always")
    first = load_file(tmp_path / "w.safetensors")
    done = found.workspace.repair()
    assert found.workspace.log().held == ["r1"]
    assert found.workspace.verify().ok
    assert done.entry.details["verdict"] in ("ok", "caution")
    found.workspace.revert()
    assert all(torch.equal(value, first[name]) for name, value in found.weights().items())
    assert found.workspace.verify().ok
    with pytest.raises(InvalidSetting, match="Nothing was erased yet"):  # any more
        found.workspace.repair()


def test_confirmed_after_a_repair_the_statistics_are_said_to_be_new(tmp_path):
    found = made(tmp_path, erase__confirm="always")
    repaired = found.workspace.repair().entry
    found.workspace.confirm()
    sealed = found.workspace.log().entries[-1]
    assert sealed.kind == "sealed"
    lines = {line["what"]: line["status"] for line in sealed.details["remains"]}
    assert "estimated again on the data that stays" in lines["BatchNorm statistics"]
    assert "a repair changed the weights" in lines["curvature now"]
    assert states(found) == {f"{repaired.seq:06d}"}
    assert found.workspace.verify().ok


def test_on_the_page_and_in_the_log(tmp_path):
    found = made(tmp_path)
    found.workspace.repair()
    page = found.workspace.report().page.read_text(encoding="utf-8")
    for words in ("model repaired", "The model was repaired after the last erasure", "There is no curvature now"):
        assert words in page
    assert '<th scope="row" class="long">weights before this request</th>' in page
    for line in ("BatchNorm statistics", "curvature now"):
        assert f'<th scope="row" class="long">{line}</th>' not in page
    found.workspace.erase("r2", ids=["s5"], override=ssse.BOUNDS)
    page = found.workspace.report().page.read_text(encoding="utf-8")
    assert "The model was repaired after the last erasure" not in page
    assert '<th scope="row" class="long">BatchNorm statistics</th>' in page


def test_on_the_command_line(tmp_path):
    found = made(tmp_path)
    ws = found.path
    said, _ = call("repair", ws, "--epochs", 2, "--learning-rate", 0.02)
    assert "Repaired on 37 samples that stay, 2 epochs" in said
    assert f"ssse fit {ws}" in said
    assert "Repaired already" in call("repair", ws)[0]
    shown = call_json("repair", ws, "--again", "--seed", 4)
    assert (shown["repaired"], shown["entry"]["kind"], shown["entry"]["details"]["seed"]) == (True, "repaired", 4)
    assert "repaired" in call("log", ws)[0]
    assert "epochs must be a whole number" in call_error("repair", ws, "--again", "--epochs", 0)
    call("erase", ws, "--request", "r2", "--ids", "s5", *OVERRIDES)
    assert "were erased" in call_error("repair", ws, "--data", found.forget_file([3, 8]))


def test_an_evaluation_with_resurfacing(tmp_path):
    found = made(tmp_path)
    found.workspace.erase("r2", ids=[f"s{i}" for i in range(12, 32)], override=ssse.BOUNDS)
    table = found.workspace.evaluate(resurfacing=True).table
    assert table["erased", "resurfacing_rise"] is not None
    call("evaluate", found.path, "--resurfacing")
    page = found.workspace.report().page.read_text(encoding="utf-8")
    assert "S along a harmless training on D∖S: accuracy, %" in page
    assert "does it come back" in page
