"""The model at other scales of a step that was solved once: θ* + ε·direction."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ssse
from ssse.errors import InvalidSetting
from tests.support import dense, problems
from tests.support.refusals import INF, NAN, fit, refused, snapshot

OPTIONS: dict[str, Any] = {"override": ssse.BOUNDS, "progress": False}


def erased(sample: problems.Sample, curvature: ssse.Curvature, **options: Any) -> ssse.Erasure:
    return ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(3, 7)), **{**OPTIONS, **options})


@pytest.mark.parametrize("scale", [1.0, 0.3, -0.5])
@pytest.mark.parametrize("make", [problems.mlp, problems.conv], ids=["mlp", "conv"])
def test_equals_a_step_of_that_scale(make, scale):
    """Whatever scale it was solved at; buffers come along."""
    sample = make()
    curvature = fit(sample)
    wanted = erased(sample, curvature, scale=abs(scale))
    at = erased(sample, curvature, scale=2.0).at
    for model, theirs in ((at(abs(scale)), wanted.model), (wanted.at(abs(scale)), wanted.model)):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-12, atol=1e-14)
    step = dense.theta(at(scale)) - dense.theta(sample.model)
    torch.testing.assert_close(step, scale * wanted.direction, rtol=1e-9, atol=1e-13)


def test_nothing_at_zero_and_a_copy_each_time():
    sample = problems.conv()
    before = snapshot(sample.model)
    erasure = erased(sample, fit(sample))
    after = snapshot(erasure.model)
    first, second = erasure.at(0), erasure.at(0)
    assert snapshot(first) == before
    assert not {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert snapshot(second) == before == snapshot(sample.model)
    assert snapshot(erasure.model) == after
    erasure.at(1.0)(sample.x)
    assert snapshot(erasure.at(erasure.diagnostics.scale)) == after


def test_reach_is_the_length_at_scale_one():
    sample = problems.mlp()
    theta = dense.theta(sample.model)
    for scale in (1.0, 0.25):
        erasure = erased(sample, fit(sample), scale=scale)
        assert erasure.reach == pytest.approx(float(erasure.direction.norm() / theta.norm()))
        assert scale * erasure.reach == pytest.approx(erasure.diagnostics.relative_step)
        length = float((dense.theta(erasure.at(0.5 / erasure.reach)) - theta).norm() / theta.norm())
        assert length == pytest.approx(0.5)


@pytest.mark.parametrize("scale", [NAN, INF, -INF])
def test_what_is_no_scale(scale):
    sample = problems.mlp()
    erasure = erased(sample, fit(sample))
    with refused(InvalidSetting, "scale must be a number, not", sample.model, erasure.model):
        erasure.at(scale)


def test_a_joint_stream_counts_from_where_it_began():
    """The second request's step goes from θ*, not from the model that the first one left."""
    sample = problems.mlp()
    start = snapshot(sample.model)
    first = ssse.erase(sample.model, fit(sample), sample.loss, sample.part(slice(0, 3)), policy="joint", **OPTIONS)
    second = ssse.erase(
        first.model, first.curvature, sample.loss, sample.part(slice(3, 7)), policy="joint", scale=0.7, **OPTIONS
    )
    assert snapshot(second.at(0)) == start
    assert snapshot(second.at(0.7)) == snapshot(second.model)
    theta = dense.theta(sample.model)
    assert second.reach == pytest.approx(float(second.direction.norm() / theta.norm()))
    torch.testing.assert_close(dense.theta(second.at(2.0)) - theta, 2 * second.direction, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_kept(dtype):
    sample = problems.mlp(dtype=torch.float32)
    sample.model.to(dtype)
    x = sample.x.to(dtype)
    data = [(x, sample.y)]
    curvature = ssse.Curvature.fit(sample.model, sample.loss, data, damping=1e-2, progress=False)
    erasure = ssse.erase(sample.model, curvature, sample.loss, [(x[3:7], sample.y[3:7])], scale=1.0, **OPTIONS)
    assert snapshot(erasure.at(0)) == snapshot(sample.model)
    assert snapshot(erasure.at(1.0)) == snapshot(erasure.model)
    assert all(p.dtype == dtype for p in erasure.at(3.0).parameters())


def test_wrappers_and_parameters_that_stay():
    sample = problems.mlp()
    sample.model = nn.DataParallel(sample.model)
    name = next(name for name, _ in sample.model.named_parameters())
    frozen = copy.deepcopy(sample.model.get_parameter(name))
    sample.model.get_parameter(name).requires_grad_(False)
    erasure = erased(sample, fit(sample))
    model = erasure.at(2.0)
    assert isinstance(model, nn.DataParallel)
    assert torch.equal(model.get_parameter(name), frozen)
    assert not model.get_parameter(name).requires_grad
    assert len(erasure.direction) == sum(p.numel() for p in model.parameters() if p.requires_grad)
