"""Nothing is erased by mistake: what is refused, in words, and the eraser bit for bit as before."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Perceptron,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from ssse.errors import (
    DoesNotFit,
    InvalidData,
    InvalidModel,
    InvalidSetting,
    NotPositiveDefinite,
    PrecisionLost,
    Refused,
)
from ssse.sklearn import Eraser
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import fitted, quiet, refused, tight

NAN, INF = float("nan"), float("inf")
DATA = refits.classes(n=120, d=3)
X, Y = DATA.x, DATA.y
THREE = refits.classes(n=120, d=3, k=3)


def eraser_of(model=None, x=X, y=Y, weights=None, **options) -> Any:
    model = tight() if model is None else model
    return Eraser(fitted(model, x, y, weights), **options).fit(x, y, weights)


class OtherObjective(LogisticRegression):
    """Somebody's own."""


UNSUPPORTED = [
    (Lasso(), "no second derivative"),
    (ElasticNet(), "no second derivative"),
    (HuberRegressor(), "no second derivative"),
    (Perceptron(), "no second derivative"),
    (SGDRegressor(), "no second derivative"),
    (LogisticRegressionCV(Cs=2, cv=2), "choice of the penalty looked at all samples"),
    (RidgeCV(), "choice of the penalty"),
    (RidgeClassifierCV(), "choice of the penalty"),
    (GridSearchCV(tight(), {"C": [0.1, 1]}, cv=2), "best_estimator_"),
    (RandomForestClassifier(n_estimators=2), "none of the linear"),
    (GaussianNB(), "none of the linear"),
    (SVC(), "none of the linear"),
    (OtherObjective(), "subclass"),
    (OneVsOneClassifier(tight()), "none of the linear"),
    (ClassifierChain(tight()), None),
    (tight(solver="liblinear", l1_ratio=1), "L1"),
    (tight(solver="saga", l1_ratio=0.5, tol=1e-3), "L1"),
    (tight(solver="liblinear", penalty="l1"), "L1"),
    (tight(solver="saga", penalty="elasticnet", l1_ratio=0.5, tol=1e-3), "L1"),
    (LinearSVC(loss="hinge"), "no curvature"),
    (LinearSVC(penalty="l1").set_params(dual=False), "L1"),
    (LinearSVC(multi_class="crammer_singer"), "crammer_singer"),
    (SGDClassifier(), "hinge"),
    (SGDClassifier(loss="modified_huber"), "modified_huber"),
    (SGDClassifier(loss="log_loss", penalty="elasticnet"), "L1"),
    (SGDClassifier(loss="log_loss", early_stopping=True), "early_stopping"),
    (Ridge(positive=True), "positive"),
    (LinearRegression(positive=True), "positive"),
    (RidgeClassifier(positive=True), "positive"),
    (Pipeline([("a", StandardScaler()), ("b", make_pipeline(StandardScaler(), tight()))]), "pipeline"),
    (Pipeline([("a", StandardScaler()), ("b", make_pipeline(tight()))]), "pipeline"),
    (Pipeline([("a", StandardScaler()), ("b", "passthrough")]), "does not end in an estimator"),
    (OneVsRestClassifier(make_pipeline(StandardScaler(), tight())), "outermost"),
    (OneVsRestClassifier(LinearSVC(loss="hinge")), "no curvature"),
    (StandardScaler(), "none of the linear"),
]


@pytest.mark.parametrize(("model", "why"), UNSUPPORTED, ids=lambda one: type(one).__name__)
def test_what_has_no_erasing_step_is_refused_by_name_and_with_the_reason(model, why):
    with quiet():
        y = np.stack([Y, Y], axis=1) if isinstance(model, ClassifierChain) else Y
        estimator = fitted(model, X, y)
    with pytest.raises(InvalidModel, match=why) as caught:
        Eraser(estimator).fit(X, y)
    if "does not end" not in str(why):
        assert any(name in str(caught.value) for name in (type(model).__name__, "LinearSVC", "ipeline"))


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (MultiOutputClassifier(make_pipeline(StandardScaler(), tight())), np.stack([Y, Y], 1)),
        (MultiOutputRegressor(Lasso()), np.stack([Y, Y], 1)),
        (RidgeClassifier(), np.stack([Y, 1 - Y], 1)),
        (tight(solver="liblinear"), None),
    ],
    ids=["pipeline", "lasso", "multilabel", "one against the rest"],
)
def test_what_is_refused_inside(model, y):
    with quiet(), pytest.raises((InvalidModel, ValueError)):
        Eraser(fitted(model, X, THREE.y if y is None else y)).fit(X, THREE.y if y is None else y)


