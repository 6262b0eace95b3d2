"""No clock and nothing measured is in the files of a state: the same work, done again, gives the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssse.curvature import Curvature, estimates, planning
from ssse.curvature.costs import Speeds
from tests.support import problems, workspaces

ROOT = Path(__file__).parents[2]
WORK = """
import sys
import torch
from ssse.workspace.workspace import Workspace
torch.set_num_threads(1)
for path in sys.argv[1:]:
    workspace = Workspace(path)
    workspace.fit()
    assert workspace.erase("r-0", ids=["s3", "s5"], options={"erase.old_weights": "keep"}).outcome == "erased"
"""
MAKERS = {
    "torch": (workspaces.make, {"fit__structure": "dense"}),
    "lowrank": (workspaces.make, {"fit__structure": "lowrank"}),
    "joint": (workspaces.make, {"erase__policy": "joint"}),
    "estimator": (workspaces.make_estimator, {}),
}


def test_two_processes_at_two_times(tmp_path):
    for name, (make, options) in MAKERS.items():
        made = make(tmp_path / "one" / name, fit=False, n=24, p=3, **options)
        workspaces.copy(made, tmp_path / "other" / name)
    for place, (seed, epoch) in {"one": ("1", "1000000000"), "other": ("2", "1750000000")}.items():
        paths = [tmp_path / place / name / "ws" for name in MAKERS]
        changed = {"PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": epoch, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", WORK, *paths], check=True, cwd=ROOT, env={**os.environ, **changed})
    for name in MAKERS:
        found = [workspaces.snapshot(tmp_path / place / name / "ws") for place in ("one", "other")]
        states = [{key: body for key, body in one.items() if not key.startswith(("ledger", "seal"))} for one in found]
        assert states[0] == states[1]
        assert len([key for key in states[0] if key.startswith("states/")]) >= 4


@pytest.mark.parametrize("auto", [False, True])
def test_how_fast_the_machine_is_leaves_no_trace(auto, tmp_path, monkeypatch):
    """Also where a plan was passed over because it would take too long."""
    sample = problems.mlp()
    found, said = [], []
    for number, speed in enumerate((1e2, 1e15)):
        everything = Speeds(speed, speed, speed, speed)
        monkeypatch.setattr(estimates, "speeds_of", lambda device, dtype, found=everything: found)
        if auto:
            monkeypatch.setattr(planning, "SOON", 1.0)
        how: dict[str, Any] = {} if auto else {"structure": "dense"}
        fitted = Curvature.fit(
            sample.model, sample.loss, sample.data, damping=1e-2, on_plan=lambda plan: said.append(str(plan)), **how
        )
        assert ("under a second" in said[-1]) == (speed == 1e15)  # the user is told
        assert ("would be more faithful" in fitted.reason) == auto
        fitted.save(tmp_path / str(number))
        found.append(workspaces.snapshot(tmp_path / str(number)))
        assert not {"written", "created"} & {*json.loads(found[-1]["manifest.json"])}
    assert found[0] == found[1]
