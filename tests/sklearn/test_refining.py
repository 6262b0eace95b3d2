"""Refining goes down, from wherever it begins, and arrives at the refit."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ssse.sklearn import Eraser
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, fitted, linear_parts, quiet

MODELS: dict[str, Any] = {
    "logistic": LogisticRegression(C=100, solver="newton-cholesky", tol=1e-9, max_iter=1000),
    "lbfgs": LogisticRegression(C=100),  # as it comes: not at its minimum
    "one against the rest": OneVsRestClassifier(LogisticRegression(solver="newton-cholesky", C=10)),
    "svc": LinearSVC(C=1, max_iter=100_000),
    "balanced": LogisticRegression(solver="newton-cholesky", C=10, class_weight="balanced"),
    "sgd": SGDClassifier("log_loss", alpha=1e-3, random_state=0),
    "ridge": RidgeClassifier(),
}


@cache
def standardised(load: Any, every: int = 1) -> Data:
    x, y = load(return_X_y=True)
    return Data(StandardScaler().fit_transform(x)[::every], y[::every], np.ones(len(y[::every])))


def objective(model: Any, data: Data) -> float:
    """Of all linear models in it, by the dense truth."""
    total = 0.0
    for part, own in _parts(model, data):
        problems = zip(refits.problems_of(part, own), refits.thetas(part), strict=True)
        total += sum(problem.value(theta) for problem, theta in problems)
    return total


def least(model: Any, data: Data) -> float:
    total = 0.0
    for part, own in _parts(model, data):
        problems = zip(refits.problems_of(part, own), refits.thetas(part), strict=True)
        total += sum(problem.value(problem.minimum(np.zeros_like(theta))) for problem, theta in problems)
    return total


def _parts(model: Any, data: Data) -> list[tuple[Any, Data]]:
    if not isinstance(model, OneVsRestClassifier):
        return [(model, data)]
    ys = model.label_binarizer_.transform(data.y).toarray().T
    return [(part, Data(data.x, y, data.weights)) for part, y in zip(linear_parts(model), ys, strict=True)]


def descends(eraser: Any, rest: Data, calls: int, **options: Any) -> float:
    """The objective after so many calls, none of which ends above where it began."""
    before = objective(eraser.estimator_, rest)
    for _ in range(calls):
        with quiet():
            eraser.refine(rest.x, rest.y, **options)
        after = objective(eraser.estimator_, rest)
        assert after <= before * (1 + 1e-12)
        before = after
    return before


def half_a_class(data: Data, of: int) -> np.ndarray:
    rows = np.flatnonzero(data.y == of)
    return rows[: len(rows) // 2]


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_after_half_a_class_it_arrives(load, name, of):
    """Where one step of `erase` goes too far: it used to go up, and to stay there."""
    data = standardised(load)
    rows = half_a_class(data, of)
    rest, eraser = data.without(rows), Eraser(fitted(MODELS[name], data.x, data.y)).fit(data.x, data.y)
    eraser.erase(data.x[rows], data.y[rows])
    held = copy.deepcopy(eraser)
    wanted = least(eraser.estimator_, rest)
    assert descends(eraser, rest, 4) == pytest.approx(wanted, rel=1e-8)
    assert descends(held, rest, 2, curvature=False, steps=100) == pytest.approx(wanted, rel=1e-5)


def test_a_class_of_digits():
    data = standardised(load_digits, every=4)
    model = LogisticRegression(C=10, solver="newton-cholesky")
    eraser = Eraser(fitted(model, data.x[:, ::2], data.y)).fit(data.x[:, ::2], data.y)
    data = Data(data.x[:, ::2], data.y, data.weights)
    rows = np.flatnonzero(data.y == 8)[:-2]  # all but the last two, so that the class stays
    eraser.erase(data.x[rows], data.y[rows])
    rest = data.without(rows)
    assert descends(eraser, rest, 3) == pytest.approx(least(eraser.estimator_, rest), rel=1e-8)


def destroyed(model: Any, far: float, seed: int = 0) -> Any:
    rng, broken = np.random.default_rng(seed), copy.deepcopy(model)
    for part in linear_parts(broken):
        part.coef_ = part.coef_ + far * rng.normal(size=part.coef_.shape)
    return broken


@pytest.mark.parametrize("far", [0.3, 10.0, 300.0])
@pytest.mark.parametrize("name", ["logistic", "svc", "sgd", "ridge"])
@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
def test_from_a_destroyed_model_it_arrives_too(load, name, far):
    """Far out, scores are so large that there is hardly any curvature left to go by."""
    data = standardised(load)
    model = fitted(MODELS[name], data.x, data.y)
    eraser = Eraser(destroyed(model, far)).fit(data.x, data.y)
    held = copy.deepcopy(eraser)
    assert descends(eraser, data, 1, steps=100) == pytest.approx(least(model, data), rel=1e-8)
    start = objective(held.estimator_, data)
    assert descends(held, data, 2, curvature=False) < start


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(list(MODELS)),
    n=st.integers(40, 120),
    d=st.integers(1, 5),
    k=st.integers(2, 4),
    far=st.sampled_from([0.0, 1.0, 30.0]),
    steps=st.integers(1, 4),
    curvature=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_never_ends_above_where_it_began(name, n, d, k, far, steps, curvature, seed):
    data = refits.classes(n=n, d=d, k=k, seed=seed)
    eraser = Eraser(destroyed(fitted(MODELS[name], data.x, data.y), far, seed)).fit(data.x, data.y)
    descends(eraser, data, 3, steps=steps, curvature=curvature)
