"""Workspaces of models in half precision: curvature in float32, the served model in its dtype, the rounding told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ssse
from ssse.workspace import settings as toml
from ssse.workspace.workspace import Workspace
from tests.support import workspaces

HALF = [torch.bfloat16, torch.float16]


def make(home: Path, dtype: torch.dtype, **options: object) -> workspaces.Made:
    """Softmax regression, its weights rounded as a user would keep them."""
    x, y = workspaces.files(home)
    weights = {name: value.to(dtype) for name, value in load_file(home / "w.safetensors").items()}
    save_file(weights, home / "half.safetensors")
    settings = toml.from_options(
        {
            "model.factory": "torch.nn:Linear",
            "model.arguments": {"in_features": 4, "out_features": 3},
            "model.device": "cpu",
            "data.train": "../train.npz",
            "data.test": "../test.npz",
            "fit.weight_decay": workspaces.DECAY,
            **{name.replace("__", "."): value for name, value in options.items()},
        }
    )
    workspace = Workspace.init(home / "ws", settings, home / "half.safetensors").workspace
    return workspaces.Made(home, workspace, x, y)


def model_of(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    model = torch.nn.Linear(4, 3).to(dtype).eval()
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("structure", ["dense", "lowrank", "matrix_free"])
def test_a_request(tmp_path, dtype, structure):
    made = make(tmp_path, dtype, fit__structure=structure)
    workspace = made.workspace
    workspace.fit()
    stored = ssse.Curvature.load(made.path / "current" / "curvature")
    assert {t.dtype for t in stored.structure.state().values() if t.is_floating_point()} <= {torch.float32}
    assert stored.gradient is not None
    assert stored.gradient.dtype == torch.float32
    before = {name: value.clone() for name, value in made.weights().items()}  # its file will be shredded
    answer = workspace.erase("r1", ids=["s7", "s8", "s9"])
    assert answer.outcome == "erased"
    after = made.weights()
    assert {value.dtype for value in after.values()} == {dtype}
    assert any(not torch.equal(after[name], before[name]) for name in before)

    data = [(made.x.to(dtype), made.y)]  # as the workspace gives it to a model of this dtype
    forget = [(made.x[7:10].to(dtype), made.y[7:10])]
    model = model_of(before, dtype)
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", data, weight_decay=workspaces.DECAY, structure=structure, progress=False
    )
    reading: dict[str, Any] = {"data": data} if structure == "matrix_free" else {}
    wanted = ssse.erase(model, curvature, "cross_entropy", forget, **reading, progress=False)
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(after[name], value, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    rounding = answer.details["diagnostics"]["rounding"]
    assert rounding == pytest.approx(wanted.diagnostics.rounding, rel=0.05)
    assert 0 < rounding < 1
    checked = workspace.verify()
    assert checked.ok, checked.damages


@pytest.mark.parametrize("dtype", HALF)
def test_requests_one_after_another_and_a_model_that_is_not_half(tmp_path, dtype):
    made = make(tmp_path / "half", dtype)
    made.workspace.fit()
    for request, name in (("r1", "s3"), ("r2", "s4")):
        assert made.workspace.erase(request, ids=[name]).outcome == "erased"
    assert {value.dtype for value in made.weights().values()} == {dtype}
    assert made.workspace.verify().ok
    test = np.load(made.home / "test.npz")
    table = made.workspace.evaluate()
    assert table is not None
    assert len(test["y"]) == 30
    wide = workspaces.make(tmp_path / "wide")
    answer = wide.workspace.erase("r1", ids=["s3"])
    assert answer.details["diagnostics"]["rounding"] is None
