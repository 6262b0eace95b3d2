"""Guards: rows of samples whose margins the step is to leave alone, against plain float64 matrices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import ssse
from ssse.curvature import dual
from ssse.errors import InvalidData, InvalidSetting
from tests.support import dense, problems
from tests.support.refusals import refused

DECAY, K, N, HELD = 0.02, 5, 40, 8


def sample_and_guard(dtype: torch.dtype = torch.float64) -> tuple[problems.Sample, list[tuple[Tensor, Tensor]]]:
    whole = problems.mlp(n=N + HELD, dtype=dtype)
    sample = problems.Sample("guarded", whole.model, whole.loss, whole.x[:N], whole.y[:N])
    return sample, [(whole.x[N : N + 3], whole.y[N : N + 3]), (whole.x[N + 3 :], whole.y[N + 3 :])]


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    options = {"weight_decay": DECAY, "rows": "margin", "structure": "lowrank", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, **options)


def erase(sample: problems.Sample, curvature: ssse.Curvature, **options) -> ssse.Erasure:
    forget = sample.part(slice(0, K))
    return ssse.erase(sample.model, curvature, sample.loss, forget, override=ssse.BOUNDS, **options)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("weight", [1.0, 30.0])
def test_the_step_is_that_of_the_dense_matrix_with_their_rows(weight, many, monkeypatch):
    if many:
        monkeypatch.setattr(dual, "FEW", 0)
    sample, guard = sample_and_guard()
    curvature = fit(sample)
    before = {name: value.clone() for name, value in curvature.structure.state().items()}
    found = erase(sample, curvature, guard=guard, guard_weight=weight)
    rows = dense.margin_rows(sample.model, sample.loss, sample.x[K:], sample.y[K:])
    held = torch.cat([dense.margin_rows(sample.model, sample.loss, x, y) for x, y in guard])
    matrix = rows.T @ rows + weight * held.T @ held + (N - K) * DECAY * torch.eye(rows.shape[1], dtype=torch.float64)
    x, y = sample.x[:K], sample.y[:K]
    right = dense.gradient(sample.model, dense.LOSSES[sample.loss], x, y) + K * DECAY * dense.theta(sample.model)
    torch.testing.assert_close(found.direction, torch.linalg.solve(matrix, right), rtol=1e-9, atol=1e-11)
    assert found.diagnostics.guards == HELD
    assert found.diagnostics.solve_residual is not None
    assert found.diagnostics.solve_residual < 1e-10
    assert f"guarded by: {HELD} samples" in str(found.diagnostics)
    assert all(torch.equal(before[name], value) for name, value in curvature.structure.state().items())
    assert found.curvature.n == N - K
    assert found.curvature.structure.rows.count == N - K  # type: ignore[attr-defined]


@pytest.mark.parametrize("rounds", [0, 30])
def test_their_margins_move_less_the_more_they_count(rounds):
    sample, guard = sample_and_guard()
    curvature = fit(sample)
    rows = torch.cat([dense.margin_rows(sample.model, sample.loss, x, y) for x, y in guard])
    moved = [
        float((rows @ erase(sample, curvature, reweight=rounds, guard=guard, guard_weight=weight).direction).norm())
        for weight in (1e-6, 1.0, 1e2, 1e4)
    ]
    free = float((rows @ erase(sample, curvature, reweight=rounds).direction).norm())
    assert moved[0] == pytest.approx(free, rel=1e-3)
    assert moved[0] > moved[1] > moved[2] > moved[3]
    assert moved[3] < 0.01 * free


def test_re_weighted_their_curvature_stays_as_it_is():
    """The gradient of the linearised objective with their quadratic terms is zero where it ends."""
    sample, guard = sample_and_guard()
    u = erase(sample, fit(sample), guard=guard, guard_weight=3.0, reweight=40).direction
    model, loss = sample.model, sample.loss
    p = model(sample.x).softmax(1).gather(1, sample.y[:, None])[:, 0].detach()
    phi, slopes = p.log() - (1 - p).log(), dense.margin_rows(model, loss, sample.x, sample.y)
    slopes = (slopes / (p * (1 - p)).sqrt()[:, None])[K:]
    held = torch.cat([dense.margin_rows(model, loss, x, y) for x, y in guard])
    x, y = sample.x[:K], sample.y[:K]
    right = dense.gradient(model, dense.LOSSES[loss], x, y) + K * DECAY * dense.theta(model)
    change = (-phi[K:]).sigmoid() - (-(phi[K:] + slopes @ u)).sigmoid()
    gradient = slopes.T @ change + 3.0 * held.T @ (held @ u) + (N - K) * DECAY * u - right
    assert float(gradient.norm()) < 1e-9 * float(right.norm())


def test_float32_rows():
    sample, guard = sample_and_guard(torch.float32)
    exact = problems.Sample("exact", copy.deepcopy(sample.model).double(), sample.loss, sample.x.double(), sample.y)
    wanted = erase(exact, fit(exact), guard=[(x.double(), y) for x, y in guard]).direction
    found = erase(sample, fit(sample), guard=guard)
    assert float((found.direction.double() - wanted).norm() / wanted.norm()) < 1e-4


@pytest.mark.parametrize(
    ("options", "asked", "error", "match"),
    [
        ({"structure": "dense"}, {}, InvalidSetting, 'rows="margin", structure="lowrank"'),
        ({"rows": "expected"}, {}, InvalidSetting, 'rows="margin", structure="lowrank"'),
        ({"blocks": 7}, {}, InvalidSetting, 'blocks="one"'),
        ({}, {"guard_weight": 0.0}, InvalidSetting, "guard_weight must be a positive number"),
        ({}, {"guard_weight": float("nan")}, InvalidSetting, "guard_weight must be a positive number"),
        ({}, {"leave_out": False}, InvalidSetting, "leave_out=True"),
        ({}, {"guard": []}, InvalidData, "The guard is empty"),
        ({}, {"guard": "S"}, InvalidData, "among those to forget"),
    ],
)
def test_what_cannot_be_is_told(options, asked, error, match):
    sample, guard = sample_and_guard()
    curvature = fit(sample, **options)
    if asked.get("guard") == "S":
        asked = {"guard": sample.part(slice(K - 1, K + 3))}
    with refused(error, match, sample.model):
        erase(sample, curvature, **{"guard": guard, **asked})