@pytest.mark.parametrize(
    "what", [LogisticRegression, LogisticRegression(), None, 3, "model", make_pipeline(Ridge()), {}]
)
def test_only_fitted_estimators(what):
    with pytest.raises(InvalidModel):
        Eraser(what).fit(X, Y)


def test_an_eraser_that_is_not_fitted():
    for call in (lambda e: e.erase(X, Y), lambda e: e.refine(X, Y), lambda e: e.save("/nowhere")):
        with pytest.raises(NotFittedError):
            call(Eraser(fitted(tight(), X, Y)))


@pytest.mark.parametrize("policy", ["Joint", "", None, 1, "rebased"])
def test_policies(policy):
    estimator = fitted(tight(), X, Y)
    for method in ("fit", "partial_fit"):
        with pytest.raises(InvalidSetting, match="rebase, joint"):
            getattr(Eraser(estimator, policy=policy), method)(X, Y)
    eraser = eraser_of()
    eraser.policy = policy
    with refused(eraser, InvalidSetting, "rebase, joint"):
        eraser.erase(X[:1], Y[:1])


def put(value: float) -> np.ndarray:
    x = X[:3].copy()
    x[1, 2] = value
    return x


REQUESTS = [
    (put(NAN), Y[:3], "NaN"),
    (put(INF), Y[:3], "infinity"),
    (X[:3, :2], Y[:3], "2 features"),
    (np.hstack([X[:3], X[:3]]), Y[:3], "6 features"),
    (X[:3], Y[:2], "3 samples and y 2"),
    (X[:0], Y[:0], "0 sample"),
    (X[:3], [], "y 0"),
    (X[0], Y[:1], "must be a table"),
    (X[:3][None], Y[:3], "dim 3|3D|3 dim"),
    ([["a", "b", "c"]], [0], "convert"),
    (X[:3], [0, 1, 2], "2, which is none"),
    (X[:3], ["0", "1", "0"], "none of the estimator's classes"),
    (X[:3], [0, 1, NAN], "nan"),
    (X[:3], [0, 1, None], "None"),
    (X[:3], [[0, 1], [1, 0], [0, 1]], "shape"),
    (X[:3], [[0, 1], [1], [0]], "y:"),
    (X[:3], 1, "shape"),
    (X[:3], None, "y is needed"),
    (X, Y, "left|All"),
    (np.repeat(X[:1], 119, axis=0), np.repeat(Y[:1], 119), "are left"),
]


@pytest.mark.parametrize(("x", "y", "match"), REQUESTS, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_requests_that_cannot_be(x, y, match, policy):
    eraser = eraser_of(policy=policy)
    with refused(eraser, InvalidData, match):
        eraser.erase(x, y)
    eraser.erase(X[5:6], Y[5:6])  # still at work
    with refused(eraser, InvalidData, None):
        eraser.erase(x, y)


@pytest.mark.parametrize("y", [["a", "b", "c"], [1.0, NAN, 2.0], [1.0, INF, 2.0], [[1, 2]] * 3, [], 3.0, [[[1]]] * 3])
def test_targets_that_cannot_be(y):
    eraser = eraser_of(Ridge())
    with refused(eraser, InvalidData, "y"):
        eraser.erase(X[:3], y)


def test_all_of_a_regressions_samples():
    eraser = eraser_of(Ridge())
    with refused(eraser, InvalidData, "All 120 samples"):
        eraser.erase(X, Y)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (None, "none were"),
        ([1.0, -1.0, 1.0], "negative"),
        ([1.0, NAN, 1.0], "finite"),
        ([1.0, INF, 1.0], "finite"),
        ([1.0, 1.0], "shape"),
        ([[1.0], [1.0], [1.0]], "shape"),
        (["a", "b", "c"], "numbers"),
    ],
)
def test_weights_that_cannot_be(weights, match):
    eraser = eraser_of(weights=DATA.weights)
    with refused(eraser, InvalidData, match):
        eraser.erase(X[:3], Y[:3], weights)


