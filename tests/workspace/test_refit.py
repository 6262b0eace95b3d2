"""A curvature that requests have moved away from is fitted anew, once, and the request goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ssse.errors import InvalidSetting, NotPositiveDefinite
from ssse.verdict import BOUNDS
from ssse.workspace.commands import refit, stream
from ssse.workspace.engines.torch import TorchEngine
from ssse.workspace.workspace import Workspace
from tests.support.commands import call
from tests.support.sizes import sized
from tests.support.workspaces import make, snapshot

DECAY, N, REQUESTS = 1e-5, 120, sized(12, 100)
LAYERS = """\
from torch import nn


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
"""


def trained(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=400, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y) + DECAY / 2 * sum((p * p).sum() for p in model.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


def network(home: Path, **options: Any) -> Workspace:
    """A small network on three clouds, in a workspace, fitted."""
    home.mkdir()
    generator = torch.Generator().manual_seed(0)
    n = N + 2 * REQUESTS
    y = torch.randint(0, 3, (n,), generator=generator)
    centres = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    x = centres[y] + 0.7 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    np.savez(home / "train.npz", x=x.numpy(), y=y.numpy(), id=np.array([f"s{i}" for i in range(n)]))
    save_file(trained(x, y).state_dict(), home / "w.safetensors")
    (home / "layers.py").write_text(LAYERS)
    settings = {
        "model.factory": "layers:net",
        "model.search": "..",
        "model.device": "cpu",
        "data.train": "../train.npz",
        "fit.weight_decay": DECAY,
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    workspace = Workspace.init(home / "ws", settings, home / "w.safetensors").workspace
    workspace.fit()
    return workspace


def fits(workspace: Workspace) -> list[dict[str, Any]]:
    return [entry.details for entry in workspace.log().entries if entry.kind == "fitted"]


def requests() -> list[list[str]]:
    chooser = np.random.default_rng(0)
    order, at, found = chooser.permutation(N + 2 * REQUESTS), 0, []
    for _ in range(REQUESTS):
        k = int(chooser.integers(1, 4))
        found.append([f"s{place}" for place in order[at : at + k]])
        at += k
    return found


def test_a_stream_on_a_network_needs_nobody(tmp_path):
    workspace = network(tmp_path / "home")
    outcomes = [workspace.erase(f"r{i}", ids=ids).outcome for i, ids in enumerate(requests())]
    assert outcomes == ["erased"] * REQUESTS
    own = fits(workspace)[1:]
    assert {fit["because"] for fit in own} <= {"refused", "leverage"}
    assert all(fit["after_requests"] >= 1 for fit in own)  # never twice for one request
    assert workspace.verify().ok


def test_what_an_old_curvature_refuses_a_new_one_may_answer(tmp_path, monkeypatch):
    """Once; and never where the settings say so."""
    made = make(tmp_path / "home")
    made.workspace.erase("a", ids=["s3"])
    step = TorchEngine.erase

    def refuses_when_moved(engine: Any, checked: Any, curvature: Any, asked: Any) -> Any:
        if curvature.erased:
            raise NotPositiveDefinite("the rows have moved")
        return step(engine, checked, curvature, asked)

    monkeypatch.setattr(TorchEngine, "erase", refuses_when_moved)
    never = made.workspace.erase("b", ids=["s4"], options={"erase.refit": "never"})
    assert (never.outcome, len(fits(made.workspace))) == ("refused", 1)
    assert made.workspace.erase("b", ids=["s4"]).outcome == "erased"
    assert [fit.get("because") for fit in fits(made.workspace)] == [None, "refused"]


def test_of_a_network_an_old_leverage_is_not_trusted(tmp_path, monkeypatch):
    workspace = network(tmp_path / "home")
    monkeypatch.setattr(refit, "TRUSTED_STALE_LEVERAGE", 0.0)
    for number, ids in enumerate(requests()[:3]):
        assert workspace.erase(f"r{number}", ids=ids).outcome == "erased"
    assert len(fits(workspace)) == 3
    assert {fit["because"] for fit in fits(workspace)[1:]} <= {"refused", "leverage"}


def test_every_so_many_requests(tmp_path):
    made = make(tmp_path / "home", erase__refit=2)
    for i in range(5):
        assert made.workspace.erase(f"r{i}", ids=[f"s{i}"]).outcome == "erased"
    kinds = [entry.kind for entry in made.workspace.log().entries if entry.kind in ("fitted", "erased")]
    assert kinds == ["fitted", "erased", "erased", "fitted", "erased", "erased", "fitted", "erased"]
    assert [fit["because"] for fit in fits(made.workspace)[1:]] == ["schedule", "schedule"]
    received = [entry.kind for entry in made.workspace.log().entries]
    assert received[received.index("fitted", 3) - 1] == "received"


def test_a_dropped_curvature_is_fitted_by_the_next_request_and_keeps_its_scale(tmp_path):
    rows = {"fit__rows": "empirical", "fit__rows_per_batch": 4, "erase__leave_out": False}
    made = make(tmp_path / "home", **rows, erase__probe="none")
    made.workspace.calibrate(ids=[f"s{i}" for i in range(8)], options={"calibrate.method": "line_search"})
    scale = made.workspace.log().entries[-1].details["scale"]
    first = made.workspace.erase("a", ids=["s3"], override=BOUNDS)
    assert first.details["curvature_dropped"]
    tried = made.workspace.erase("b", ids=["s5"], dry_run=True, override=BOUNDS)
    assert tried.outcome == "tried"
    assert len(fits(made.workspace)) == 1
    second = made.workspace.erase("b", ids=["s5"], override=BOUNDS)
    assert second.outcome == "erased"
    assert (fits(made.workspace)[1]["because"], fits(made.workspace)[1]["kept"]) == ("dropped", scale)
    assert first.details["scale"] == second.details["scale"] == scale


def test_a_fit_repeats_the_options_of_the_last_one(tmp_path):
    made = make(tmp_path / "home", fit=False, erase__refit=1)
    made.workspace.fit({"fit.structure": "lowrank", "fit.damping": 0.02})
    for name in ("a", "b"):
        made.workspace.erase(name, ids=["s3" if name == "a" else "s4"])
    assert [(fit["structure"], fit["damping"]) for fit in fits(made.workspace)] == [("lowrank", 0.02)] * 2


def test_a_dry_run_fits_and_writes_nothing(tmp_path):
    made = make(tmp_path / "home", erase__refit=1)
    made.workspace.erase("a", ids=["s3"])
    before = snapshot(made.path)
    said: list[str] = []
    tried = Workspace(made.path, say=said.append).erase("b", ids=["s4"], dry_run=True)
    assert tried.outcome == "tried"
    assert snapshot(made.path) == before
    assert "the last fit took" in said[0]
    assert made.workspace.erase("b", ids=["s4"]).details["diagnostics"]["step_norm"] == pytest.approx(
        tried.details["diagnostics"]["step_norm"]
    )


def test_data_that_is_gone_leaves_the_old_curvature_to_answer(tmp_path):
    made = make(tmp_path / "home", erase__refit=1)
    made.workspace.erase("a", ids=["s3"])
    forget = made.forget_file([4])
    keep = np.arange(30)
    np.savez(made.home / "train.npz", x=made.x[keep].numpy(), y=made.y[keep].numpy(), id=[f"s{i}" for i in keep])
    said: list[str] = []
    assert Workspace(made.path, say=said.append).erase("b", forget=forget).outcome == "erased"
    assert any("cannot be fitted" in text for text in said)
    assert len(fits(made.workspace)) == 1


def test_killed_between_the_fit_and_the_erasure_the_same_command_goes_on(tmp_path, monkeypatch):
    made = make(tmp_path / "home", erase__refit=1)
    made.workspace.erase("a", ids=["s3"])
    copy = Workspace(tmp_path / "home" / "copy")
    os.system(f"cp -a {made.path} {copy.folder.path}")
    copy.erase("b", ids=["s4"])

    class Killed(BaseException):
        pass

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    enter = stream.enter

    def enters_and_dies(*given: Any) -> None:
        enter(*given)
        dies()

    with monkeypatch.context() as patch:
        patch.setattr(stream, "enter", enters_and_dies)
        with pytest.raises(Killed):
            made.workspace.erase("b", ids=["s4"])
    assert made.workspace.log().pending == ["b"]
    assert made.workspace.erase("b", ids=["s4"]).outcome == "erased"
    kinds = [[entry.kind for entry in one.log().entries] for one in (made.workspace, copy)]
    assert kinds[0] == kinds[1]
    weights = [load_file(one.folder.current / "weights.safetensors") for one in (made.workspace, copy)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_fitting_when_needed(tmp_path):
    made = make(tmp_path / "home")
    where = made.path
    assert "nothing since then" in call("fit", where, "--again", "--when-needed")[0]
    made.workspace.erase("a", ids=["s3"])
    verdict = made.workspace.log().entries[-2].details["verdict"]
    now = made.workspace.fit(again=True, when_needed=True).now
    assert now == (verdict != "ok")
    made.workspace.erase("b", ids=["s4"], options={"erase.scale": 0.5})  # no Newton step: not vouched for
    assert made.workspace.fit(again=True, when_needed=True).now
    assert not made.workspace.fit(again=True, when_needed=True).now
    assert fits(made.workspace)[-1]["because"] == "worthwhile"
    with pytest.raises(InvalidSetting, match="give both"):
        made.workspace.fit(when_needed=True)
    joint = make(tmp_path / "joint", erase__policy="joint")
    joint.workspace.erase("a", ids=["s3"], options={"erase.scale": 0.5})
    assert not joint.workspace.fit(again=True, when_needed=True).now
