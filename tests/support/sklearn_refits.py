"""Shared by the tests of ssse.sklearn: data, scikit-learn's own refits, and a dense float64 truth without cleverness.

The truth is written from scikit-learn's documentation: Σ sᵢ ℓᵢ(θ) + ½ Σ ridge θ², samples as they are, one model for
each column that scikit-learn fits on its own, Newton's method with a full matrix.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logsumexp, softmax
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_class_weight

BALANCED_BY_MASS = "sample_weight" in inspect.signature(compute_class_weight).parameters
TIGHT = {"lbfgs": 1e-10, "newton-cg": 1e-9, "newton-cholesky": 1e-11, "sag": 1e-10, "saga": 1e-10, "liblinear": 1e-10}


@contextmanager
def quiet() -> Iterator[None]:
    """scikit-learn warns of tolerances that we ask for, and of parameters that go away."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def unfitted(model: Any) -> Any:
    return clone(model)


def fitted(model: Any, x: Any, y: Any, sample_weight: Any = None) -> Any:
    """A copy, fitted."""
    with quiet():
        return unfitted(model).fit(x, y, **({} if sample_weight is None else {"sample_weight": sample_weight}))


def tight(**options: Any) -> LogisticRegression:
    solver = options.get("solver", "lbfgs")
    return LogisticRegression(**{"tol": TIGHT[solver], "max_iter": 20_000, **options})


@dataclass(frozen=True)
class Data:
    x: Any
    y: Any
    weights: np.ndarray

    def __len__(self) -> int:
        return self.x.shape[0]

    def part(self, rows: Any) -> Data:
        y = self.y.iloc[rows] if hasattr(self.y, "iloc") else np.asarray(self.y)[rows]
        return Data(self.x.iloc[rows] if hasattr(self.x, "iloc") else self.x[rows], y, self.weights[rows])

    def without(self, rows: Any) -> Data:
        return self.part(np.setdiff1d(np.arange(len(self)), rows))