def test_weights_that_nobody_gave_before():
    eraser = eraser_of()
    with refused(eraser, InvalidData, "some were given now"):
        eraser.erase(X[:3], Y[:3], [1.0] * 3)
    with refused(eraser, InvalidData, "some were given now"):
        eraser.refine(X, Y, np.ones(120))
    parts = Eraser(eraser.estimator).partial_fit(X[:60], Y[:60])
    with refused(parts, InvalidData, "with every part"):
        parts.partial_fit(X[60:], Y[60:], np.ones(60))


def test_names_of_features_and_their_order():
    frame = pd.DataFrame(X, columns=["age", "height", "weight"])
    estimator = fitted(tight(), frame, Y)
    eraser = Eraser(estimator).fit(frame, Y)
    with refused(eraser, InvalidData, "eature names"):
        eraser.erase(frame[["height", "age", "weight"]][:3], Y[:3])
    with refused(eraser, InvalidData, "eature names"):
        eraser.erase(frame.rename(columns={"age": "Age"})[:3], Y[:3])
    new = eraser.erase(frame[:3], Y[:3])
    assert new.feature_names_in_.tolist() == ["age", "height", "weight"]
    assert new.predict(frame).shape == (120,)


STRANGERS = [
    tight(), tight(class_weight="balanced"), Ridge(alpha=1e-3), LinearRegression(), RidgeClassifier(alpha=1e-3),
    RidgeClassifier(class_weight="balanced"), LinearSVC(C=10.0), tight(C=INF),
]  # fmt: skip


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("model", STRANGERS, ids=repr)
def test_samples_that_were_never_there(model, policy):
    """Where they carry more curvature than there is: with a score near zero and a long x."""
    with quiet():
        eraser = eraser_of(model, policy=policy)
    coef = np.ravel(eraser.estimator_.coef_)
    across = np.linalg.svd(coef[None])[2][1]
    for many in (1, 30):
        with refused(eraser, Refused, "nothing was changed.*(leverage|longer)"):
            eraser.erase(np.repeat(1e4 * across[None], many, axis=0), Y[:many])
    eraser.erase(X[:2], Y[:2])


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("model", [Ridge(alpha=50.0), RidgeClassifier(alpha=50.0), tight(C=0.1)], ids=repr)
def test_a_sample_of_its_own_kind_is_not_erased_twice(model, policy):
    """The penalty alone would leave M definite: what is left of the samples is not."""
    x = np.hstack([X, np.zeros((120, 6))])
    x[7, :4] = 0.0, 0.0, 0.0, 2.0
    eraser = eraser_of(refits.unfitted(model).set_params(fit_intercept=False), x, Y, policy=policy)
    eraser.erase(x[[7]], Y[[7]])
    with refused(eraser, Refused, "curvature"):
        eraser.erase(x[[7]], Y[[7]])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=1e-13), RidgeClassifier(alpha=1e-13)], ids=repr)
