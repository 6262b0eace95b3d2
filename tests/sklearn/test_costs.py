"""What a large request costs: eigenvalues to three digits, never below the truth; and when a refit is cheaper."""

import numpy as np
import pytest
from scipy.linalg import eigh
from sklearn.linear_model import LogisticRegression

from ssse.sklearn import Eraser
from ssse.sklearn.linalg import COARSE, SMALL, largest_generalized_eigenvalue


@pytest.mark.parametrize("largest", [0.3, 0.89, 0.9999])
def test_the_largest_eigenvalue_is_not_below_the_truth_and_near_it(largest: float) -> None:
    rng = np.random.default_rng(0)
    size = SMALL + 60
    root = rng.standard_normal((2 * size, size))
    b = root.T @ root
    part = root[: size // 2]
    a = part.T @ part
    a *= largest / eigh(a, b, eigvals_only=True)[-1]
    truth = eigh(a, b, eigvals_only=True)[-1]
    found = largest_generalized_eigenvalue(a, b, np.linalg.inv(b))
    assert found >= truth * (1 - 1e-9)
    exact = largest > 0.9  # where it decides whether a step is taken
    assert found <= truth * (1 + (1e-8 if exact else 3 * COARSE))


def test_the_outcome_says_where_a_refit_is_cheaper() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 40))
    y = rng.integers(0, 6, 600)  # 5 × 41 directions, which 60 samples with 6 rows each outnumber
    eraser = Eraser(LogisticRegression(C=0.05, tol=1e-8).fit(x, y)).fit(x, y)
    eraser.erase(x[:1], y[:1])
    assert not eraser.outcome_.refit_cheaper
    eraser.erase(x[1:60], y[1:60])
    assert eraser.outcome_.refit_cheaper
    assert "refit" in str(eraser.outcome_)
