"""One request after another: order, grouping, counts, classes that vanish, and refining in between."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import LinearSVC

from ssse.errors import InvalidData, InvalidSetting
from ssse.sklearn import Eraser
from ssse.verdict import BOUNDS
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, fitted, parameters, quiet, refused, tight

PARTS = [np.array([0, 13]), np.array([40]), np.array([41, 77, 100, 101]), np.array([200, 201])]
ALL = np.concatenate(PARTS)


def eraser_of(model, data: Data, weighted: bool = False, **options) -> Any:
    s = data.weights if weighted else None
    with quiet():
        return Eraser(fitted(model, data.x, data.y, s), **options).fit(data.x, data.y, s)


def take(eraser: Any, data: Data, rows, weighted: bool = False) -> Any:
    part = data.part(rows)
    return eraser.erase(part.x, part.y, part.weights if weighted else None, override=BOUNDS)


SMOOTH = [
    (tight(), 2), (tight(class_weight="balanced"), 3), (tight(solver="liblinear"), 2),
    (SGDClassifier("log_loss", alpha=0.1, random_state=0), 3), (LinearSVC(C=0.05, tol=1e-9), 3),
    (OneVsRestClassifier(tight(class_weight="balanced")), 3),
]  # fmt: skip


@pytest.mark.parametrize(("model", "classes"), SMOOTH, ids=lambda one: type(one).__name__)
def test_jointly_any_order_and_grouping_is_one_request(model, classes):
    data = refits.classes(k=classes)
    whole = take(eraser_of(model, data, policy="joint"), data, ALL)
    for order in itertools.islice(itertools.permutations(PARTS), 0, 24, 5):
        eraser = eraser_of(model, data, policy="joint")
        for rows in order:
            take(eraser, data, rows)
        assert refits.relative(eraser.estimator_, whole) < 1e-10
    singles = eraser_of(model, data, policy="joint")
    for row in ALL:
        take(singles, data, [row])
    assert refits.relative(singles.estimator_, whole) < 1e-10
    assert singles.n_erased_ == len(ALL)


@pytest.mark.parametrize(("model", "classes"), SMOOTH[:3], ids=lambda one: type(one).__name__)
def test_rebased_it_is_near_and_no_further_from_the_refit(model, classes):
    data = refits.classes(n=600, k=classes)
    rebased = eraser_of(model, data)
    for rows in PARTS:
        take(rebased, data, rows)
    rest = data.without(ALL)
    wanted = fitted(model, rest.x, rest.y)
    once = take(eraser_of(model, data), data, ALL)
    assert refits.distance(rebased.estimator_, wanted) < 1.5 * refits.distance(once, wanted)
    assert rebased.n_erased_ == rebased.outcome_.erased + rebased.outcome_.k == len(ALL)
    assert rebased.outcome_.n - rebased.outcome_.k == len(rest)


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", [Ridge(), LinearRegression(), RidgeClassifier(class_weight="balanced")], ids=repr)
def test_least_squares_in_parts_is_least_squares_at_once(model, weighted, policy):
    data = refits.classes(k=3)
    eraser = eraser_of(model, data, weighted, policy=policy)
    for i, rows in enumerate(PARTS):
        new = take(eraser, data, rows, weighted)
        rest = data.without(np.concatenate(PARTS[: i + 1]))
        assert refits.relative(new, fitted(model, rest.x, rest.y, rest.weights if weighted else None)) < 1e-11


def test_a_thousand_single_requests_stay_exact():
    data = refits.numbers(n=1200, d=12)
    eraser = eraser_of(Ridge(), data)
    for row in range(1000):
        eraser.erase(data.x[row : row + 1], data.y[row : row + 1])
    wanted = fitted(Ridge(), data.x[1000:], data.y[1000:])
    assert refits.relative(eraser.estimator_, wanted) < 1e-10
    assert eraser.n_erased_ == 1000


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("model", [tight(), tight(class_weight="balanced"), Ridge()], ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_the_last_of_a_kind_goes_and_nobody_is_refused_for_it(model, policy, seed):
    """Of a feature that nobody has any more, rounding is left, and its sign is anybody's guess."""
    rng = np.random.default_rng(seed)
    kinds = np.minimum(rng.geometric(0.15, size=300) - 1, 25)
    x = np.hstack([np.eye(26)[kinds], rng.normal(size=(300, 2))])
    y = (x @ rng.normal(size=28) + rng.logistic(size=300) > 0).astype(int)
    data = Data(x, y, np.ones(300))
    eraser = eraser_of(model, data, policy=policy)
    for row in np.argsort(-kinds, kind="stable")[:60]:
        take(eraser, data, [row])
    assert eraser.n_erased_ == 60


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize(("model", "classes"), [(tight(), 2), (tight(class_weight="balanced"), 4)], ids=str)
def test_refining_arrives_at_the_refit(model, classes, policy):
    data = refits.classes(n=500, k=classes)
    eraser = eraser_of(model, data, policy=policy)
    take(eraser, data, ALL)
    rest = data.without(ALL)
    before = eraser.distance_bound_
    new = eraser.refine(rest.x, rest.y, steps=40)
    truth = refits.minimum(new, rest)
    gap = np.linalg.norm(parameters(new) - truth)
    assert gap < 1e-12 * np.linalg.norm(truth) + 1e-14
    assert gap <= eraser.distance_bound_ < 1e-6 * before
    assert eraser.outcome_.distance_bound == eraser.distance_bound_
    assert (eraser.outcome_.verdict, eraser.outcome_.k, eraser.outcome_.n) == ("ok", len(ALL), len(data))
    assert eraser.n_erased_ == len(ALL)
    once_more = take(eraser, data, [5, 6])
    left = data.without([*ALL, 5, 6])
    assert np.linalg.norm(parameters(once_more) - refits.minimum(new, left)) <= eraser.distance_bound_