def classes(n: int = 300, d: int = 4, k: int = 2, seed: int = 0, noise: float = 1.0, offset: float = 0.5) -> Data:
    """Overlapping classes of unequal sizes, and weights from ½ to 2; every class is there from the start."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.linspace(0.5, 2, d) + offset
    z = x @ rng.normal(size=(d, k)) + noise * rng.gumbel(size=(n, k)) + np.linspace(0, 1, k)
    y = z.argmax(axis=1)
    y[: 3 * k] = np.arange(3 * k) % k
    return Data(x, y, rng.uniform(0.5, 2, n))


def numbers(n: int = 300, d: int = 4, targets: int | None = None, seed: int = 0, noise: float = 0.3) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.linspace(0.5, 2, d) + 0.5
    shape = (n,) if targets is None else (n, targets)
    y = x @ rng.normal(size=(d, *shape[1:])) + 3 + noise * rng.normal(size=shape)
    return Data(x, y, rng.uniform(0.5, 2, n))


def linear_parts(model: Any) -> list[Any]:
    """The linear models in an estimator, in order."""
    if hasattr(model, "steps"):
        return linear_parts(model.steps[-1][1])
    return list(model.estimators_) if hasattr(model, "estimators_") else [model]


def parameters(model: Any) -> np.ndarray:
    """All coefficients and intercepts as scikit-learn stores them."""
    return np.concatenate(
        [np.concatenate([np.ravel(part.coef_), np.ravel(part.intercept_)]) for part in linear_parts(model)]
    ).astype(np.float64)


def distance(one: Any, other: Any) -> float:
    return float(np.linalg.norm(parameters(one) - parameters(other)))


def relative(one: Any, other: Any) -> float:
    return distance(one, other) / float(np.linalg.norm(parameters(other)))


def class_weights(model: Any, y: np.ndarray, sample_weight: np.ndarray | None) -> dict[Any, float]:
    """As the documentation has it: n/(classes · n_c), by weights of samples in some models."""
    there = np.unique(y)
    if model.class_weight is None:
        return {one: 1.0 for one in there}
    if isinstance(model.class_weight, dict):
        return {one: float(model.class_weight.get(one, 1.0)) for one in there}
    mass = np.ones(len(y))
    if sample_weight is not None and BALANCED_BY_MASS and isinstance(model, LogisticRegression | LinearSVC):
        mass = sample_weight
    return {one: mass.sum() / (len(there) * mass[y == one].sum()) for one in there}


@dataclass(frozen=True)
class Problem:
    """One objective; θ of shape (width, columns), columns being the classes of a softmax and else 1."""

    loss: str
    design: np.ndarray
    y: np.ndarray
    s: np.ndarray
    ridge: np.ndarray

    def value(self, theta: np.ndarray) -> float:
        z = self.design @ theta
        if self.loss == "softmax":
            each = logsumexp(z, axis=1) - z[np.arange(len(z)), self.y]
        elif self.loss == "logistic":
            each = np.logaddexp(0, z[:, 0]) - self.y * z[:, 0]
        elif self.loss == "squared":
            each = 0.5 * (z[:, 0] - self.y) ** 2
        else:
            each = np.maximum(0, 1 - self.y * z[:, 0]) ** 2
        return float(self.s @ each + 0.5 * (self.ridge[:, None] * theta**2).sum())

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        z = self.design @ theta
        if self.loss == "softmax":
            slope = softmax(z, axis=1) - np.eye(z.shape[1])[self.y]
        elif self.loss == "logistic":
            slope = expit(z) - self.y[:, None]
        elif self.loss == "squared":
            slope = z - self.y[:, None]
        else:
            slope = -2 * self.y[:, None] * np.maximum(0, 1 - self.y[:, None] * z)
        return self.design.T @ (self.s[:, None] * slope) + self.ridge[:, None] * theta

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        z, x = self.design @ theta, self.design
        size, columns = theta.shape
        if self.loss == "softmax":
            p = softmax(z, axis=1)
            out = np.zeros((size, columns, size, columns))
            for i in range(columns):
                for j in range(columns):
                    out[:, i, :, j] = x.T @ (x * (self.s * p[:, i] * ((i == j) - p[:, j]))[:, None])
            out = out.reshape(theta.size, theta.size)
        else:
            curvature = {
                "logistic": lambda: expit(z[:, 0]) * expit(-z[:, 0]),
                "squared": lambda: np.ones(len(z)),
                "squared_hinge": lambda: 2.0 * (self.y * z[:, 0] < 1),
            }[self.loss]()
            out = x.T @ (x * (self.s * curvature)[:, None])
        return out + np.diag(np.repeat(self.ridge, columns))

    def newton(self, theta: np.ndarray) -> np.ndarray:
        """H⁻¹∇L."""
        return self.solve(theta, self.gradient(theta).ravel())

    def solve(self, theta: np.ndarray, right: np.ndarray) -> np.ndarray:
        """H⁻¹v; of a softmax without the shift of all classes, which changes nothing."""
        hessian = self.hessian(theta)
        if self.loss == "softmax":
            shift = np.kron(np.eye(len(theta)), np.ones((theta.shape[1], theta.shape[1])))
            hessian = hessian + np.abs(hessian).max() * shift
        return np.linalg.solve(hessian, right).reshape(theta.shape)

    def minimum(self, theta: np.ndarray) -> np.ndarray:
        """Newton's method to the last place, halving steps that go up."""
        for _ in range(200):
            step, rate = self.newton(theta), 1.0
            before = self.value(theta)
            while rate > 1e-3 and self.value(theta - rate * step) > before + 1e-12 * abs(before):
                rate /= 2
            theta = theta - rate * step
            if np.linalg.norm(step) <= 1e-14 * np.linalg.norm(theta):
                break
        return theta


