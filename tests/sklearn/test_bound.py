"""distance_bound_ is a bound: no model that is erased lies further from the minimum over what remains."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.svm import LinearSVC

from ssse.errors import NotPositiveDefinite, PrecisionLost, Refused
from ssse.sklearn import Eraser, bound
from ssse.sklearn.bound import Bound
from ssse.verdict import BOUNDS
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, fitted, parameters, quiet, tight

ROUNDING = 1e-9  # of ‖θ‖, that the truth itself may be off


def at_minimum(model: Any, data: Data, weighted: bool) -> Any:
    """As the solver would leave it, had it no noise."""
    found = refits.minimum(model, data, weighted)
    size = model.coef_.size
    model.coef_ = found[:size].reshape(model.coef_.shape).copy()
    model.intercept_ = found[size:].reshape(model.intercept_.shape).copy()
    return model


def make(kind: str, data: Data, weighted: bool, strength: float, intercept: bool, class_weight):
    s = data.weights if weighted else None
    if kind == "sgd":
        model = SGDClassifier("log_loss", alpha=1 / (strength * len(data)), max_iter=5, random_state=0)
        model.set_params(fit_intercept=intercept, class_weight=class_weight, tol=None)
        return at_minimum(fitted(model, data.x, data.y, s), data, weighted)
    solver = "newton-cholesky" if kind == "lbfgs" else kind
    model = tight(solver=solver, C=strength, fit_intercept=intercept, class_weight=class_weight, intercept_scaling=3.0)
    with quiet():
        return fitted(model, data.x, data.y, s)


def assert_bounded(eraser: Eraser, new, rest: Data, weighted: bool) -> float:
    """The true distance."""
    truth = refits.minimum(new, rest, weighted)
    found = float(np.linalg.norm(parameters(new) - truth))
    assert found <= eraser.distance_bound_ + ROUNDING * np.linalg.norm(truth)
    slope = refits.gradient_norm(new, rest, weighted)
    assert slope <= eraser.sums_.gradient * (1 + 1e-9) + ROUNDING * len(rest)
    return found


def requests(data: Data, sizes: list[int], how: list[str], seed: int):
    """Rows to forget, one request after another, none of which empties a class."""
    rng, left = np.random.default_rng(seed), np.arange(len(data))
    for size, which in zip(sizes, how, strict=True):
        pool = left
        if which == "extreme":
            pool = left[np.argsort(-np.abs(data.x[left]).sum(axis=1))][:size]
        elif which == "one class":
            pool = left[data.y[left] == data.y[left[0]]]
        gone = rng.choice(pool, min(size, len(pool)), replace=False)
        rest = np.setdiff1d(left, gone)
        if len(np.unique(data.y[rest])) < len(np.unique(data.y)):
            return
        left = rest
        yield gone, left


@st.composite
def situations(draw):
    kind = draw(st.sampled_from(["lbfgs", "lbfgs", "liblinear", "sgd"]))
    count = draw(st.integers(1, 6))
    return {
        "kind": kind,
        "n": draw(st.integers(40, 400)),
        "d": draw(st.integers(1, 5)),
        "k": 2 if kind == "liblinear" else draw(st.integers(2, 4)),
        "offset": draw(st.sampled_from([0.0, 0.5, 10.0])),
        "noise": draw(st.sampled_from([0.3, 1.0, 3.0])),
        "strength": 10 ** draw(st.floats(-3, 1.5)),
        "intercept": draw(st.booleans()),
        "class_weight": draw(st.sampled_from([None, "balanced", {0: 3.0, 1: 0.5}])),
        "weighted": draw(st.booleans()),
        "policy": draw(st.sampled_from(["rebase", "joint"])),
        "in_parts": draw(st.booleans()),
        "refine_after": draw(st.sampled_from([None, None, 0, 1, 2])),
        "sizes": draw(st.lists(st.integers(1, 8), min_size=count, max_size=count)),
        "how": draw(st.lists(st.sampled_from(["any", "extreme", "one class"]), min_size=count, max_size=count)),
        "seed": draw(st.integers(0, 10_000)),
    }


def play(case: dict) -> list[tuple[float, float]]:
    """Distance and bound after every request of a stream."""
    data = refits.classes(case["n"], case["d"], case["k"], case["seed"], case["noise"], case["offset"])
    weighted = case["weighted"]

    def given_of(part: Data):
        return (part.x, part.y, part.weights) if weighted else (part.x, part.y)

    eraser = Eraser(
        make(case["kind"], data, weighted, case["strength"], case["intercept"], case["class_weight"]),
        policy=case["policy"],
    )
    found: list[tuple[float, float]] = []
    with suppress(NotPositiveDefinite, PrecisionLost, Refused):
        if case["in_parts"]:
            for rows in np.array_split(np.arange(len(data)), 3):
                eraser.partial_fit(*given_of(data.part(rows)))
        else:
            eraser.fit(*given_of(data))
        for i, (gone, left) in enumerate(requests(data, case["sizes"], case["how"], case["seed"])):
            new, rest = eraser.erase(*given_of(data.part(gone))), data.part(left)
            found.append((assert_bounded(eraser, new, rest, weighted), eraser.distance_bound_))
            if i == case["refine_after"]:
                new = eraser.refine(*given_of(rest))
                found.append((assert_bounded(eraser, new, rest, weighted), eraser.distance_bound_))
    return found


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_no_distance_is_above_its_bound(case):
    play(case)


ORDINARY = {
    "kind": "lbfgs", "n": 2000, "d": 10, "k": 2, "offset": 0.5, "noise": 1.0, "strength": 1.0, "intercept": True,
    "class_weight": None, "weighted": False, "policy": "rebase", "in_parts": False, "refine_after": None,
    "sizes": [1, 5, 5], "how": ["any", "any", "extreme"], "seed": 1,
}  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_the_bound_is_of_use_on_an_ordinary_problem(classes, policy, intercept, class_weight):
    changes = {"k": classes, "policy": policy, "intercept": intercept, "class_weight": class_weight}
    for true, distance_bound in play({**ORDINARY, **changes}):
        assert 0 < true <= distance_bound < 1000 * true


HARD = {
    **ORDINARY, "n": 60, "d": 1, "noise": 0.3, "strength": 3.0, "sizes": [4] * 6, "how": ["extreme"] * 6,
}  # fmt: skip


def first_violation() -> int | None:
    """The first of some hard streams that is not within its bound."""
    for seed in range(60):
        try:
            play({**HARD, "seed": seed})
        except AssertionError:
            return seed
    return None


WHOLE: Any = vars(Bound)["distance"].fget


def too_small(self: Bound) -> float:
    return WHOLE(self) / 50


def not_moved(self: Bound, *args, whole=Bound.moved_by, **options) -> Bound:
    return replace(whole(self, *args, **options), moved=0.0, away=0.0)


def forgets_what_was_left(self: Bound, *args, whole=Bound.moved_by, **options) -> Bound:
    return whole(replace(self, residual=0.0, moved=0.0, drift=0.0), *args, **options)


MUTATIONS = {
    "a fiftieth": (Bound, "distance", property(too_small)),
    "no third order": (bound, "_excess", lambda swing: 0.0),
    "curvature as at the anchor": (Bound, "moved_by", not_moved),
    "every request as if it were the first": (Bound, "moved_by", forgets_what_was_left),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_bound_that_is_too_small_is_found_out(monkeypatch, mutation):
    """The check itself: were one part of the bound wrong, some stream would show it."""
    assert first_violation() is None
    where, name, wrong = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, wrong)
    assert first_violation() is not None


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_the_distance_bound_grows_with_what_is_erased(classes, policy):
    data = refits.classes(n=2000, k=classes)
    first = fitted(tight(), data.x, data.y)
    few, many = (Eraser(first, policy=policy).fit(data.x, data.y) for _ in range(2))
    few.erase(data.x[:2], data.y[:2])
    many.erase(data.x[:60], data.y[:60])
    assert few.distance_bound_ < many.distance_bound_ < math.inf


@pytest.mark.parametrize("model", [Ridge(), LinearRegression(), RidgeClassifier()], ids=repr)
def test_least_squares_is_bounded_by_rounding(model):
    data = refits.classes(k=3)
    eraser = Eraser(fitted(model, data.x, data.y)).fit(data.x, data.y)
    new = eraser.erase(data.x[:9], data.y[:9])
    assert 0 < eraser.distance_bound_ < 1e-10 * np.linalg.norm(parameters(new))


def exact_ridge(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """In forty digits."""
    with mpmath.workdps(40):
        a = mpmath.matrix(np.hstack([x, np.ones((len(x), 1))]).tolist())
        left = a.T * a
        for i in range(x.shape[1]):
            left[i, i] += alpha
        return np.array([float(v) for v in mpmath.lu_solve(left, a.T * mpmath.matrix(y.tolist()))])


@pytest.mark.parametrize("seed", range(12))
def test_even_rounding_is_bounded(seed):
    """Targets that the features say nothing of, and a penalty that leaves little of θ: slopes cancel."""
    rng = np.random.default_rng(seed)
    x, y, alpha = rng.normal(size=(100, 2)), rng.normal(size=100) * 100, float(10 ** rng.uniform(0, 5))
    eraser = Eraser(fitted(Ridge(alpha=alpha), x, y)).fit(x, y)
    new = eraser.erase(x[:5], y[:5])
    assert np.linalg.norm(parameters(new) - exact_ridge(x[5:], y[5:], alpha)) <= eraser.distance_bound_


@pytest.mark.parametrize("size", [1e2, 1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("model", [LinearRegression(), Ridge()], ids=repr)
def test_digits_that_an_outlier_took_are_not_claimed(model, size):
    """Its square in a sum drowns the others': once it is subtracted, what is left of them is rounded."""
    data = refits.numbers(n=200, d=6)
    data.x[7, 2] = size
    eraser = Eraser(fitted(model, data.x, data.y)).fit(data.x, data.y)
    new = eraser.erase(data.x[7:8], data.y[7:8])
    truth = refits.minimum(new, data.without([7]))
    assert np.linalg.norm(parameters(new) - truth) <= eraser.distance_bound_ + 1e-13 * np.linalg.norm(truth)


def test_where_nothing_is_proved_the_distance_bound_is_infinite():
    data = refits.classes(k=3)
    svc: Any = Eraser(fitted(LinearSVC(), data.x, data.y)).fit(data.x, data.y)
    svc.erase(data.x[:2], data.y[:2])
    vanished: Any = Eraser(fitted(tight(), data.x, data.y)).fit(data.x, data.y)
    vanished.erase(data.x[data.y == 2], data.y[data.y == 2], override=BOUNDS)
    for eraser in (svc, vanished):
        assert math.isinf(eraser.distance_bound_)
        assert eraser.outcome_.verdict == "caution"


def test_a_model_that_was_not_at_its_minimum_is_bounded_too():
    """An early stop leaves a gradient; the sums know it."""
    data = refits.classes(n=2000)
    with quiet():
        first = tight(tol=3e-2, max_iter=50).fit(data.x, data.y)
    eraser = Eraser(first).fit(data.x, data.y)
    assert_bounded(eraser, first, data, False)
    assert_bounded(eraser, eraser.erase(data.x[:3], data.y[:3]), data.part(np.arange(3, 2000)), False)
