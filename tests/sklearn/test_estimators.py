"""Every estimator, loss and weighting: the step against the dense truth, the result against scikit-learn's refit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ssse.sklearn import Eraser
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, fitted, parameters, quiet, tight

GONE = np.array([0, 13, 40, 41, 77])
SOLVERS = ["lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear"]
WEIGHTINGS = [(None, False), (None, True), ("balanced", False), ("balanced", True), ({0: 3.0, 1: 0.5}, True)]
every_weighting = pytest.mark.parametrize(("class_weight", "weighted"), WEIGHTINGS, ids=str)


def erased(model, data: Data, gone=GONE, weighted: bool = False, **options) -> tuple[Any, Any, Any]:
    """The fitted model, its eraser, and the model without some samples."""
    first = fitted(model, data.x, data.y, data.weights if weighted else None)
    eraser = Eraser(first, **options).fit(data.x, data.y, data.weights if weighted else None)
    part = data.part(gone)
    return first, eraser, eraser.erase(part.x, part.y, part.weights if weighted else None)


def refit(model, data: Data, gone=GONE, weighted: bool = False):
    rest = data.without(gone)
    return fitted(model, rest.x, rest.y, rest.weights if weighted else None)


def assert_step(model, data: Data, gone=GONE, weighted: bool = False, tolerance: float = 1e-9) -> tuple[Any, Any, Any]:
    """The new parameters are θ* − H₋S⁻¹∇L₋S(θ*)."""
    first, eraser, new = erased(model, data, gone, weighted)
    wanted = refits.one_step(first, data.without(gone), weighted)
    assert np.linalg.norm(parameters(new) - wanted) <= tolerance * np.linalg.norm(wanted)
    return first, eraser, new


def assert_near(model, data: Data, first, new, gone=GONE, weighted: bool = False, share: float = 0.25):
    """What is left to the refit is a small share of the way there."""
    wanted = refit(model, data, gone, weighted)
    assert refits.distance(new, wanted) < share * refits.distance(first, wanted)


def assert_exact(
    model, data: Data, gone=GONE, weighted: bool = False, tolerance: float = 1e-11
) -> tuple[Any, Any, Any]:
    first, eraser, new = erased(model, data, gone, weighted)
    wanted = refit(model, data, gone, weighted)
    assert refits.relative(new, wanted) < tolerance
    assert refits.relative(first, wanted) > 1e-4  # there was something to do
    assert eraser.outcome_.exact
    return eraser, new, wanted


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_logistic_regression_of_every_solver(solver, classes, intercept):
    if solver == "liblinear" and classes > 2:
        pytest.skip("liblinear fits no multinomial model")
    data, model = refits.classes(k=classes), tight(solver=solver, C=0.3, fit_intercept=intercept)
    first, _, new = assert_step(model, data, tolerance=1e-8)
    assert_near(model, data, first, new)
    assert type(new) is LogisticRegression
    np.testing.assert_allclose(new.predict_proba(data.x).sum(axis=1), 1)


@every_weighting
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("options", [{}, {"C": 0.01}, {"C": 50.0}, {"C": np.inf}, {"fit_intercept": False}], ids=str)
def test_logistic_regression_of_every_weighting(classes, class_weight, weighted, options):
    data = refits.classes(k=classes, n=400)
    model = tight(solver="newton-cholesky", class_weight=class_weight, **options)
    first, _, new = assert_step(model, data, weighted=weighted)
    assert_near(model, data, first, new, weighted=weighted)


@every_weighting
@pytest.mark.parametrize("scaling", [1.0, 5.0])
def test_liblinear_penalises_the_intercept(class_weight, weighted, scaling):
    data = refits.classes()
    model = tight(solver="liblinear", C=0.1, class_weight=class_weight, intercept_scaling=scaling)
    first, _, new = assert_step(model, data, weighted=weighted)
    assert_near(model, data, first, new, weighted=weighted)


def test_no_penalty_as_older_versions_write_it():
    data = refits.classes()
    with quiet():
        new = assert_step(tight(penalty=None), data)[2]
        assert refits.distance(new, erased(tight(C=np.inf), data)[2]) < 1e-6


def test_balanced_weights_change_for_everybody():
    """Half of a class goes, so the weights of all samples change: as large as the step itself."""
    data, model = refits.classes(), tight(class_weight="balanced")
    gone = np.flatnonzero(data.y == 1)[:60]
    first, _, new = assert_step(model, data, gone)
    assert_near(model, data, first, new, gone, share=0.4)
    frozen = refits.class_weights(first, data.y, None)
    stale = fitted(tight(class_weight=frozen), *(lambda rest: (rest.x, rest.y))(data.without(gone)))
    assert refits.distance(new, stale) > 0.1


@every_weighting
@pytest.mark.parametrize("classes", [2, 3])
def test_ridge_classifier_is_exact(classes, class_weight, weighted):
    assert_exact(RidgeClassifier(class_weight=class_weight), refits.classes(k=classes), weighted=weighted)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("targets", [None, 1, 3])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0, [0.1, 1.0, 10.0], [2.0, 2.0, 2.0]], ids=str)
def test_ridge_is_exact(targets, alpha, intercept, weighted):
    if isinstance(alpha, list):
        if targets != 3:
            pytest.skip("as many penalties as targets")
        alpha = np.array(alpha)
    data, model = refits.numbers(targets=targets), Ridge(fit_intercept=intercept).set_params(alpha=alpha)
    _, new, wanted = assert_exact(model, data, weighted=weighted)
    assert new.coef_.shape == wanted.coef_.shape
    assert np.shape(new.intercept_) == np.shape(wanted.intercept_)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("targets", [None, 2])
def test_linear_regression_is_exact(targets, intercept, weighted):
    model, data = LinearRegression(fit_intercept=intercept), refits.numbers(targets=targets)
    _, new, wanted = assert_exact(model, data, weighted=weighted)
    np.testing.assert_allclose(new.singular_, wanted.singular_, rtol=1e-10)
    assert new.rank_ == wanted.rank_


@every_weighting
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", [{}, {"average": True}, {"penalty": None}, {"fit_intercept": False}], ids=str)
def test_sgd_takes_the_step_of_its_objective(classes, class_weight, weighted, options):
    model = SGDClassifier("log_loss", alpha=0.1, class_weight=class_weight, random_state=0, max_iter=50, **options)
    assert_step(model, refits.classes(k=classes, n=400, d=3), weighted=weighted, tolerance=1e-8)


@pytest.mark.parametrize("average", [False, True])
def test_an_erased_sgd_model_goes_on_learning_from_where_it_is(average):
    data = refits.classes(k=3)
    model = SGDClassifier("log_loss", alpha=0.1, average=average, random_state=0, eta0=1e-9, learning_rate="constant")
    first = fitted(refits.unfitted(model).set_params(eta0=0.01), data.x, data.y).set_params(eta0=1e-9)
    new = Eraser(first).fit(data.x, data.y).erase(data.x[GONE], data.y[GONE])
    before = parameters(new)
    again = new.partial_fit(data.x[:50], data.y[:50])
    assert np.linalg.norm(parameters(again) - before) < 1e-4 * np.linalg.norm(parameters(first) - before)


@every_weighting
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("scaling", [1.0, 4.0])
def test_linear_svc(classes, class_weight, weighted, scaling):
    model = LinearSVC(C=0.05, tol=1e-10, max_iter=100_000, class_weight=class_weight, intercept_scaling=scaling)
    data = refits.classes(k=classes, n=400)
    first, eraser, new = assert_step(model, data, weighted=weighted)
    assert_near(model, data, first, new, weighted=weighted)
    assert np.isinf(eraser.distance_bound_)
    assert eraser.outcome_.verdict == "caution"


def test_an_svc_is_exact_where_no_sample_crosses_its_margin():
    data, model = refits.classes(k=2, noise=3.0), LinearSVC(C=1e-4, tol=1e-12, max_iter=100_000).set_params(dual=False)
    first, _, new = erased(model, data)
    wanted, rest = refit(model, data), data.without(GONE)
    sides = [(np.where(rest.y, 1, -1) * one.decision_function(rest.x) < 1) for one in (first, wanted)]
    assert np.array_equal(*sides)
    np.testing.assert_allclose(parameters(new), refits.minimum(new, rest), rtol=1e-11)
    assert refits.relative(new, wanted) < 1e-6  # liblinear's own tolerance


@pytest.mark.parametrize("kind", [list, np.asarray, pd.Series, lambda y: np.asarray(y)[:, None]])
@pytest.mark.parametrize("names", [None, ["cat", "dog", "newt"], [False, True], [-1.0, 1.0], [10, 2]], ids=str)
def test_labels_of_every_kind(kind, names):
    plain = refits.classes(k=3 if names is None else len(names))
    labels = plain.y if names is None else np.array(names)[plain.y]
    data, model = Data(plain.x, labels, plain.weights), tight()
    first = fitted(model, data.x, labels)
    eraser = Eraser(first).fit(data.x, kind(labels.tolist()))
    new = eraser.erase(data.x[GONE], kind(labels[GONE].tolist()))
    wanted = refits.one_step(first, data.without(GONE))
    np.testing.assert_allclose(parameters(new), wanted, atol=1e-9)
    assert set(new.predict(data.x)) <= set(labels.tolist())


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix, sparse.coo_array, np.asfortranarray, list])
@pytest.mark.parametrize("then", [np.asarray, sparse.csr_matrix, sparse.csc_array])
def test_features_of_every_form_in_any_order(form, then):
    """Fitted in one form and erased in another: it is the same sample."""
    data, model = refits.classes(offset=30.0), tight(C=0.01)
    first = fitted(model, data.x, data.y)
    new = Eraser(first).fit(form(data.x), data.y).erase(then(data.x[GONE]), data.y[GONE])
    wanted = refits.one_step(first, data.without(GONE))
    np.testing.assert_allclose(parameters(new), wanted, rtol=1e-8)


@pytest.mark.parametrize("model", [tight(), Ridge(), LinearRegression(), tight(solver="liblinear")], ids=repr)
def test_float32_stays_float32_and_its_rounding_is_counted(model):
    data = refits.classes(n=2000, d=3)
    narrow = Data(data.x.astype(np.float32), data.y.astype(np.int32), data.weights)
    with quiet():
        first, eraser, new = erased(model, narrow)
    assert new.coef_.dtype == first.coef_.dtype
    assert np.asarray(new.intercept_).dtype == np.asarray(first.intercept_).dtype
    rest = narrow.without(GONE)
    assert np.linalg.norm(parameters(new) - refits.minimum(new, rest)) <= eraser.distance_bound_
    np.testing.assert_allclose(parameters(new), refits.one_step(first, rest), rtol=1e-5)


def test_features_far_from_zero_and_of_unlike_sizes():
    """x̃ᵀx̃ would cancel to nothing in the data's own coordinates."""
    data = refits.classes(d=3)
    far = Data(data.x * np.array([1e-4, 1.0, 1e5]) + np.array([1.0, 1e5, 1e9]), data.y, data.weights)
    model = LinearRegression()
    near = erased(model, data)[2]
    new = erased(model, far)[2]
    np.testing.assert_allclose(new.predict(far.x), near.predict(data.x), atol=1e-6)