def problems_of(model: Any, data: Data, weighted: bool = False) -> list[Problem]:
    """What scikit-learn minimises when it fits a model with these settings to this data."""
    x = np.asarray(data.x.toarray() if sparse.issparse(data.x) else data.x, dtype=np.float64)
    design = np.hstack([x, np.ones((len(x), 1))]) if model.fit_intercept else x
    given = data.weights if weighted else None
    s = data.weights if weighted else np.ones(len(x))
    if isinstance(model, LinearRegression | Ridge):
        targets = np.asarray(data.y, dtype=np.float64).reshape(len(x), -1)
        alpha = np.broadcast_to(getattr(model, "alpha", 0.0), targets.shape[1])
        return [
            Problem("squared", design, targets[:, i], s, ridges(model, x.shape[1], alpha[i], 0))
            for i in range(targets.shape[1])
        ]
    y = np.asarray(data.y).ravel()
    there, of_class = np.unique(y), class_weights(model, y, given)
    both = s * np.array([of_class[one] for one in y])
    own = there[1:] if len(there) == 2 else there
    if isinstance(model, RidgeClassifier):
        ridge = ridges(model, x.shape[1], model.alpha, 0)
        return [Problem("squared", design, np.where(y == one, 1.0, -1.0), both, ridge) for one in own]
    if isinstance(model, LogisticRegression):
        strength = 0.0 if model.penalty is None else 1 / model.C
        liblinear = strength / model.intercept_scaling**2 if model.solver == "liblinear" else 0.0
        ridge = ridges(model, x.shape[1], strength, liblinear)
        if len(there) == 2:
            return [Problem("logistic", design, (y == own[0]) * 1.0, both, ridge)]
        return [Problem("softmax", design, np.searchsorted(there, y), both, ridge)]
    found = []
    for one in own:
        mine = y == one
        weight = both if len(there) == 2 else s * np.where(mine, of_class[one], 1.0)
        if isinstance(model, SGDClassifier):
            ridge = ridges(model, x.shape[1], 0.0 if model.penalty is None else model.alpha * len(x), 0)
            found.append(Problem("logistic", design, mine * 1.0, weight, ridge))
        else:
            ridge = ridges(model, x.shape[1], 1 / model.C, 1 / model.C / model.intercept_scaling**2)
            found.append(Problem("squared_hinge", design, np.where(mine, 1.0, -1.0), weight, ridge))
    return found


def ridges(model: Any, d: int, of_features: float, of_intercept: float) -> np.ndarray:
    return np.append(np.full(d, of_features), [of_intercept] * bool(model.fit_intercept)).astype(np.float64)


def thetas(model: Any) -> list[np.ndarray]:
    """The model's parameters, one array for each of its problems."""
    theta = np.atleast_2d(model.coef_).T.astype(np.float64)
    if model.fit_intercept:
        theta = np.vstack([theta, np.broadcast_to(model.intercept_, theta.shape[1])])
    whole = isinstance(model, LogisticRegression)
    return [theta] if whole else [theta[:, [i]] for i in range(theta.shape[1])]


def stored(model: Any, found: Sequence[np.ndarray]) -> np.ndarray:
    """As `parameters` orders them."""
    theta = np.hstack(list(found))
    if model.fit_intercept:
        return np.concatenate([theta[:-1].T.ravel(), theta[-1]])
    return np.concatenate([theta.T.ravel(), np.zeros(np.size(model.intercept_))])


def one_step(model: Any, rest: Data, weighted: bool = False) -> np.ndarray:
    """θ* − H₋S⁻¹ ∇L₋S(θ*)."""
    pairs = zip(problems_of(model, rest, weighted), thetas(model), strict=True)
    return stored(model, [at - problem.newton(at) for problem, at in pairs])


def minimum(model: Any, rest: Data, weighted: bool = False) -> np.ndarray:
    """θ₋S, to the last place; `model` gives the settings and the shape."""
    pairs = zip(problems_of(model, rest, weighted), thetas(model), strict=True)
    return stored(model, [problem.minimum(np.zeros_like(at)) for problem, at in pairs])


def gradient_norm(model: Any, rest: Data, weighted: bool = False) -> float:
    pairs = zip(problems_of(model, rest, weighted), thetas(model), strict=True)
    return float(np.sqrt(sum((problem.gradient(at) ** 2).sum() for problem, at in pairs)))


def arrays_in(thing: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """Every array that can be reached from an object, and where it hangs."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        yield path, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from arrays_in(value, f"{path}.{key}", seen)
    elif isinstance(thing, list | tuple | set | np.ndarray):
        for i, value in enumerate(thing):
            yield from arrays_in(value, f"{path}[{i}]", seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from arrays_in(vars(thing), path, seen)


def same(one: Any, other: Any) -> bool:
    """Bit for bit, through everything that is reached."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and one.dtype != object:
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | np.ndarray):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if sparse.issparse(one):
        return same(vars(one), vars(other))
    if hasattr(one, "__dict__") and not isinstance(one, type):
        return same(vars(one), vars(other))
    return bool(one == other) or (one != one and other != other) or pickle.dumps(one) == pickle.dumps(other)


@contextmanager
def unchanged(*things: Any) -> Iterator[None]:
    before = [copy.deepcopy(thing) for thing in things]
    yield
    assert all(same(thing, one) for thing, one in zip(things, before, strict=True))


@contextmanager
def refused(eraser: Any, error: type[Exception], match: str | None) -> Iterator[Any]:
    """The block raises `error` with such a message, and the eraser is bit for bit as before."""
    with unchanged(eraser), pytest.raises(error, match=match) as caught:
        yield caught
