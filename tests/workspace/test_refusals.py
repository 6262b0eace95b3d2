"""A model is not destroyed by a command: what cannot be right is refused, and nothing goes before the new state has
passed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import skops.io
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression, Ridge

from ssse.sklearn.eraser import Eraser
from ssse.workspace import settings as toml
from ssse.workspace.engines.sklearn import SklearnEngine
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.workspace import Workspace
from tests.support import digits, workspaces
from tests.support.commands import OVERRIDES, call, call_json, exact
from tests.support.workspaces import snapshot

IDS = ",".join(str(place) for place in digits.THIRTY_PERCENT)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Digits, with a weight decay that is given 1,000 times too small."""
    home = tmp_path_factory.mktemp("digits")
    for name, (x, y) in (("train", digits.training_data()), ("test", digits.held_out())):
        np.savez(home / f"{name}.npz", x=x.numpy(), y=y.numpy())
    save_file(digits.model().state_dict(), home / "w.safetensors")
    settings = toml.from_options(
        {
            "model.factory": "torch.nn:Linear",
            "model.arguments": {"in_features": 64, "out_features": 10},
            "model.device": "cpu",
            "data.train": "../train.npz",
            "data.ids": "place",
            "fit.weight_decay": digits.DECAY / 1000,
        }
    )
    workspace = Workspace.init(home / "ws", settings, home / "w.safetensors").workspace
    workspace.fit()
    return workspaces.Made(home, workspace, *digits.training_data())


@pytest.fixture
def made(pristine, tmp_path):
    return workspaces.copy(pristine, tmp_path / "home")


def states(path: Path) -> dict[str, bytes | str]:
    return {name: content for name, content in snapshot(path).items() if name.startswith("states/")}


def test_a_step_that_would_destroy_the_model_is_refused(made):
    before = states(made.path)
    text, _ = call("erase", made.path, "--request", "r", "--ids", IDS, code=3)
    assert "Refused: By its gradient θ* was trained with a weight decay of 0.01" in text
    assert "Fit again with --set fit.weight_decay=0.01" in text
    assert "--request r --exact" in text
    assert states(made.path) == before
    assert torch.equal(made.weights()["weight"], digits.model().weight)
    entry = call_json("log", made.path, "--request", "r")["entries"][-1]
    assert (entry["kind"], entry["details"]["verdict"]) == ("refused", "refused")
    kept = exact(made.path, "r")[-1]["details"]
    assert kept["diagnostics"]["relative_step"] > 1
    assert "Fit again with weight_decay=0.01" in kept["reason"]
    assert call_json("verify", made.path)["ok"]
    said = call_json("erase", made.path, "--request", "other", "--ids", IDS, "--dry-run", code=3)
    assert (said["outcome"], said["entries"]) == ("refused", [])


def test_overridden_by_name_it_is_taken_and_recorded(made):
    text, _ = call("erase", made.path, "--request", "r", "--ids", IDS, code=3)
    assert "To take the step all the same: --override stationarity --override step --override leverage." in text
    assert "override=" not in text
    call("erase", made.path, "--request", "r", "--ids", IDS, "--override", "stationarity", code=3)
    text, _ = call(
        *("erase", made.path, "--request", "r", "--ids", IDS),
        *("--override", "step", "--override", "stationarity", "--override", "leverage"),
        code=6,
    )
    assert "Verdict: caution, overriding stationarity, step, leverage; it waits for confirmation." in text
    assert "because Overridden (stationarity): By its gradient" in text
    entries = call_json("log", made.path, "--request", "r")["entries"]
    assert [entry["kind"] for entry in entries] == [*["received", "refused"] * 2, "received", "erased"]
    details = entries[-1]["details"]
    assert (details["overridden"], details["verdict"]) == (["stationarity", "step", "leverage"], "caution")
    assert details["held"]
    assert entries[1]["details"]["diagnostics"]["broken"] == ["stationarity", "step", "leverage"]
    said = " ".join(call("log", made.path)[0].split())
    assert "verdict caution, overriding stationarity, step, leverage, held until confirmed" in said
    assert not torch.equal(made.weights()["weight"], digits.model().weight)
    call("report", made.path)
    page = (made.path / "report.html").read_text()
    assert "▲ caution, overriding stationarity, step, leverage" in page
    assert "Overridden (stationarity): By its gradient" in page
    assert "◐ erased, waits for confirmation" in page


def test_an_unknown_bound_is_an_error_that_names_the_nearest(made):
    _, complaint = call("erase", made.path, "--request", "r", "--ids", IDS, "--override", "stationary", code=2)
    assert "There is no bound 'stationary' to override; did you mean 'stationarity'?" in complaint


def test_what_was_not_needed_is_not_overridden(tmp_path):
    made = workspaces.make(tmp_path)
    call("erase", made.path, "--request", "one", "--ids", "s3", *OVERRIDES)
    details = call_json("log", made.path, "--request", "one")["entries"][1]["details"]
    assert (details["overridden"], details["diagnostics"]["broken"]) == ([], [])