@pytest.mark.parametrize("size", [1e-6, 1e-8, 1e-12, 1e6])
@pytest.mark.parametrize("model", [Ridge(), tight(solver="newton-cholesky")], ids=repr)
def test_a_feature_that_is_small_beside_its_penalty_is_determined_by_it(model, size):
    data = refits.classes()
    data.x[:, 1] *= size
    assert_step(model, data)


def table(outputs: list[np.ndarray], n: int, seed: int = 3) -> tuple[Data, np.ndarray]:
    plain = refits.classes(n=n, seed=seed)
    rng = np.random.default_rng(seed)
    columns = [
        names[
            np.digitize(plain.x @ rng.normal(size=plain.x.shape[1]) + rng.logistic(size=n), np.arange(len(names) - 1))
        ]
        for names in outputs
    ]
    return plain, np.array(columns).T


@pytest.mark.parametrize(
    "inner", [tight(), tight(class_weight="balanced"), RidgeClassifier(), LinearSVC(tol=1e-9)], ids=repr
)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("names", [False, True])
def test_one_versus_rest(inner, classes, names):
    plain = refits.classes(k=classes)
    labels = np.array([f"c{i}" for i in range(classes)])[plain.y] if names else plain.y
    data, model = Data(plain.x, labels, plain.weights), OneVsRestClassifier(inner)
    with quiet():
        first, eraser, new = erased(model, data)
    for i, (old, part) in enumerate(zip(first.estimators_, new.estimators_, strict=True)):
        own = first.classes_[1 if classes == 2 else i]
        rest = Data(data.x, (labels == own).astype(int), data.weights).without(GONE)
        np.testing.assert_allclose(parameters(part), refits.one_step(old, rest), atol=1e-9)
    assert np.array_equal(new.classes_, first.classes_)
    assert new.score(data.x, labels) > 0.5
    assert (eraser.outcome_.n, eraser.outcome_.k) == (len(data), len(GONE))


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_one_versus_rest_of_indicators(kind):
    plain, y = table([np.array([0, 1])] * 3, 300)
    model = OneVsRestClassifier(tight())
    first = fitted(model, plain.x, y)
    new = Eraser(first).fit(plain.x, kind(y)).erase(plain.x[GONE], kind(y[GONE]))
    for i, (old, part) in enumerate(zip(first.estimators_, new.estimators_, strict=True)):
        rest = Data(plain.x, y[:, i], plain.weights).without(GONE)
        np.testing.assert_allclose(parameters(part), refits.one_step(old, rest), atol=1e-9)
    assert new.predict(plain.x).shape == y.shape


