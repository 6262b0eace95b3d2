"""Every solve says how well it solved, and what is not solved is not handed out."""

from __future__ import annotations

import pytest
import torch

import ssse
from ssse.erasure import solving
from tests.support import problems
from tests.support.refusals import refused

DECAY = 1e-2
STRUCTURES = [
    "dense",
    "lowrank",
    ssse.LowRank(kernel="float64"),
    ssse.LowRank(rank=20),
    "diagonal",
    ssse.MatrixFree(tolerance=1e-6),
    "recurrence",
]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids=str)


def erase(sample: problems.Sample, structure, **options) -> ssse.Erasure:
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, weight_decay=DECAY, rows="empirical", structure=structure
    )
    return ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 4)), override=ssse.BOUNDS, **options)


@every_structure
@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_structure_tells_its_residual(structure, leave_out, dtype):
    found = erase(problems.mlp(dtype=dtype), structure, leave_out=leave_out).diagnostics
    if structure == "recurrence":  # which holds nothing to multiply with
        assert found.solve_residual is None
        assert "residual of the solve" not in str(found)
        return
    assert found.solve_residual is not None
    assert found.solve_residual < 2e-6
    assert f"residual of the solve: {found.solve_residual:.1e}" in str(found)
    assert found.to_dict()["solve_residual"] == found.solve_residual


@pytest.mark.parametrize("structure", STRUCTURES[:-1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_system_that_is_not_solved_has_no_step(structure, dtype, monkeypatch):
    """Were it so for a residual of nothing but rounding: whatever bound somebody overrides."""
    monkeypatch.setattr(solving, "ACCEPTED_RESIDUAL", -1.0)
    sample, repair = problems.mlp(dtype=dtype), "Use a larger damping"
    if isinstance(structure, ssse.MatrixFree):
        structure, repair = ssse.MatrixFree(tolerance=1e-30, max_iterations=3), "Allow more than 3 steps"
    elif dtype == torch.float32 and structure == "lowrank":
        repair = r'Fit with structure=ssse.LowRank\(kernel="float64"\), or use a larger damping'
    elif dtype == torch.float32 and structure != ssse.LowRank(kernel="float64"):
        repair = "Fit with dtype=torch.float64, or use a larger damping"
    with refused(ssse.Refused, rf"not solved: ‖b − Mu‖ is .* of ‖b‖, more than .*\. {repair}", sample.model):
        erase(sample, structure)
