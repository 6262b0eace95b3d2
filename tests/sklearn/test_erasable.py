"""ErasableLogisticRegression: scikit-learn's own in every respect, with samples that can be taken out again."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from ssse.errors import InvalidData, Refused
from ssse.sklearn import ErasableLogisticRegression, Eraser
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import parameters, quiet, refused, tight

GONE = np.array([0, 5, 44])
REST = np.setdiff1d(np.arange(300), GONE)
SETTINGS = [
    ({}, 2), ({}, 3), ({"C": 0.1, "class_weight": "balanced"}, 3), ({"fit_intercept": False}, 2),
    ({"solver": "liblinear"}, 2), ({"C": np.inf}, 2), ({"solver": "newton-cholesky", "class_weight": {0: 2.0}}, 3),
]  # fmt: skip


def erasable(**options) -> Any:
    return ErasableLogisticRegression(**tight(**options).get_params())


def own_of(settings: dict, classes: int, weighted: bool = False):
    data = refits.classes(k=classes)
    s = data.weights if weighted else None
    with quiet():
        return data, erasable(**settings).fit(data.x, data.y, s)


def test_scikit_learns_own_checks():
    with quiet():
        check_estimator(ErasableLogisticRegression(), on_fail="raise", on_skip=None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("settings", "classes"), SETTINGS, ids=str)
def test_it_is_a_logistic_regression_with_an_eraser(settings, classes, weighted):
    data, model = own_of(settings, classes, weighted)
    s = data.weights if weighted else None
    plain = refits.fitted(tight(**settings), data.x, data.y, s)
    assert refits.same(parameters(model), parameters(plain))
    eraser = Eraser(plain).fit(data.x, data.y, s)
    for rows in (GONE, np.arange(100, 180), np.array([9])):
        given = (data.x[rows], data.y[rows], None if s is None else s[rows])
        new = eraser.erase(*given)
        assert model.erase(*given) is model
        assert refits.same(parameters(model), parameters(new))
        assert (model.n_erased_, model.distance_bound_, model.leverage_) == (
            eraser.n_erased_, eraser.distance_bound_, eraser.leverage_
        )  # fmt: skip
        assert model.outcome_.erased + model.outcome_.k == eraser.n_erased_
    np.testing.assert_array_equal(model.predict_proba(data.x), new.predict_proba(data.x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_its_curvature_travels_with_it(copied):
    data, model = own_of({}, 3)
    other = copied(model.erase(data.x[GONE], data.y[GONE]))
    assert other.n_erased_ == 3
    with refits.unchanged(model):
        other.erase(data.x[[7]], data.y[[7]])
    assert refits.same(parameters(other), parameters(model.erase(data.x[[7]], data.y[[7]])))


def test_a_refit_resets_it():
    data, model = own_of({}, 2)
    first = copy.deepcopy(model)
    model.erase(data.x[GONE], data.y[GONE])
    model.fit(data.x, data.y)
    assert model.n_erased_ == 0
    assert not hasattr(model, "outcome_")
    assert refits.same(parameters(model), parameters(first))
    assert refits.same(model._eraser.sums_, first._eraser.sums_)
    assert not hasattr(clone(model), "n_erased_")


def test_a_failed_refit_leaves_no_curvature_of_another_model():
    data, model = own_of({}, 2)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(data.x * np.nan, data.y)
    assert not hasattr(model, "n_erased_")
    with pytest.raises(NotFittedError, match="fit"):
        model.erase(data.x[GONE], data.y[GONE])


@pytest.mark.parametrize("bad", ["nan", "label", "all", "stranger", "class"])
def test_what_is_refused_changes_nothing(bad):
    data, model = own_of({}, 2)
    model.erase(data.x[[9]], data.y[[9]])
    across = np.linalg.svd(model.coef_)[2][1]
    x, y, error = {
        "nan": (data.x[:1] * np.nan, data.y[:1], InvalidData),
        "label": (data.x[:1], [5], InvalidData),
        "all": (data.x, data.y, InvalidData),
        "stranger": (1e5 * across[None], [0], Refused),
        "class": (data.x[np.delete(data.y == 1, 9)[:300].nonzero()], [1] * int((data.y == 1).sum() + 1), InvalidData),
    }[bad]
    with refused(model, error, None):
        model.erase(x, y)
    model.erase(data.x[GONE], data.y[GONE])
    assert model.n_erased_ == 4


def test_it_is_not_erased_from_before_fit():
    with pytest.raises(NotFittedError):
        ErasableLogisticRegression().erase([[1.0]], [0])


def test_it_keeps_its_parameters_and_its_class():
    data = refits.classes(k=3)
    model = erasable(C=0.3).fit(data.x, data.y)
    before = model.get_params()
    model.erase(data.x[GONE], data.y[GONE])
    assert model.get_params() == before
    assert type(model) is ErasableLogisticRegression
    assert vars(model)["n_features_in_"] == 4
    assert set(LogisticRegression().get_params()) == set(before)


def test_no_copy_of_the_model_before_is_kept():
    data, model = own_of({}, 3)
    secrets = {float(one) for one in parameters(model)}
    model.erase(data.x[GONE], data.y[GONE])
    for where, array in refits.arrays_in(model):
        if array.dtype.kind == "f":
            assert not secrets & set(np.ravel(array).tolist()), where


def test_it_does_not_grow():
    """The curvature once, however often it is asked: no copy of the model hangs in it."""
    data, model = own_of({}, 3)
    sizes = []
    for row in range(20):
        model.erase(data.x[[row]], data.y[[row]])
        sizes.append(len(pickle.dumps(model)))
    assert max(sizes) - min(sizes) < 900  # what the outcome has to say is longer or shorter


def test_erasing_copies_no_curvature(monkeypatch):
    """A deep copy of the model must not take the sums along: they are the largest thing there is."""
    data = refits.classes(d=40)
    model = ErasableLogisticRegression().fit(data.x, data.y)
    copied, deepcopy = [], copy.deepcopy

    def counting(one):
        copied.append(len(pickle.dumps(one)))
        return deepcopy(one)

    monkeypatch.setattr(copy, "deepcopy", counting)
    model.erase(data.x[GONE], data.y[GONE])
    assert copied
    assert max(copied) < len(pickle.dumps(model)) / 2


def test_in_the_company_of_others():
    data = refits.classes(k=2)
    with quiet():
        pipeline = make_pipeline(StandardScaler(), ErasableLogisticRegression())
        assert cross_val_score(pipeline, data.x, data.y, cv=3).min() > 0.6
        search = GridSearchCV(ErasableLogisticRegression(), {"C": [0.1, 1.0]}, cv=2).fit(data.x, data.y)
    best = search.best_estimator_
    assert best.erase(data.x[GONE], data.y[GONE]).n_erased_ == 3
    several = OneVsRestClassifier(ErasableLogisticRegression()).fit(data.x, refits.classes(k=3).y)
    assert np.isfinite(Eraser(several).fit(data.x, refits.classes(k=3).y).distance_bound_)


def test_a_class_vanishes_in_place():
    data, model = own_of({}, 3)
    rows = data.y == 1
    model.erase(data.x[rows], data.y[rows])
    assert model.classes_.tolist() == [0, 2]
    assert model.coef_.shape == (1, 4)
    assert set(model.predict(data.x)) <= {0, 2}
    assert model.erase(data.x[~rows][:2], data.y[~rows][:2]).n_erased_ == rows.sum() + 2


def test_sparse_features():
    data = refits.classes()
    x = sparse.csr_matrix(data.x)
    model = erasable().fit(x, data.y).erase(x[GONE], data.y[GONE])
    first = refits.fitted(tight(), data.x, data.y)
    np.testing.assert_allclose(parameters(model), refits.one_step(first, data.without(GONE)), atol=1e-6)