@pytest.mark.parametrize("frame", [False, True])
@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("names", [[[0, 1], [3, 4, 7]], [["a", "b"], ["b", "cd", "e", "f"]]], ids=["whole", "text"])
def test_several_outputs_of_unlike_classes(frame, pipeline, weighted, names):
    plain, y = table([np.array(one) for one in names], 400)
    given: Any = pd.DataFrame(y, columns=["one", "other"]) if frame else y
    model: Any = MultiOutputClassifier(tight(class_weight="balanced"))
    s = plain.weights if weighted and not pipeline else None
    if pipeline:
        model = make_pipeline(StandardScaler(), model)
    estimator = model.fit(plain.x, given, **({} if s is None else {"sample_weight": s}))
    eraser = Eraser(estimator).fit(plain.x, given, s)
    new = eraser.erase(plain.x[GONE], given.iloc[GONE] if frame else y[GONE], None if s is None else s[GONE])
    x = estimator[0].transform(plain.x) if pipeline else plain.x
    olds, news = refits.linear_parts(estimator), refits.linear_parts(new)
    for i, (old, part) in enumerate(zip(olds, news, strict=True)):
        rest = Data(x, np.array(y[:, i].tolist()), plain.weights).without(GONE)
        np.testing.assert_allclose(parameters(part), refits.one_step(old, rest, s is not None), atol=1e-9)
    assert new.predict(plain.x).shape == y.shape


