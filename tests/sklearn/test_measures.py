"""What a step says of itself: its own length, swing and strain, the verdict by them, and steps that are shortened."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from ssse.sklearn import Eraser, measures
from ssse.sklearn.measures import safe_share
from ssse.verdict import BOUNDS, TRUSTED_STRAIN
from tests.support import sklearn_refits as refits
from tests.support.sklearn_refits import Data, Problem, fitted, parameters, quiet, tight

GONE = np.array([3, 50, 51, 77, 120, 199])


def trace(problem: Problem, theta: np.ndarray) -> float:
    """Σ sᵢ tr hᵢ."""
    z = problem.design @ theta
    if problem.loss == "softmax":
        each = 1 - (softmax(z, axis=1) ** 2).sum(axis=1)
    elif problem.loss == "logistic":
        each = expit(z[:, 0]) * expit(-z[:, 0])
    else:
        each = 2.0 * (problem.y * z[:, 0] < 1)
    return float(problem.s @ each)


def dense_measures(model: Any, data: Data, rows: np.ndarray, weighted: bool) -> tuple[float, ...]:
    """due, swing, strain, stretch and bend of a first request, from all samples and full matrices."""
    rest, gone = data.without(rows), data.part(rows)
    own, off, steps, curved, curved_own, curved_step, taken, along, traces, changes = [], [], [], 0, 0, 0, 0, 0, 0, []
    every = (refits.problems_of(model, part, weighted) for part in (data, rest))
    forgotten = np.hstack([gone.x, np.ones((len(gone), 1))]) if model.fit_intercept else gone.x
    for whole, left, theta in zip(*every, refits.thetas(model), strict=True):
        after, settled = theta - left.newton(theta), theta - whole.newton(theta)
        own.append(after - settled)
        data_part = left.hessian(theta) - np.diag(np.repeat(left.ridge, theta.shape[1]))
        curved += max(float(u.ravel() @ data_part @ u.ravel()) for u in (after - settled, after - theta))
        curved_own += float((after - settled).ravel() @ data_part @ (after - settled).ravel())
        along += float(theta.ravel() @ left.hessian(theta) @ theta.ravel())
        traces += trace(left, theta)
        step = after - theta
        curved_step += float(step.ravel() @ data_part @ step.ravel())
        gone_part = whole.hessian(theta) - np.diag(np.repeat(whole.ridge, theta.shape[1])) - data_part
        taken += float(step.ravel() @ gone_part @ step.ravel())
        turned = [whole.gradient(at) - left.gradient(at) for at in (theta, after)]
        error = (turned[1] - turned[0]).ravel() - gone_part @ step.ravel()
        off.append(whole.solve(theta, error))
        steps.append(step)
        change = forgotten @ (after - theta)
        changes.append(np.ptp(change, axis=1) if change.shape[1] > 1 else np.abs(change[:, 0]))
    due = float(np.linalg.norm(refits.stored(model, own)))
    stretch = 0.5 * curved_own * float(np.linalg.norm(parameters(model))) / (along * due)
    lengths = [float(np.linalg.norm(refits.stored(model, part))) for part in (off, steps)]
    bend = lengths[0] / lengths[1] * curved_step / taken
    return due, float(np.quantile(np.max(changes, axis=0), 0.95)), math.sqrt(curved / traces), stretch, bend


MEASURED = [
    (tight(), 2), (tight(C=0.1), 4), (tight(class_weight="balanced"), 3), (tight(fit_intercept=False), 3),
    (tight(tol=3e-2), 2), (LinearSVC(C=0.1, tol=1e-9), 3),
]  # fmt: skip


@pytest.mark.parametrize("policy", ["rebase", "joint"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("model", "classes"), MEASURED, ids=str)
def test_measures_of_a_step_are_those_of_full_matrices(model, classes, weighted, policy):
    data = refits.classes(n=300, k=classes)
    given = (data.weights,) if weighted else ()
    first = fitted(model, data.x, data.y, *given)
    eraser: Any = Eraser(first, policy=policy).fit(data.x, data.y, *given)
    eraser.erase(data.x[GONE], data.y[GONE], *(part[GONE] for part in given))
    found = eraser.outcome_
    wanted = dense_measures(first, data, GONE, weighted)
    wanted_of = (found.due, found.swing, found.strain, found.stretch, found.bend)
    several = slice(4) if model.get_params().get("class_weight") else slice(5)  # bend: of weights as they were before
    np.testing.assert_allclose(wanted_of[several], wanted[several], rtol=1e-5, atol=1e-9)
    assert found.to_dict()["strain"] == found.strain


@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_strains_of_requests_in_a_row_add_up_until_the_curvature_is_taken_anew(policy, tmp_path):
    data = refits.classes(n=400, k=3)
    eraser: Any = Eraser(fitted(tight(), data.x, data.y), policy=policy).fit(data.x, data.y)
    strains = []
    for rows in np.array_split(np.arange(60), 6):
        eraser.erase(data.x[rows], data.y[rows])
        strains.append(eraser.outcome_.strain)
    assert np.all(np.diff(strains) > 0)
    assert strains[-1] > 3 * strains[0]
    eraser.save(tmp_path / "eraser")
    again: Any = Eraser.load(tmp_path / "eraser", eraser.estimator_)
    again.erase(data.x[60:62], data.y[60:62])
    assert again.outcome_.strain > strains[-1]
    eraser.refine(data.x[60:], data.y[60:])
    eraser.erase(data.x[60:62], data.y[60:62])
    assert eraser.outcome_.strain < strains[0]


def test_a_step_that_hardly_changes_scores_is_vouched_for_without_a_proof():
    """The bound is lost on small data; the model is as good as the refit all the same."""
    x, y = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    eraser: Any = Eraser(model).fit(x, y)
    new = eraser.erase(x[:3], y[:3])
    found = eraser.outcome_
    assert (found.verdict, found.reasons) == ("ok", ())
    assert not found.distance_bound <= 0.5 * found.due
    scaled = Data(model[0].transform(x)[3:], y[3:], np.ones(len(y) - 3))
    truth = refits.minimum(new[1], scaled)
    left, was = (np.linalg.norm(parameters(one[1]) - truth) for one in (new, model))
    assert left < 0.05 * was


def test_a_step_that_changes_scores_much_is_not():
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    eraser: Any = Eraser(fitted(tight(C=10), x, y)).fit(x, y)
    rows = np.flatnonzero(y == 1)[:35]
    eraser.erase(x[rows], y[rows])
    found = eraser.outcome_
    assert found.verdict == "caution"
    assert f"scores move by up to {found.swing:.2g} on the forgotten samples" in found.reasons[0]
    assert f"by {found.strain:.2g} on those that stay" in found.reasons[0]


def test_least_squares_needs_no_measure():
    data = refits.numbers()
    eraser: Any = Eraser(fitted(Ridge(), data.x, data.y)).fit(data.x, data.y)
    eraser.erase(data.x[:9], data.y[:9])
    assert (eraser.outcome_.swing, eraser.outcome_.strain, eraser.outcome_.verdict) == (None, None, "ok")
    assert "swing" not in str(eraser.outcome_)


RAISED = [
    (load_breast_cancer, 100.0, "half"), (load_breast_cancer, 10.0, "class"), (load_wine, 100.0, "half"),
    (load_wine, 1000.0, "class"), (load_iris, 100.0, "class"),
]  # fmt: skip


@pytest.mark.parametrize(("load", "strength", "how"), RAISED)
def test_no_step_ends_above_where_it_began(load, strength, how, monkeypatch):
    """Where all of it would."""
    x, y = load(return_X_y=True)
    data = Data(StandardScaler().fit_transform(x), y, np.ones(len(y)))
    rows = np.flatnonzero(y == 1)
    rows = rows[: len(rows) // 2] if how == "half" else rows[:-1]
    rest = data.without(rows)
    first = fitted(tight(C=strength, solver="newton-cholesky", tol=1e-8), data.x, y)
    monkeypatch.setattr("ssse.sklearn.eraser.TOO_FAR", math.inf)  # such steps are often refused as well

    def objective(model: Any) -> float:
        (problem,), (theta,) = refits.problems_of(model, rest), refits.thetas(model)
        return problem.value(theta)

    eraser: Any = Eraser(first).fit(data.x, y)
    new = eraser.erase(data.x[rows], y[rows], override=BOUNDS)
    assert objective(new) < objective(first)
    assert eraser.outcome_.share < 1
    assert eraser.outcome_.verdict == "caution"
    assert any("of the step was taken" in reason for reason in eraser.outcome_.reasons)
    whole: Any = Eraser(first, policy="joint").fit(data.x, y)  # where no step is shortened
    assert objective(whole.erase(data.x[rows], y[rows], override=BOUNDS)) > objective(first)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_shortened_step_is_bounded_and_the_next_request_finishes_it(classes, monkeypatch):
    data = refits.classes(n=2000, k=classes)
    first = fitted(tight(solver="newton-cholesky"), data.x, data.y)
    eraser, whole = (Eraser(first).fit(data.x, data.y) for _ in range(2))
    whole.erase(data.x[:20], data.y[:20])
    monkeypatch.setattr(measures, "safe_share", lambda swing, strain: 0.7)
    new = eraser.erase(data.x[:20], data.y[:20])
    step = parameters(whole.estimator_) - parameters(first)
    np.testing.assert_allclose(parameters(new) - parameters(first), 0.7 * step, atol=1e-9)
    rest = data.without(np.arange(20))
    assert np.linalg.norm(parameters(new) - refits.minimum(new, rest)) <= eraser.distance_bound_ < math.inf
    monkeypatch.setattr(measures, "safe_share", lambda swing, strain: 1.0)
    new = eraser.erase(data.x[20:22], data.y[20:22])
    whole.erase(data.x[20:22], data.y[20:22])
    assert refits.distance(new, whole.estimator_) < 0.02 * np.linalg.norm(step)
    left = data.without(np.arange(22))
    assert np.linalg.norm(parameters(new) - refits.minimum(new, left)) <= eraser.distance_bound_


def test_only_a_step_that_reaches_far_is_shortened():
    assert safe_share(100.0, 0.01) == safe_share(0.5, 10.0) == 1
    assert 0 < safe_share(50.0, 1.0) < safe_share(5.0, 1.0) < 1


def test_the_squared_hinge_is_never_vouched_for():
    data = refits.classes(n=1000)
    with quiet():
        eraser: Any = Eraser(fitted(LinearSVC(tol=1e-8), data.x, data.y)).fit(data.x, data.y)
    eraser.erase(data.x[:2], data.y[:2])
    assert eraser.outcome_.verdict == "caution"
    assert eraser.outcome_.strain < TRUSTED_STRAIN


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4])
def test_a_step_is_not_too_long_because_there_was_little_to_learn(share):
    """Labels by chance: θ is nearly 0, and what a share of one class has to change is longer."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(5000, 3)), generator.integers(0, 2, 5000)
    model = LogisticRegression(tol=1e-10, max_iter=1000).fit(x, y)
    ones = np.flatnonzero(y == 1)
    gone = ones[: round(share * len(ones))]
    eraser = Eraser(model).fit(x, y)
    erased = eraser.erase(x[gone], y[gone])
    stays = np.setdiff1d(np.arange(len(y)), gone)
    refit = LogisticRegression(tol=1e-10, max_iter=1000).fit(x[stays], y[stays])
    before, after, wanted = (np.append(one.coef_, one.intercept_) for one in (model, erased, refit))
    assert np.linalg.norm(after - before) > np.linalg.norm(before)
    assert np.linalg.norm(after - wanted) < 0.1 * np.linalg.norm(before - wanted)


def test_a_doubt_stays_until_the_curvature_is_taken_anew(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 4))
    scores = x @ (3 * rng.normal(size=4)) + 0.1 * rng.normal(size=600)
    y = (scores > 0).astype(int)
    eraser: Any = Eraser(fitted(tight(C=1e4), x, y)).fit(x, y)
    eraser.erase(x[:60], y[:60])
    assert eraser.outcome_.verdict == "caution"
    sure = 60 + np.argsort(-np.abs(scores[60:]))[:2]
    eraser.erase(x[sure[:1]], y[sure[:1]])
    assert any("An earlier request was not vouched for" in reason for reason in eraser.outcome_.reasons)
    eraser.save(tmp_path / "eraser")
    again: Any = Eraser.load(tmp_path / "eraser", eraser.estimator_)
    assert again.sums_.doubted
    stays = np.setdiff1d(np.arange(60, 600), sure[:1])
    eraser.refine(x[stays], y[stays], steps=20, curvature=False)
    assert eraser.sums_.doubted
    eraser.refine(x[stays], y[stays], steps=20)
    assert not eraser.sums_.doubted
