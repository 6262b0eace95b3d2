"""Types as a user's checker sees them: complete for every public name, right in a script under mypy's strict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import torch
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from torch import Tensor, nn

import ssse
from ssse.sklearn import Eraser

model: nn.Module = nn.Linear(4, 3).eval()
data: list[tuple[Tensor, Tensor]] = [(torch.randn(20, 4), torch.randint(3, (20,)))]

plan = ssse.plan(model, "cross_entropy", data, structure=ssse.LowRank(rank=3))
needed: int = plan.fit_bytes + plan.stored_bytes
curvature: ssse.Curvature = ssse.Curvature.fit(model, "cross_entropy", data, weight_decay=1e-2, structure="dense")
curvature.save("folder")
erasure: ssse.Erasure = ssse.erase(model, ssse.Curvature.load("folder"), forget=data, policy="joint")
new: nn.Module = erasure.model
step: Tensor = erasure.step
verdict: str = erasure.diagnostics.verdict
refinement: ssse.Refinement = ssse.refine(new, erasure.curvature, "cross_entropy", data, steps=3)
lower: bool = refinement.converged and refinement.objective_after < refinement.objective_before
again: ssse.Erasure = ssse.erase(new, erasure.curvature, "cross_entropy", data)

evaluation: ssse.Evaluation = ssse.evaluate({"original": model, "erased": new}, {"forgotten": data, "retained": data})
accuracy: float | None = evaluation["erased", "accuracy_forgotten"]
scan: ssse.Scan = ssse.scan(model, erasure.direction, "cross_entropy", {"forgotten": data})
gradient_ascent = ssse.baselines.gradient_ascent(model, None, "cross_entropy", data, scale=0.1)

eraser: Eraser = Eraser(LogisticRegression()).fit([[0.0], [1.0]], [0, 1])
bound: float = eraser.distance_bound_

workspace = ssse.Workspace("folder")
"""
WRONG = """
import ssse

count: int = ssse.Curvature.load("folder").solve
ssse.LowRank(rank="three")
ssse.Workspace("folder").erase(request=3)
"""


def test_a_users_script_is_right_under_mypys_strict_and_a_wrong_one_is_not(tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(SCRIPT)
    wrong.write_text(WRONG)
    config = tmp_path / "mypy.ini"  # what these packages say of their own types takes half a minute to read
    config.write_text("[mypy]\n[mypy-torch.*,sklearn.*,numpy.*,scipy.*,pandas.*,matplotlib.*]\nfollow_imports = skip\n")
    options = ["--strict", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(right), str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in found if "right.py" in line] == []
    assert {line.split(":")[1] for line in found} == {"4", "5", "6"}, done.stdout


def test_every_public_name_has_a_type():
    """As pyright sees the installed package; what other packages leave unknown is theirs."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "ssse", "--ignoreexternal", "--outputjson"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # pyright asks the first Python it finds
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": path})
    body = json.loads(done.stdout)
    report = body["typeCompleteness"]
    missing = [symbol["name"] for symbol in report["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert missing == []
    assert report["completenessScore"] == pytest.approx(1.0)