@pytest.mark.parametrize("inner", [Ridge(), LinearRegression()], ids=repr)
def test_several_numbers(inner):
    assert_exact(MultiOutputRegressor(inner), refits.numbers(targets=3))


def test_a_pipeline_keeps_its_transformers_and_says_so():
    data, model = refits.classes(d=6), make_pipeline(StandardScaler(), PCA(3), tight())
    first, eraser, new = erased(model, data)
    assert type(new) is Pipeline
    assert list(new.named_steps) == list(first.named_steps)
    inside = Data(first[:-1].transform(data.x), data.y, data.weights).without(GONE)
    np.testing.assert_allclose(parameters(new), refits.one_step(first[-1], inside), atol=1e-10)
    assert any("transformers stay" in note for note in eraser.outcome_.notes)
    assert new[0] is not first[0]


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_a_pipeline_that_begins_with_texts(kind):
    rng = np.random.default_rng(0)
    words = np.array(["red", "blue", "tall", "small", "old", "new", "wet", "dry"])
    texts = [" ".join(rng.choice(words, 4)) for _ in range(200)]
    y = np.array(["red" in one for one in texts]) ^ (rng.random(200) < 0.2)
    first: Any = fitted(make_pipeline(TfidfVectorizer(), tight()), texts, y)
    new = Eraser(first).fit(kind(texts), y).erase(kind([texts[i] for i in GONE]), y[GONE])
    inside = Data(first[:-1].transform(texts), y, np.ones(200)).without(GONE)
    np.testing.assert_allclose(parameters(new), refits.one_step(first[-1], inside), atol=1e-10)
    assert new.predict(texts).shape == (200,)


