"""What people do to erasers and estimators without meaning harm, and what must not pass for an answer."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ssse.errors import ModelMismatch, Refused
from ssse.sklearn import ErasableLogisticRegression, Eraser
from ssse.sklearn.linalg import largest_generalized_eigenvalue
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import fitted, parameters, quiet, refused, tight

RAW, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(RAW)


def test_samples_without_the_preprocessing_are_refused():
    eraser = Eraser(LogisticRegression().fit(X, Y)).fit(X, Y)
    with refused(eraser, Refused, "longer than any.*preprocessing"):
        eraser.erase(RAW[:3], Y[:3])


def test_samples_that_went_through_it_twice_are_refused():
    eraser = Eraser(make_pipeline(StandardScaler(), LogisticRegression()).fit(RAW, Y)).fit(RAW, Y)
    with refused(eraser, Refused, "longer than any"):
        eraser.erase(X[:3], Y[:3])


def test_samples_with_wrong_labels_that_take_the_model_away_are_refused():
    eraser = Eraser(LogisticRegression().fit(X, Y)).fit(X, Y)
    with refused(eraser, Refused, "times as long as the coefficients.*other labels"):
        eraser.erase(X[:20], 1 - Y[:20])


def test_changed_settings_are_noticed():
    model = ErasableLogisticRegression().fit(X, Y)
    model.set_params(C=1e-3)
    with pytest.raises(ModelMismatch, match="changed"):
        model.erase(X[:3], Y[:3])
    model.set_params(C=1.0)
    assert model.erase(X[:3], Y[:3]).n_erased_ == 3


def test_changed_coefficients_are_noticed():
    eraser = Eraser(fitted(tight(), X, Y)).fit(X, Y)
    eraser.estimator_.coef_ = eraser.estimator_.coef_ * 2
    with pytest.raises(ModelMismatch, match="Fit the eraser again"):
        eraser.erase(X[:3], Y[:3])


def test_what_its_owner_does_to_the_erased_model_is_the_owners_business():
    one, other = (Eraser(fitted(tight(), X, Y)).fit(X, Y) for _ in range(2))
    model = one.erase(X[:3], Y[:3])
    model.coef_[:] = 0
    model.set_params(C=7.0)
    other.erase(X[:3], Y[:3])
    np.testing.assert_array_equal(one.erase(X[5:7], Y[5:7]).coef_, other.erase(X[5:7], Y[5:7]).coef_)


def test_parts_of_the_data_for_two_models_are_noticed():
    eraser = Eraser(fitted(tight(), X, Y)).partial_fit(X[:300], Y[:300])
    eraser.estimator = fitted(tight(C=1e-3), X, Y)
    with pytest.raises(ModelMismatch, match="first part"):
        eraser.partial_fit(X[300:], Y[300:])


def test_a_solver_that_stopped_early_is_not_taken_for_the_samples_effect():
    """The step is long, but hardly any of it is due to the one sample."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 5))
    y = (x[:, 0] + rng.logistic(size=len(x)) > 0).astype(int)
    with quiet():
        eraser = Eraser(LogisticRegression(tol=5e-3).fit(x, y)).fit(x, y)
    new = eraser.erase(x[:1], y[:1])
    found = eraser.outcome_
    assert found.due is not None
    assert found.step_norm is not None
    assert found.due < 0.1 * found.step_norm
    rest = refits.Data(x[1:], y[1:], np.ones(len(x) - 1))
    truth = refits.minimum(new, rest)
    own = truth - refits.minimum(new, refits.Data(x, y, np.ones(len(x))))
    assert found.due == pytest.approx(np.linalg.norm(own), rel=0.05)
    left, was = (float(np.linalg.norm(parameters(model) - truth)) for model in (new, eraser.estimator))
    assert (found.verdict, left < 0.05 * was) == ("ok", True)
    eraser.fit(x, y)
    eraser.refine(x, y)
    eraser.erase(x[:1], y[:1])
    assert eraser.outcome_.verdict == "ok"
    assert eraser.outcome_.due == pytest.approx(np.linalg.norm(own), rel=1e-2)


def test_digits_that_outliers_cost_are_in_the_bound_after_they_went():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 5)), rng.normal(size=400)
    y[:5] = 1e12
    model = Ridge(alpha=1e-3)
    eraser = Eraser(fitted(model, x, y)).fit(x, y)
    erased = eraser.erase(x[:5], y[:5])
    assert np.linalg.norm(parameters(erased) - parameters(fitted(model, x[5:], y[5:]))) <= eraser.distance_bound_


def test_many_samples_without_weight_change_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 120))
    y = (x[:, 0] + rng.logistic(size=1000) > 0).astype(int)
    weights = np.r_[np.zeros(400), np.ones(600)]
    model = tight().fit(x, y, weights)
    erased = Eraser(model).fit(x, y, weights).erase(x[:400], y[:400], weights[:400])
    np.testing.assert_allclose(erased.coef_, model.coef_, atol=1e-6)


def test_the_largest_eigenvalue_is_not_missed():
    """Where a start of ones would never see it."""
    a = np.diag(np.full(120, 0.5))
    block = np.array([[1.0, -1.0], [-1.0, 1.0]]) / 2
    a[:2, :2] = 0.9 * block
    assert largest_generalized_eigenvalue(a, np.eye(120), np.eye(120)) == pytest.approx(0.9, rel=1e-6)