def test_the_test_data_is_the_probe(tmp_path):
    made = workspaces.make(tmp_path)
    text, _ = call("erase", made.path, "--request", "a", "--ids", "s1")
    assert "The mean loss on … probe samples went from … to …" in text
    seen = exact(made.path, "a")[1]["details"]["diagnostics"]
    assert seen["probe_samples"] == 30
    assert None not in (seen["probe_loss_before"], seen["probe_accuracy_after"])
    (tmp_path / "test.npz").unlink()
    before = snapshot(made.path)
    _, complaint = call("erase", made.path, "--request", "b", "--ids", "s2", code=2)
    assert "Erasing looks at the test data" in complaint
    assert snapshot(made.path) == before
    call("erase", made.path, "--request", "b", "--ids", "s2", "--set", "erase.probe=none")
    seen = exact(made.path, "b")[1]["details"]["diagnostics"]
    assert seen["probe_samples"] is None


def test_a_large_test_set_is_looked_at_in_part(tmp_path):
    made = workspaces.make(tmp_path)
    x, y = workspaces.data(5000, seed=1)
    np.savez(tmp_path / "test.npz", x=x.numpy(), y=y.numpy())
    seen = made.workspace.erase("a", ids=["s1"], dry_run=True).details["diagnostics"]
    assert seen["probe_samples"] == 2000


@pytest.mark.parametrize("kind", [LogisticRegression, Ridge])
def test_an_estimator_that_fails_its_probe_is_kept(tmp_path, kind):
    x, y = (part.numpy() for part in workspaces.data())
    model = kind(tol=1e-10).fit(x, y)
    erased = Eraser(model).fit(x, y).erase(x[:3], y[:3])
    asked = workspaces.data(4000, seed=1)[0].numpy()
    before, after = model.predict(asked), erased.predict(asked)
    # All that the step costs: what the old model says should be said later, where the new one says it least.
    worst = np.argsort(-np.abs(before - after), kind="stable")[:50]
    targets = before[worst] if kind is LogisticRegression else before[worst] + 0.3 * (before - after)[worst]
    np.savez(tmp_path / "train.npz", x=x, y=y if kind is LogisticRegression else y.astype(float))
    np.savez(tmp_path / "test.npz", x=asked[worst], y=targets)
    skops.io.dump(model, tmp_path / "model.skops")
    settings = {"data.train": "../train.npz", "data.test": "../test.npz", "data.ids": "place"}
    made = Workspace.init(tmp_path / "ws", settings, tmp_path / "model.skops").workspace
    made.fit()
    kept, ids = states(tmp_path / "ws"), ["0", "1", "2"]
    answer = made.erase("r", ids=ids)
    assert answer.outcome == "refused"
    assert "50 probe samples" in answer.reason
    assert states(tmp_path / "ws") == kept
    assert 'override=("probe",)' in answer.reason
    assert made.erase("r", ids=ids, override=["step", "share"]).outcome == "refused"  # one is not another
    taken = made.erase("r", ids=ids, override=["probe"])
    assert (taken.outcome, taken.details["overridden"], taken.details["verdict"]) == ("erased", ["probe"], "caution")
    assert taken.details["held"]
    assert made.verify().ok


@pytest.mark.parametrize("make", [workspaces.make, workspaces.make_estimator], ids=["torch", "sklearn"])
@pytest.mark.parametrize("part", ["model", "curvature"])
def test_a_state_that_does_not_read_back_leaves_the_old_one(tmp_path, monkeypatch, make, part):
    made = make(tmp_path)
    before = states(made.path)
    engine = TorchEngine if make is workspaces.make else SklearnEngine
    write = engine.write_state

    def damage(self, folder, model, curvature):
        if part == "model":
            model = deepcopy(model)
            (model.weight if engine is TorchEngine else model.coef_)[0, 0] += 1e-9
        write(self, folder, model, curvature)
        if part == "curvature":
            target = min((folder / "curvature").glob("*.safetensors"))
            target.write_bytes(target.read_bytes()[:-1] + bytes([target.read_bytes()[-1] ^ 255]))

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(engine, "write_state", damage)
        _, complaint = call("erase", made.path, "--request", "r", "--ids", "s1,s2", code=4)
    assert "does not read back as it was made" in complaint
    assert "The old model stays" in complaint
    assert states(made.path) == before
    assert call_json("log", made.path)["pending"] == ["r"]
    assert call_json("verify", made.path)["ok"]
    call("erase", made.path, "--request", "r", "--ids", "s1,s2")
    assert states(made.path).keys() != before.keys()


def test_a_model_that_answers_otherwise_once_it_is_read_leaves_the_old_one(tmp_path, monkeypatch):
    """Its numbers are the same, and the code that they are loaded into is not."""
    made = workspaces.make(tmp_path)
    before, read = states(made.path), TorchEngine.read

    def otherwise(self, path):
        model = read(self, path)
        if path.parent.name.startswith("."):  # the state that was just written
            model.register_forward_hook(lambda module, inputs, output: -output)
        return model

    with monkeypatch.context() as patched:
        patched.setattr(TorchEngine, "read", otherwise)
        _, complaint = call("erase", made.path, "--request", "r", "--ids", "s1", code=4)
    assert "it answers otherwise" in complaint
    assert states(made.path) == before
    assert load_file(made.path / "current" / "weights.safetensors").keys() == {"weight", "bias"}
