"""Independent witnesses: curvlinops for the matrices, scikit-learn for retraining."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import ssse
from tests.support import problems


@pytest.mark.parametrize(("kind", "operator"), [("empirical", "EFLinearOperator"), ("expected", "GGNLinearOperator")])
def test_curvature_of_a_convolutional_net_agrees_with_curvlinops(kind, operator):
    import curvlinops

    sample, damping = problems.conv(), 1e-2
    parameters = [p for p in sample.model.parameters() if p.requires_grad]
    other = getattr(curvlinops, operator)(
        sample.model, nn.CrossEntropyLoss(reduction="mean"), parameters, sample.data, check_deterministic=False
    )
    matrix = other @ torch.eye(sum(p.numel() for p in parameters), dtype=torch.float64)
    matrix = matrix + damping * torch.eye(len(matrix), dtype=torch.float64)
    curvature = ssse.Curvature.fit(sample.model, "cross_entropy", sample.data, damping=damping, rows=kind)
    v = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(curvature.solve(matrix @ v), v, rtol=1e-8, atol=1e-10)


def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return np.asarray(x) / 16.0, np.asarray(y)


def retrained(x: np.ndarray, y: np.ndarray, weight_decay: float, classes: int = 10) -> torch.Tensor:
    """scikit-learn minimises Σℓ + ‖W‖²/(2C), so C = 1/(n·w) is our objective."""
    settings = {"fit_intercept": False, "solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000}
    fitted = LogisticRegression(C=1 / (len(y) * weight_decay), **settings).fit(x, y)
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64)
    weight[fitted.classes_] = torch.from_numpy(fitted.coef_)
    return weight


@pytest.mark.parametrize(("fraction", "limit"), [(0.1, 0.04), (0.5, 0.19), (1.0, 0.40)])
def test_erasure_comes_as_near_to_sklearns_retraining_as_the_design_measured(fraction, limit):
    """‖θ̂−θ₋S‖/‖θ*−θ₋S‖ with expected rows, leave-k-out, ε = 1: a tenth, half, all of a class."""
    x, y = digits()
    decay = 1e-2
    model = nn.Linear(64, 10, bias=False).double().eval()
    with torch.no_grad():
        model.weight.copy_(retrained(x, y, decay))
    data = [(torch.from_numpy(x), torch.from_numpy(y))]
    curvature = ssse.Curvature.fit(model, "cross_entropy", data, weight_decay=decay)
    distances = []
    for digit in (0, 3, 6):
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(y == digit))
        chosen = chosen[: int(fraction * len(chosen))]
        rest = np.setdiff1d(np.arange(len(y)), chosen)
        target = retrained(x[rest], y[rest], decay)
        erasure = ssse.erase(
            model, curvature, "cross_entropy", [(torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]))]
        )
        found = next(iter(erasure.model.parameters())).detach()
        distances.append(float((found - target).norm() / (model.weight.detach() - target).norm()))
    assert max(distances) < limit, distances
