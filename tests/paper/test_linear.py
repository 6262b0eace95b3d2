"""Linear models at their minimum: against scikit-learn, and against the gradient written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ssse.paper.data.digits import digit_attributes, digit_classes
from ssse.paper.linear import Linear, NotTrained, as_model

N, DECAY = 600, 1e-3
ALL = torch.arange(N)
EXACT = 1e-11  # ‖A − A*‖ ≤ ‖∇L‖/w
FOUND = digit_classes()
X = FOUND.x[:N] / FOUND.x.square().sum(1).mean().sqrt()
CLASSES, ATTRIBUTES = FOUND.y[:N], digit_attributes().y[:N]
PARTS = {
    "all": ALL,
    "every third is gone": ALL[ALL % 3 > 0],
    "a class is missing": (CLASSES != 3).nonzero()[:, 0],
    "the last class is missing": (CLASSES != 9).nonzero()[:, 0],
}


def data_set(y: Tensor) -> Linear:
    return Linear.of(X, y, DECAY)


def reference(y: Tensor, keep: Tensor) -> np.ndarray:
    """By scikit-learn, where a sample that is not kept weighs nothing: so a class stays one without its samples."""
    weights = torch.zeros(N).index_fill(0, keep, 1.0).numpy()
    solver = LogisticRegression(C=1 / (len(keep) * DECAY), fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    return solver.fit(X.numpy(), y.numpy(), sample_weight=weights).coef_


def gradient(weights: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    """∇L, sample by sample."""
    total = torch.zeros_like(weights)
    for i in keep.tolist():
        z = weights @ X[i]
        away = z.softmax(0) - F.one_hot(y[i], len(z)) if y.dim() == 1 else z.sigmoid() - y[i]
        total += torch.outer(away, X[i])
    return total / len(keep) + DECAY * weights


def objective(weights: Tensor, y: Tensor, keep: Tensor) -> float:
    z = X[keep] @ weights.mT
    summed = F.cross_entropy if y.dim() == 1 else F.binary_cross_entropy_with_logits
    return float(summed(z, y[keep], reduction="sum") / len(keep) + 0.5 * DECAY * weights.square().sum())


@pytest.mark.parametrize("keep", PARTS.values(), ids=PARTS.keys())
def test_classes_reach_the_minimum_of_scikit_learn(keep):
    found = data_set(CLASSES).train(keep, tolerance=EXACT).weights
    assert (found.shape, found.dtype) == ((10, 64), torch.float64)
    np.testing.assert_allclose(found.numpy(), reference(CLASSES, keep), atol=1e-7)


@pytest.mark.parametrize("keep", list(PARTS.values())[:3], ids=list(PARTS)[:3])
def test_attributes_are_regressions_of_their_own(keep):
    found = data_set(ATTRIBUTES).train(keep, tolerance=EXACT).weights
    expected = np.concatenate([reference(ATTRIBUTES[:, a], keep) for a in range(ATTRIBUTES.shape[1])])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-7)


def test_an_attribute_that_nobody_has_any_more():
    keep = (ATTRIBUTES[:, 12] == 0).nonzero()[:, 0]
    found = data_set(ATTRIBUTES).train(keep, tolerance=EXACT).weights
    assert found.isfinite().all()
    assert (X @ found[12] < 0).all()  # of everyone
    assert gradient(found, ATTRIBUTES, keep).norm() < 2 * EXACT


@pytest.mark.parametrize("y", [CLASSES, ATTRIBUTES], ids=["classes", "attributes"])
def test_the_start_does_not_matter(y):
    trained, far = data_set(y), torch.randn(y.shape[1] if y.dim() == 2 else 10, 64, generator=torch.manual_seed(1))
    for keep in (ALL, PARTS["a class is missing"]):
        one, other = (trained.train(keep, start, EXACT) for start in (None, 30 * far))
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-7)


def test_from_the_minimum_there_is_nothing_to_do():
    trained = data_set(CLASSES)
    first = trained.train(ALL)
    again = trained.train(ALL, first.weights)
    assert again.passes == 1 < first.passes
    torch.testing.assert_close(again.weights, first.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("y", [CLASSES, ATTRIBUTES], ids=["classes", "attributes"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-7])
def test_the_gradient_norm_is_the_true_one(y, tolerance):
    for keep in (ALL, PARTS["a class is missing"]):
        found = data_set(y).train(keep, tolerance=tolerance)
        assert found.gradient_norm <= tolerance
        assert found.gradient_norm == pytest.approx(float(gradient(found.weights, y, keep).norm()), rel=1e-5)


@pytest.mark.parametrize("tolerance", [0.0, 1e-30])
def test_what_cannot_be_reached_is_said(tolerance):
    with pytest.raises(NotTrained, match=r"‖∇L‖ is .* after \d+ passes"):
        data_set(CLASSES).train(ALL[:100], tolerance=tolerance)


@pytest.mark.parametrize("y", [CLASSES, ATTRIBUTES], ids=["classes", "attributes"])
def test_sgd_is_decided_by_its_seed_and_comes_near(y):
    trained, keep = data_set(y), PARTS["every third is gone"]
    one, same, other = (trained.train_sgd(keep, seed) for seed in (1, 1, 2))
    assert torch.equal(one.weights, same.weights)
    apart = (one.weights - other.weights).norm() / one.weights.norm()
    assert 1e-3 < apart < 0.1
    assert one.gradient_norm == pytest.approx(float(gradient(one.weights, y, keep).norm()), rel=1e-9)
    least, nothing = objective(trained.train(keep).weights, y, keep), objective(0 * one.weights, y, keep)
    assert least < objective(one.weights, y, keep) < least + 0.03 * (nothing - least)


def test_longer_sgd_comes_nearer():
    trained = data_set(CLASSES)
    least = trained.train(ALL).weights
    far = [float((trained.train_sgd(ALL, 1, epochs=epochs).weights - least).norm()) for epochs in (5, 60, 600)]
    assert far[0] > 2 * far[1] > 4 * far[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_a_module(dtype):
    weights = torch.randn(3, 64, dtype=torch.float64, generator=torch.manual_seed(0))
    model = as_model(weights, dtype)
    assert not model.training
    torch.testing.assert_close(model(X.to(dtype)), (X @ weights.mT).to(dtype))
