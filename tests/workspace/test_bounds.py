"""What once came back as "erased" at exit 0 with a ruined or an unchanged model, for every kind of model: refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression, Ridge

from ssse.workspace.workspace import Workspace
from tests.support import digits, workspaces
from tests.support.commands import call, call_json
from tests.support.workspaces import snapshot

FEW = "0,1,2,3"
MOST = ",".join(str(place) for place in range(4, digits.TRAINED))
# Half of the classes.
HALF = ",".join(str(place) for label in (1, 4, 5, 8, 9) for place in digits.places_of(label))
TORCH = {
    "softmax": ("torch.nn:Linear", digits.model),
    "network": ("tests.support.digits:network", digits.trained_network),
}
SKLEARN = {"logistic": LogisticRegression(tol=1e-8, max_iter=10_000), "ridge": Ridge()}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("digits")
    for name, (x, y) in (("train", digits.training_data()), ("test", digits.held_out())):
        np.savez(home / f"{name}.npz", x=x.numpy(), y=y.numpy())
        np.savez(home / f"{name}-numbers.npz", x=x.numpy(), y=y.numpy().astype(float))
    x, y = (part.numpy() for part in digits.training_data())
    for name, model in SKLEARN.items():
        skops.io.dump(model.fit(x, y), home / f"{name}.skops")
    for name, (_, model) in TORCH.items():
        save_file(model().state_dict(), home / f"{name}.safetensors")
    return home


@pytest.fixture
def made(home, tmp_path):
    """A workspace of one kind of model, fitted."""

    def make(kind: str, probe: bool, decay: float = digits.DECAY) -> Path:
        end = "-numbers" if kind == "ridge" else ""
        settings: dict[str, Any] = {"data.train": str(home / f"train{end}.npz"), "data.ids": "place"}
        settings |= {"data.test": str(home / f"test{end}.npz")} if probe else {}
        weights = home / f"{kind}.skops"
        if kind in TORCH:
            settings |= {"model.factory": TORCH[kind][0], "model.device": "cpu", "fit.weight_decay": decay}
            settings |= {"model.arguments": {"in_features": 64, "out_features": 10}} if kind == "softmax" else {}
            weights = home / f"{kind}.safetensors"
        workspace = Workspace.init(tmp_path / "ws", settings, weights).workspace
        workspace.fit()
        return tmp_path / "ws"

    return make


def refused(path: Path, ids: str, bound: str, *options: str) -> None:
    before = {name: body for name, body in snapshot(path).items() if name.startswith("states/")}
    said = call_json("erase", path, "--request", "r", "--ids", ids, *options, code=3)
    assert said["outcome"] == "refused"
    assert bound in said["entries"][-1]["details"]["diagnostics"]["broken"]
    assert {name: body for name, body in snapshot(path).items() if name.startswith("states/")} == before


PROBE = pytest.mark.parametrize("probe", [False, True], ids=["blind", "probe"])


@PROBE
@pytest.mark.parametrize("kind", TORCH)
def test_a_million_times_too_long(made, kind, probe):
    refused(made(kind, probe), FEW, "step", "--scale", "1e6")


@PROBE
@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize(("decay", "bound"), [(1e-9, "step"), (1000.0, "stationarity")])
def test_a_weight_decay_that_nobody_trained_with(made, kind, decay, bound, probe):
    refused(made(kind, probe, decay), FEW, bound)


@PROBE
@pytest.mark.parametrize("kind", [*TORCH, *SKLEARN])
@pytest.mark.parametrize("ids", [MOST, HALF], ids=["99%", "five classes"])
def test_more_than_one_step_is_for(made, kind, ids, probe):
    refused(made(kind, probe), ids, "share")


@pytest.mark.parametrize("kind", [*TORCH, *SKLEARN])
def test_honest_requests_are_not(made, kind):
    path = made(kind, probe=True)
    said = call_json("erase", path, "--request", "r", "--ids", FEW)
    assert (said["details"]["overridden"], said["details"]["diagnostics"]["broken"]) == ([], [])


@pytest.mark.parametrize("kind", ["network", "logistic"])
def test_fit_warns_of_a_model_that_is_not_where_it_was_said_to_be(tmp_path, kind):
    """On stderr, also where nothing else is said; and in the entry."""
    if kind == "network":
        for name, part in zip(("x", "y"), digits.training_data(), strict=True):
            (tmp_path / "data").mkdir(exist_ok=True)
            np.save(tmp_path / "data" / f"{name}.npy", part.numpy())
        save_file(digits.trained_network().state_dict(), tmp_path / "w.safetensors")
        settings = {"model.factory": TORCH["network"][0], "model.device": "cpu", "fit.weight_decay": 1000.0}
        weights = tmp_path / "w.safetensors"
        Workspace.init(tmp_path / "ws", {**settings, "data.train": "../data"}, weights)
        words = "weight decay"
    else:
        x, y = (part.numpy() for part in workspaces.data())
        np.savez(tmp_path / "train.npz", x=x, y=y)
        model = LogisticRegression(tol=1e-8).fit(x, y)
        model.coef_[0] += 2
        skops.io.dump(model, tmp_path / "model.skops")
        Workspace.init(tmp_path / "ws", {"data.train": "../train.npz"}, tmp_path / "model.skops")
        words = "not at the minimum of its objective"
    _, aside = call("fit", tmp_path / "ws", "--quiet", code=0)
    assert aside.startswith("Warning: ")
    assert words in aside
    text, aside = call("fit", tmp_path / "ws", "--again", "--json", code=0)
    assert words in aside
    assert '"doubts": [\n' in text