def test_a_pipeline_of_one_step_stays_a_pipeline():
    data = refits.classes()
    eraser, new = erased(Pipeline([("only", tight())], verbose=True), data)[1:]
    assert type(new) is Pipeline
    assert new.verbose
    assert list(new.named_steps) == ["only"]
    assert not any("transformers" in reason for reason in eraser.outcome_.reasons)
    assert refits.distance(eraser.erase(data.x[1:2], data.y[1:2]), new) > 0


RETURNED = [
    tight(), tight(solver="liblinear"), RidgeClassifier(), Ridge(), LinearRegression(), LinearSVC(tol=1e-9),
    SGDClassifier("log_loss", random_state=0, alpha=0.1, average=True), OneVsRestClassifier(tight()),
    make_pipeline(StandardScaler(), tight()),
]  # fmt: skip


@pytest.mark.parametrize("model", RETURNED, ids=lambda model: type(model).__name__)
def test_the_returned_estimator_is_one_like_any_other(model):
    data = refits.classes(k=2)
    with quiet():
        first = fitted(model, data.x, data.y)
    eraser = Eraser(first)
    with refits.unchanged(first):
        eraser.fit(data.x, data.y)
        new = eraser.erase(data.x[GONE], data.y[GONE])
    assert type(new) is type(first)
    assert new.n_features_in_ == first.n_features_in_
    assert np.array_equal(pickle.loads(pickle.dumps(new)).predict(data.x), new.predict(data.x))
    assert refits.unfitted(new).get_params().keys() == new.get_params().keys()
    with quiet():
        assert np.isfinite(cross_val_score(new, data.x, data.y, cv=3)).all()
    assert not refits.same(first, new)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "model", [*RETURNED, SGDClassifier("log_loss", random_state=0, alpha=0.01)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_nothing_in_the_returned_estimator_is_of_the_old_model(model, policy, classes):
    data = refits.classes(k=classes)
    if classes == 3 and getattr(model, "solver", "") == "liblinear":
        pytest.skip("liblinear fits no multinomial model")
    with quiet():
        first, _, new = erased(model, data, policy=policy)
    old = [np.ravel(v) for part in refits.linear_parts(first) for v in (part.coef_, part.intercept_)]
    old += [np.ravel(part.singular_) for part in refits.linear_parts(first) if hasattr(part, "singular_")]
    secrets = {float(one) for v in old for one in v if one}
    for where, array in refits.arrays_in(new):
        if array.dtype.kind == "f":
            assert not secrets & set(np.ravel(array).astype(float).tolist()), where