def test_what_the_rest_does_not_determine_is_refused(model, seed):
    """One sample alone tells two features apart: its leverage is 1, up to rounding to either side."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(90, 20))
    x[:, 19] = x[:, 0]
    x[5, 19] += rng.uniform(0.5, 2)
    y = rng.integers(0, 2, 90)
    eraser = eraser_of(model, x, y)
    with refused(eraser, Refused, "leverage|determine"):
        eraser.erase(x[5:6], y[5:6])
    with refused(eraser, Refused, "leverage|determine"):
        eraser.erase(x[:40], y[:40])


@pytest.mark.parametrize("model", [LinearRegression(), tight(C=INF), Ridge(alpha=0.0)], ids=repr)
def test_features_that_follow_from_others(model):
    x = np.hstack([X, X[:, :1] + X[:, 1:2]])
    with quiet():
        estimator = fitted(model, x, Y)
    with pytest.raises((NotPositiveDefinite, PrecisionLost), match="drop features"):
        Eraser(estimator).fit(x, Y)


def test_classes_that_nothing_mixes_without_a_penalty():
    """There is no minimum: refused, or nothing is claimed."""
    y = (X[:, 0] > 0.5).astype(int)
    with quiet():
        estimator = fitted(LogisticRegression(C=INF, max_iter=10_000), X, y)
    try:
        eraser: Any = Eraser(estimator).fit(X, y)
        eraser.erase(X[:1], y[:1])
    except (NotPositiveDefinite, PrecisionLost, Refused):
        return
    assert np.isinf(eraser.distance_bound_)
    assert eraser.outcome_.verdict == "caution"


def test_data_that_is_not_the_models():
    """A class that has no sample; other data is seen by the gradient."""
    with pytest.raises(InvalidData, match="no sample of class 1"):
        Eraser(fitted(tight(), X, Y)).fit(X[Y == 0], Y[Y == 0])
    eraser: Any = Eraser(fitted(tight(), X, Y)).fit(X, 1 - Y)
    with refused(eraser, Refused, "not near the minimum"):
        eraser.erase(X[:1], 1 - Y[:1])


def test_a_model_far_from_its_minimum_is_brought_there_first():
    model = fitted(tight(), X, Y)
    model.coef_ = model.coef_ * 1.3
    eraser: Any = Eraser(model).fit(X, Y)
    eraser.erase(X[:1], Y[:1])
    assert any("not at the minimum" in reason for reason in eraser.outcome_.reasons)
    model.coef_, model.intercept_ = model.coef_ * 0.1, model.intercept_ * 0.1
    eraser.fit(X, Y)
    with refused(eraser, Refused, "refine"):
        eraser.erase(X[:1], Y[:1])
    eraser.refine(X, Y, steps=20)
    eraser.erase(X[:1], Y[:1])
    assert not any("minimum" in reason for reason in eraser.outcome_.reasons)


@pytest.mark.parametrize(
    "model", [tight(), tight(class_weight="balanced"), OneVsRestClassifier(tight()), Ridge()], ids=repr
)
def test_too_little_memory(model):
    with pytest.raises(DoesNotFit, match="memory_budget"):
        eraser_of(model, THREE.x, THREE.y, memory_budget=100)
    eraser_of(model, THREE.x, THREE.y, memory_budget="1MiB")


def test_a_failed_part_leaves_the_parts_before():
    eraser = Eraser(fitted(tight(), X, Y)).partial_fit(X[:60], Y[:60])
    with refused(eraser, InvalidData, "NaN"):
        eraser.partial_fit(put(NAN), Y[:3])
    with refused(eraser, InvalidData, "none of"):
        eraser.partial_fit(X[60:63], [0, 1, 7])


def test_a_failed_fit_leaves_the_fit_before():
    eraser = eraser_of()
    with refused(eraser, InvalidData, "NaN"):
        eraser.fit(put(NAN), Y[:3])
    before = copy.deepcopy(eraser)
    assert refits.same(before.erase(X[:2], Y[:2]), eraser.erase(X[:2], Y[:2]))


def test_the_class_that_would_be_left_is_called_by_its_name():
    y = np.where(Y, "yes", "no")
    for model in (tight(), OneVsRestClassifier(tight())):
        eraser = eraser_of(model, X, y)
        with refused(eraser, InvalidData, "Only the class 'yes' would be left"):
            eraser.erase(X[Y == 0], y[Y == 0])


@pytest.mark.parametrize("y", [[1, 0], [[1, 0], [1]], [[1, 0, 1]] * 2, [[1, 5]] * 2, [[[1]]] * 2], ids=str)
def test_several_outputs_that_cannot_be(y):
    both = np.stack([Y, 1 - Y], axis=1)
    eraser = eraser_of(MultiOutputClassifier(tight()), X, both)
    with refused(eraser, InvalidData, "y"):
        eraser.erase(X[:2], y)


@pytest.mark.parametrize("kind", ["indicators", "labels"])
def test_one_versus_rest_refuses_strangers(kind):
    y = np.stack([Y, X[:, 0] > 0.5], axis=1).astype(int) if kind == "indicators" else THREE.y
    x = X if kind == "indicators" else THREE.x
    eraser = eraser_of(OneVsRestClassifier(tight()), x, y)
    bad = [[[1]], [[1, 0, 1]], [[2, 0]]] if kind == "indicators" else [[3], ["a"], [-1]]
    for one in bad:
        with refused(eraser, InvalidData, None):
            eraser.erase(X[:1], np.array(one))
    for row in range(20):  # all of them, none of them
        eraser.erase(x[row : row + 1], y[row : row + 1])
