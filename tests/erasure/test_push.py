"""Steps that push the margins of S, against the dense float64 truth; what they refuse, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ssse
from ssse.errors import InvalidSetting
from ssse.rows.kinds import margin_slope
from tests.support import dense, problems
from tests.support.refusals import refused

DAMPING, DECAY, K = 1e-2, 2e-2, 6
GONE, KEPT = slice(0, K), slice(K, None)


def margin(z: Tensor, label: Tensor, loss: str) -> Tensor:
    """φ of one sample by hand, with p = σ(φ); of attributes the sum of theirs."""
    if loss == "binary_cross_entropy":
        return ((2 * label - 1) * z).sum()
    others = torch.cat([z[:label], z[label + 1 :]])
    return z[label] - others.logsumexp(0)


def push(sample: problems.Sample, part: slice, power: float) -> Tensor:
    """−Σ(1−p)^power ∇φ, sample by sample."""
    total = torch.zeros_like(dense.theta(sample.model))
    for x, y in zip(sample.x[part], sample.y[part], strict=True):
        value = margin(sample.model(x[None])[0], y, sample.loss)
        slope = dense.flat(torch.autograd.grad(value, dense.trainable(sample.model)))
        total -= (1 - value.detach().sigmoid()) ** power * slope
    return total


def fit(sample: problems.Sample, **options: Any) -> ssse.Curvature:
    settings = {"damping": DAMPING, "weight_decay": DECAY, "rows": "margin", "structure": "lowrank", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, **settings)


def erase(sample: problems.Sample, curvature: ssse.Curvature, **options: Any) -> ssse.Erasure:
    settings = {"scale": 0.1, "push": 0.0, "override": ssse.BOUNDS, **options}
    return ssse.erase(sample.model, curvature, sample.loss, sample.part(GONE), **settings)


@pytest.mark.parametrize("structure", ["lowrank", "dense"])
@pytest.mark.parametrize("rows", ["margin", "empirical"])
@pytest.mark.parametrize(("make", "power"), [(problems.mlp, 0.0), (problems.conv, 0), (problems.mlp, 0.5)])
def test_the_step_is_that_of_the_dense_truth(make, power, rows, structure):
    """Of what stays: M₋S⁻¹ (−Σ(1−p)^power ∇φ + kwθ), whatever the rows are."""
    sample = make()
    curvature = fit(sample, rows=rows, structure=structure, blocks="one")
    found = erase(sample, curvature, push=power)
    matrix = sum_of_rows(sample, rows)
    n = len(sample.x)
    matrix += (n - K) * DAMPING * torch.eye(len(matrix), dtype=matrix.dtype)
    theta = dense.theta(sample.model)
    wanted = torch.linalg.solve(matrix, push(sample, GONE, power) + K * DECAY * theta)
    torch.testing.assert_close(found.direction, wanted, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(dense.theta(found.model), theta + 0.1 * wanted, rtol=1e-7, atol=1e-9)
    plain = erase(sample, curvature, push=None)
    assert float((plain.direction - wanted).norm() / wanted.norm()) > 0.1  # another step than the one of g_S
    torch.testing.assert_close(erase(sample, curvature, push=1).direction, plain.direction, rtol=1e-7, atol=1e-9)


def sum_of_rows(sample: problems.Sample, rows: str) -> Tensor:
    """RᵀR of what stays."""
    if rows == "empirical":
        stacked = dense.empirical_rows(sample.model, sample.loss, sample.x[KEPT], sample.y[KEPT])
        return stacked.mT @ stacked
    total: Any = 0
    for x, y in zip(sample.x[KEPT], sample.y[KEPT], strict=True):
        value = margin(sample.model(x[None])[0], y, sample.loss)
        slope = dense.flat(torch.autograd.grad(value, dense.trainable(sample.model)))
        p = value.detach().sigmoid()
        total = total + p * (1 - p) * torch.outer(slope, slope)
    return total


def test_attributes_and_weights_of_samples():
    sample = problems.mlp()
    weights = torch.rand(len(sample.x), generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.5
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, [(sample.x, sample.y, weights)], damping=DAMPING, weight_decay=DECAY, rows="margin",
        structure="lowrank", progress=False,
    )  # fmt: skip
    forget = [(sample.x[GONE], sample.y[GONE], weights[GONE])]
    found = ssse.erase(sample.model, curvature, sample.loss, forget, scale=0.1, push=0.0, override=ssse.BOUNDS)
    once = erase(sample, fit(sample))
    assert float((found.direction - once.direction).norm() / once.direction.norm()) > 1e-2
    wanted: Any = 0
    for weight, x, y in zip(weights[GONE], sample.x[GONE], sample.y[GONE], strict=True):
        value = margin(sample.model(x[None])[0], y, sample.loss)
        wanted = wanted + weight * dense.flat(torch.autograd.grad(value, dense.trainable(sample.model)))
    from ssse.problem.problem import Problem

    batch = forget[0][0], ssse_labels(forget[0])
    problem = Problem(sample.model, sample.loss, "all", batch)
    torch.testing.assert_close(margin_slope(problem, batch), wanted, rtol=1e-9, atol=1e-11)


def ssse_labels(batch: tuple[Tensor, Tensor, Tensor]):
    from ssse.problem.labels import WeightedLabels

    return WeightedLabels(batch[1], batch[2])


def test_it_is_never_ok_and_says_that_it_does_not_know_how_far():
    sample = problems.mlp()
    found = erase(sample, fit(sample), scale=1e-3, override=())
    assert found.diagnostics.push == 0
    assert found.diagnostics.verdict == "caution"
    assert any("pushes the margins" in reason for reason in found.diagnostics.reasons)
    assert erase(sample, fit(sample), push=None).diagnostics.push is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": None}, "pass a scale"),
        ({"residual": True}, "leave out residual, reweight and policy"),
        ({"reweight": 2}, "leave out residual, reweight and policy"),
        ({"policy": "joint"}, "leave out residual, reweight and policy"),
        ({"push": 1.5}, "from 0 .* to 1"),
        ({"push": -0.1}, "from 0 .* to 1"),
        ({"push": True}, "from 0 .* to 1"),
        ({"push": float("nan")}, "from 0 .* to 1"),
    ],
)
def test_what_it_does_not_go_with(options, words):
    sample = problems.mlp()
    with refused(InvalidSetting, words, sample.model):
        erase(sample, fit(sample), **options)


def test_a_linear_model_has_newtons_step():
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, "push= is for networks", sample.model):
        erase(sample, fit(sample))


def test_a_loss_without_margins():
    sample = problems.mlp()
    curvature = ssse.Curvature.fit(
        sample.model, "mse", [(sample.x, torch.nn.functional.one_hot(sample.y).double())], damping=DAMPING,
        weight_decay=DECAY, structure="lowrank", progress=False,
    )  # fmt: skip
    forget = [(sample.x[GONE], torch.nn.functional.one_hot(sample.y).double()[GONE])]
    with refused(InvalidSetting, "logistic in a margin", sample.model):
        ssse.erase(sample.model, curvature, "mse", forget, scale=0.1, push=0.0)
