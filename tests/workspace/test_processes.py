"""`torchrun -m ssse fit`: several processes, one workspace, one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ssse
from ssse.cli.console import IMPOSSIBLE
from tests.support import workspaces

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ssse"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.long
def test_a_workspace_is_fitted_by_several_processes(tmp_path: Path):
    made = workspaces.make(tmp_path / "several", fit=False)
    alone = workspaces.make(tmp_path / "alone").workspace
    done = run("fit", str(made.path), "--set", "fit.structure=lowrank")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Fitted 40 samples, 15 parameters") == 1
    folder = made.path / "current" / "curvature"
    assert len(list(folder.glob("part-*.safetensors"))) == 2
    found, wanted = (
        ssse.Curvature.load(path) for path in (folder, tmp_path / "alone" / "ws" / "current" / "curvature")
    )
    ones = torch.ones(15, dtype=torch.float64)
    torch.testing.assert_close(found.solve(ones), wanted.solve(ones), rtol=1e-9, atol=0)
    assert [entry.kind for entry in made.workspace.log().entries] == ["created", "fitted"]
    assert made.workspace.verify().ok
    for workspace in (made.workspace, alone):  # one process goes on from what several have fitted
        workspace.erase("1", forget=made.forget_file([0, 1]))
    old, new = (load_file(path / "current" / "weights.safetensors") for path in (made.path, alone.folder.path))
    torch.testing.assert_close(old["weight"], new["weight"], rtol=1e-9, atol=1e-12)

    again = run("fit", str(made.path))  # nothing to do: once said, and the others end
    assert (again.returncode, again.stdout.count("Fitted already")) == (0, 1), again.stderr
    log = run("log", str(made.path))  # one process does what is for one
    assert log.stdout.count("created") == 1, log.stderr
    bad = run("fit", str(made.path), "--again", "--damping", "-1")
    assert bad.returncode != 0
    assert bad.stderr.count("Error: ") == 1 + bad.stderr.count("ChildFailedError: ")
    assert f"exitcode  : {IMPOSSIBLE}" in bad.stderr
