"""Rows and gradients of samples that count w times, and of labels that are class probabilities: against plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ssse
from ssse.errors import DoesNotFit, InvalidSetting
from ssse.problem.batches import read_batch
from ssse.problem.problem import Problem
from ssse.problem.weighted_loss import WeightedLoss
from ssse.rows import kinds
from ssse.rows.kinds import RowKind, measure, measure_held
from tests.support import dense, problems
from tests.support.refusals import fit

MAKES = {
    "linear cross_entropy": lambda: problems.linear("cross_entropy"),
    "linear binary_cross_entropy": lambda: problems.linear("binary_cross_entropy"),
    "linear mse": lambda: problems.linear("mse"),
    "mlp cross_entropy": lambda: problems.mlp("cross_entropy"),
    "mlp binary_cross_entropy": lambda: problems.mlp("binary_cross_entropy"),
}


def some_weights(n: int) -> Tensor:
    weights = torch.rand(n, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
    weights[2] = 0.0
    return weights


def gram_and_gradient(sample: problems.Sample, name: kinds.RowName, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    batch = read_batch((sample.x, sample.y) if weights is None else (sample.x, sample.y, weights), None)
    problem = Problem(sample.model, sample.loss, "all", batch)
    rows, measured = measure_held(problem, RowKind(name), batch)
    torch.testing.assert_close(measured.gradient, measure(problem, RowKind(name), batch).gradient)
    matrix = rows.matrix()
    return matrix.T @ matrix, measured.gradient


@pytest.mark.parametrize("name", ["empirical", "expected", "margin", "sampled"])
@pytest.mark.parametrize("make", MAKES)
def test_weights_scale_what_each_sample_adds(make, name):
    """Sample by sample: the gradient w times, RᵀR w times, of empirical rows, which are gradients, w² times."""
    sample = MAKES[make]()
    if name == "margin" and sample.loss == "mse":
        pytest.skip("least squares has no margin")
    weights = some_weights(len(sample.x))
    gram, gradient = gram_and_gradient(sample, name, weights)
    wanted_gram, wanted_gradient = torch.zeros_like(gram), torch.zeros_like(gradient)
    for i, weight in enumerate(weights.tolist()):
        one = problems.Sample("one", sample.model, sample.loss, sample.x[i : i + 1], sample.y[i : i + 1])
        part, slope = gram_and_gradient(one, name, None)
        wanted_gram += (weight**2 if name == "empirical" else weight) * part
        wanted_gradient += weight * dense.gradient(sample.model, dense.LOSSES[sample.loss], one.x, one.y)
        torch.testing.assert_close(slope, dense.gradient(sample.model, dense.LOSSES[sample.loss], one.x, one.y))
    torch.testing.assert_close(gram, wanted_gram, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["empirical", "expected", "margin", "sampled"])
@pytest.mark.parametrize("make", ["linear cross_entropy", "mlp cross_entropy"])
def test_weights_of_one_change_nothing(make, name):
    sample = MAKES[make]()
    ones = torch.ones(len(sample.x))  # in another dtype than the model's
    for found, wanted in zip(gram_and_gradient(sample, name, ones), gram_and_gradient(sample, name, None), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["expected", "margin", "sampled"])
@pytest.mark.parametrize("make", ["linear cross_entropy", "mlp cross_entropy"])
def test_a_weight_of_two_is_the_sample_twice(make, name):
    sample = MAKES[make]()
    weights = torch.ones(len(sample.x), dtype=torch.float64)
    weights[:7] = 2.0
    twice = problems.Sample(
        "twice",
        sample.model,
        sample.loss,
        torch.cat([sample.x, sample.x[:7]]),
        torch.cat([sample.y, sample.y[:7]]),
    )
    for found, wanted in zip(
        gram_and_gradient(sample, name, weights), gram_and_gradient(twice, name, None), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)


def test_a_loss_of_the_users_own_is_weighted_too():
    sample = problems.mlp("cross_entropy")
    weights = some_weights(len(sample.x))
    named = fit(sample, data=[(sample.x, sample.y, weights)], rows="expected", structure="dense", blocks="one")
    own = fit(
        sample,
        data=[(sample.x, sample.y, weights)],
        loss=torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=1e-300),
        rows="expected",
        structure="dense",
        blocks="one",
    )
    v = torch.randn(named.layout.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(named.solve(v), own.solve(v), rtol=1e-6, atol=1e-8)


# ----------------------------------------------------------------------------------- class probabilities


def soft(sample: problems.Sample) -> problems.Sample:
    """Labels that are smoothed, each its own way."""
    share = torch.rand(len(sample.x), 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    hot = F.one_hot(sample.y, 3).double()
    return problems.Sample("soft", sample.model, "cross_entropy", sample.x, hot * (1 - share) + share / 3)


@pytest.mark.parametrize("make", ["linear cross_entropy", "mlp cross_entropy"])
def test_soft_labels_are_those_of_the_loss_that_torch_differentiates(make):
    sample = soft(MAKES[make]())
    own = problems.Sample("own", sample.model, lambda z, y: F.cross_entropy(z, y, reduction="sum"), sample.x, sample.y)  # type: ignore[arg-type]
    for name in ("empirical", "expected"):
        for found, wanted in zip(
            gram_and_gradient(sample, name, None), gram_and_gradient(own, name, None), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", ["linear cross_entropy", "mlp cross_entropy"])
def test_one_hot_probabilities_are_class_indices(make):
    sample = MAKES[make]()
    hot = problems.Sample("hot", sample.model, sample.loss, sample.x, F.one_hot(sample.y, 3).float())
    for name in ("empirical", "expected", "sampled"):
        for found, wanted in zip(
            gram_and_gradient(hot, name, None), gram_and_gradient(sample, name, None), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_margin_rows_of_soft_labels_are_refused_and_auto_does_not_choose_them():
    sample = soft(problems.mlp("cross_entropy"))
    with pytest.raises(InvalidSetting, match=r'class probabilities. Use rows="expected"'):
        fit(sample, rows="margin")
    assert fit(sample).kind.name == "expected"
    indices = problems.mlp("cross_entropy")
    assert ssse.plan(indices.model, "cross_entropy", indices.data, memory_budget=45_000).kind.name == "margin"
    with pytest.raises(DoesNotFit) as caught:
        ssse.plan(sample.model, "cross_entropy", sample.data, memory_budget=45_000)
    assert "margin" not in str(caught.value)


def test_a_weighted_loss_says_what_its_own_loss_says():
    for sample in (problems.linear("cross_entropy"), soft(problems.linear("cross_entropy")), problems.linear("mse")):
        batch = read_batch((sample.x, sample.y, torch.ones(len(sample.x))), None)
        loss = Problem(sample.model, sample.loss, "all", batch).loss
        assert isinstance(loss, WeightedLoss)
        for what in ("name", "response", "one_margin", "coupled"):
            assert getattr(loss, what) == getattr(loss.inner, what)
