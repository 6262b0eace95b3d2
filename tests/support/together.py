"""One problem fitted in every way, alone or by several processes: what each way answers, and whether it is the same."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import ssse
from tests.support import problems

NEAR = 1e-9
DAMPING = 1e-2
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense": ("dense", {"blocks": "one"}),
    "dense in blocks": ("dense", {"blocks": 5}),
    "lowrank": ("lowrank", {}),
    "lowrank in blocks": ("lowrank", {"blocks": 7}),
    "directions": (ssse.LowRank(rank=12), {}),
    "diagonal": ("diagonal", {}),
    "matrix-free": (ssse.MatrixFree("none", tolerance=1e-14), {}),
    "matrix-free, preconditioned": (ssse.MatrixFree("dense", tolerance=1e-14), {}),
}
KINDS = ("margin", "expected", "empirical", "sampled")
SAVED = ("dense in blocks", "lowrank", "lowrank in blocks", "directions", "diagonal")
SOLVED = ("solution", "another damping")
FORGET = slice(3, 7)


def linear() -> problems.Sample:
    return problems.linear("cross_entropy", n=61)  # of no number of processes a multiple


def on(sample: problems.Sample, device: str) -> problems.Sample:
    return replace(sample, model=copy.deepcopy(sample.model).to(device))  # batches stay where they are


def fit(sample: problems.Sample, way: str, rows: Any, data: Any = None, **more: Any) -> ssse.Curvature:
    structure, options = WAYS[way]
    given = sample.data if data is None else data
    return ssse.Curvature.fit(
        sample.model, sample.loss, given, damping=DAMPING, rows=rows, structure=structure, progress=False,
        **options, **more,
    )  # fmt: skip


def answers(sample: problems.Sample, curvature: ssse.Curvature, solves: bool = True) -> dict[str, Tensor]:
    """All that a structure is asked for; without `SOLVED` where it has no data to solve by."""
    v = torch.randn(curvature.layout.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    v = v.to(curvature.device)
    data = sample.data if curvature.structure.reads_data else None
    erasure = ssse.erase(
        sample.model, curvature, sample.loss, sample.part(FORGET), data=data, override=ssse.BOUNDS, progress=False
    )
    assert curvature.gradient is not None
    found = {
        "step": erasure.step,
        "erased model": torch.cat([p.detach().flatten() for p in erasure.model.parameters()]),
        "gradient": curvature.gradient,
        "numbers": torch.tensor([curvature.n, curvature.repeats or 0, curvature.mean_loss or 0.0]),
        "leverage": torch.tensor([erasure.diagnostics.leverage_max or 0.0, erasure.diagnostics.leverage_sum or 0.0]),
    }
    if solves:
        found |= {"solution": curvature.solve(v), "another damping": curvature.with_damping(0.1).solve(v)}
    if data is None:
        found["after"] = erasure.curvature.solve(v)
    return {name: value.cpu() for name, value in found.items()}


def compare(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str, near: float = NEAR) -> None:
    for name, value in wanted.items():
        error = float((found[name] - value).norm() / value.norm().clamp_min(1e-300))
        assert error < near, f"{what}, {name}: {error:.1e}"