def test_what_is_refined_must_be_what_remains():
    data = refits.classes()
    eraser = eraser_of(tight(), data)
    take(eraser, data, ALL)
    with refused(eraser, InvalidData, "remain"):
        eraser.refine(data.x, data.y)
    rest = data.without(ALL)
    with refused(eraser, InvalidData, "other classes"):
        eraser.refine(rest.x, 1 - rest.y)
    for steps in (0, -1, 1.5, "2"):
        with refused(eraser, InvalidSetting, "steps"):
            eraser.refine(rest.x, rest.y, steps=steps)


@pytest.mark.parametrize("model", [tight(), Ridge(), SGDClassifier("log_loss", alpha=0.1, random_state=0)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_data_in_parts_is_data_at_once(model, weighted):
    data = refits.classes(k=3 if not isinstance(model, Ridge) else 2)
    whole = eraser_of(model, data, weighted)
    parts = Eraser(whole.estimator)
    for rows in np.array_split(np.arange(len(data)), 7):
        part = data.part(rows)
        parts.partial_fit(part.x, part.y, part.weights if weighted else None)
    assert refits.distance(take(parts, data, ALL, weighted), take(whole, data, ALL, weighted)) < 1e-11
    if not whole.outcome_.exact:
        assert parts.distance_bound_ >= whole.distance_bound_ * (1 - 1e-6)


def test_a_part_after_a_request_is_refused_and_fit_begins_anew():
    data = refits.classes()
    eraser = eraser_of(tight(), data)
    eraser.partial_fit(data.x[:150], data.y[:150]).partial_fit(data.x[150:], data.y[150:])  # replaces what fit found
    assert eraser.sums_.samples == len(data)
    take(eraser, data, ALL)
    with refused(eraser, InvalidSetting, "already"):
        eraser.partial_fit(data.x, data.y)
    assert eraser.fit(data.x, data.y).n_erased_ == 0


def test_a_request_between_parts_is_of_what_came_so_far():
    """A refusal does not close the door: parts may still come."""
    data = refits.classes()
    eraser = Eraser(fitted(tight(), data.x, data.y)).partial_fit(data.x[:200], data.y[:200])
    with pytest.raises(InvalidData):
        eraser.erase(data.x[:1] * np.nan, data.y[:1])
    eraser.partial_fit(data.x[200:], data.y[200:])
    assert refits.distance(take(eraser, data, ALL), take(eraser_of(tight(), data), data, ALL)) < 1e-12


def test_two_erasers_of_one_model_do_not_touch_each_other():
    data = refits.classes()
    one = eraser_of(tight(), data)
    other = copy.deepcopy(one)
    with refits.unchanged(other):
        take(one, data, ALL)
    assert refits.same(parameters(take(other, data, ALL)), parameters(one.estimator_))


VANISHING = [
    tight(), tight(class_weight="balanced"), tight(C=0.01), RidgeClassifier(), RidgeClassifier(class_weight="balanced"),
    SGDClassifier("log_loss", alpha=0.1, random_state=0, class_weight="balanced"), LinearSVC(C=0.05, tol=1e-9),
    LinearSVC(C=0.05, tol=1e-9, class_weight="balanced"), OneVsRestClassifier(tight()),
    OneVsRestClassifier(RidgeClassifier()), tight(fit_intercept=False), tight(class_weight={0: 2.0, 2: 0.5}),
    RidgeClassifier(class_weight={1: 2.0}, fit_intercept=False),
]  # fmt: skip


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("classes", [4, 3])
@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("model", VANISHING, ids=repr)
def test_a_class_vanishes(model, classes, gone, policy):
    plain = refits.classes(n=400, k=classes)
    data = Data(plain.x, np.array([f"c{i}" for i in range(classes)])[plain.y], plain.weights)
    if isinstance(getattr(model, "class_weight", None), dict):
        data = plain
    rows = np.flatnonzero(plain.y == gone)
    eraser, rest = eraser_of(model, data, policy=policy), data.without(rows)
    new = take(eraser, data, rows)
    try:
        wanted = fitted(model, rest.x, rest.y)
    except ValueError:  # a weight for a class that is not there: scikit-learn would not fit it
        wanted = fitted(
            copy.deepcopy(model).set_params(class_weight=_without(model.class_weight, gone)), rest.x, rest.y
        )
    assert np.array_equal(new.classes_, wanted.classes_)
    assert [np.shape(p.coef_) for p in refits.linear_parts(new)] == [
        np.shape(p.coef_) for p in refits.linear_parts(wanted)
    ]
    assert np.shape(refits.linear_parts(new)[0].intercept_) == np.shape(refits.linear_parts(wanted)[0].intercept_)
    assert set(new.predict(data.x)) <= set(wanted.classes_)
    if "RidgeClassifier" in repr(model):
        assert refits.relative(new, wanted) < 1e-10
    elif not isinstance(model, SGDClassifier):
        assert (new.predict(rest.x) == wanted.predict(rest.x)).mean() > 0.9
    again = take(eraser, data, np.setdiff1d(np.arange(len(data)), rows)[:3])  # and it goes on
    assert np.array_equal(again.classes_, wanted.classes_)
    assert refits.distance(again, new) > 0
    assert eraser.n_erased_ == len(rows) + 3


def _without(weights: dict, gone: int) -> dict | None:
    return {key: value for key, value in weights.items() if key != gone} or None


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weight", [None, "balanced"])
@pytest.mark.parametrize("classes", [4, 3])
def test_from_where_a_class_vanished_refining_arrives_at_the_refit(classes, weight, intercept):
    """So the objective over the classes that are left is the right one, down to the penalty of two classes."""
    data = refits.classes(n=500, k=classes)
    rows = np.flatnonzero(data.y == 1)
    eraser = eraser_of(tight(class_weight=weight, fit_intercept=intercept, C=0.2), data)
    take(eraser, data, rows)
    rest = data.without(rows)
    new = eraser.refine(rest.x, rest.y, steps=200)
    np.testing.assert_allclose(parameters(new), refits.minimum(new, rest), atol=1e-8)


def test_a_class_that_hardly_counted_vanishes_as_in_a_refit():
    """p_v ≈ 0 everywhere else: what the first order leaves out is nothing."""
    data = refits.classes(n=600, k=3, noise=0.5)
    x = np.vstack([data.x, np.full((5, 4), 40.0) * [1, -1, 1, -1] + np.random.default_rng(0).normal(size=(5, 4))])
    y = np.append(data.y, [3] * 5)
    eraser = Eraser(fitted(tight(solver="newton-cholesky"), x, y)).fit(x, y)
    new = eraser.erase(x[600:], y[600:], override=BOUNDS)
    before = eraser.estimator.coef_[:3]
    wanted = fitted(tight(solver="newton-cholesky"), data.x, data.y)
    assert refits.distance(new, wanted) < 0.5 * np.linalg.norm(before - wanted.coef_)


@pytest.mark.parametrize("model", VANISHING[:-2], ids=repr)
def test_the_last_class_but_one_stays(model):
    data = refits.classes(k=2)
    eraser = eraser_of(model, data)
    with refused(eraser, InvalidData, "Only the class 1 would be left, and scikit-learn"):
        take(eraser, data, np.flatnonzero(data.y == 0))
    three = refits.classes(k=3)
    eraser = eraser_of(model, three)
    with refused(eraser, InvalidData, "Only the class"):
        take(eraser, three, np.flatnonzero(three.y != 1))
    take(eraser, three, np.flatnonzero(three.y == 2))
    with refused(eraser, InvalidData, "Only the class"):
        take(eraser, three, np.flatnonzero(three.y == 0))


def test_a_class_vanishes_from_one_output_alone():
    data = refits.classes(n=400, k=3)
    y = np.stack([data.y, (data.x[:, 0] > 0.5).astype(int)], axis=1)
    eraser = Eraser(fitted(MultiOutputClassifier(RidgeClassifier()), data.x, y)).fit(data.x, y)
    rows = np.flatnonzero(data.y == 0)
    new = eraser.erase(data.x[rows], y[rows], override=BOUNDS)
    rest = np.setdiff1d(np.arange(400), rows)
    wanted = fitted(MultiOutputClassifier(RidgeClassifier()), data.x[rest], y[rest])
    assert [one.tolist() for one in new.classes_] == [[1, 2], [0, 1]]
    assert refits.relative(new, wanted) < 1e-10
    assert np.array_equal(new.predict(data.x), wanted.predict(data.x))
