"""The same numbers on a CUDA device; skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

import ssse
from ssse.errors import ModelMismatch
from tests import problems

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WAYS = [
    {"structure": "dense", "blocks": "one"},
    {"structure": "dense", "blocks": 7},
    {"structure": "lowrank"},
    {"structure": "lowrank", "rank": 10},
    {"structure": "matrix_free", "tolerance": 1e-12},
    {"structure": "diagonal"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda w: "-".join(map(str, w.values())))
@pytest.mark.parametrize("kind", ["empirical", "expected", "sampled"])
@pytest.mark.parametrize("make", [lambda: problems.linear("cross_entropy"), problems.mlp, problems.conv])
def test_cuda_erases_as_the_cpu_does(way, kind, make, tmp_path):
    sample = make()
    options = {"damping": 1e-2, "weight_decay": 1e-2, "rows": kind, **way}
    forget = sample.part(slice(0, 4))
    here = ssse.Curvature.fit(sample.model, sample.loss, sample.data, **options)
    wanted = ssse.erase(sample.model, here, sample.loss, forget)
    model = copy.deepcopy(sample.model).cuda()
    there = ssse.Curvature.fit(model, sample.loss, sample.data, **options)  # batches stay on the CPU
    erasure = ssse.erase(model, there, sample.loss, forget)
    assert erasure.step.device.type == "cuda"
    torch.testing.assert_close(erasure.step.cpu(), wanted.step, rtol=1e-6, atol=1e-9)
    if way["structure"] != "matrix_free":
        there.save(tmp_path / "curvature")
        moved = ssse.erase(sample.model, ssse.Curvature.load(tmp_path / "curvature"), sample.loss, forget)
        torch.testing.assert_close(moved.step, wanted.step, rtol=1e-6, atol=1e-9)
        back = ssse.Curvature.load(tmp_path / "curvature", device="cuda")
        again = ssse.erase(model, back, sample.loss, forget)
        torch.testing.assert_close(again.step.cpu(), wanted.step, rtol=1e-6, atol=1e-9)
        with pytest.raises(ModelMismatch, match="move one of them"):
            ssse.erase(model, back.to("cpu"), sample.loss, forget)
    if way["structure"] != "matrix_free":
        first = ssse.erase(model, there, sample.loss, sample.part(slice(0, 2)), policy="joint")
        second = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(2, 4)), policy="joint")
        torch.testing.assert_close((first.step + second.step).cpu(), wanted.step, rtol=1e-5, atol=1e-8)
