"""Erasing ten samples from a scikit-learn model, per request, against refitting it warm and cold.

Synthetic: x normal, independent features; labels from a logistic model whose score has a standard deviation of 2.
LogisticRegression with C = 1, at its minimum. Requests of ten samples each come as a stream, and every one changes the
held inverse for the next. A refit leaves out the first request's samples, by

    warm            lbfgs at scikit-learn's default tolerance of 1e-4, from the fitted coefficients (warm_start=True)
    cold            scikit-learn's defaults (lbfgs) from zero, or newton-cholesky where that is faster
    warm, as near   the fastest warm start that comes as near to the new minimum as the erased model is: lbfgs at
                    tolerances from 1e-4 down to 1e-10, or newton-cholesky at 1e-4

A warm start at the default tolerance may find the gradient small enough before its first step, and return the model
with the samples still in it: therefore the distances, ‖θ − θ₋S‖/‖θ* − θ₋S‖, 0 = retrained, 1 = nothing erased. θ₋S is
found by `Eraser.refine` and judged by its gradient over the samples themselves.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier

from record import Report, run_alone
from ssse.errors import Refused
from ssse.sklearn import Eraser

SAMPLES, FEATURES = (1_000, 10_000, 100_000, 1_000_000), (10, 100, 500, 4096)
MOST_BYTES = 6e9  # of X
MOST_NEWTON = 2e11  # 2nd², operations of one of its steps: beyond, newton-cholesky cannot win and is not tried
K, REQUESTS = 10, 10  # samples of a request; requests of the stream in every round
ROUNDS, ENOUGH = 3, 4.0  # of every refit: rounds, or as many as fit into that many seconds
DEFAULT, TOLERANCES = 1e-4, tuple(10.0**-e for e in range(4, 11))
STREAM, COMPARED = 1_000, 100
HEADLINE = (100_000, 500)
COLUMNS = (
    "model", "Eraser.fit, s", "erase, ms", "warm, s", "cold, s", "warm, as near, s", "× warm", "× cold", "× as near",
    "pays after",
)  # fmt: skip


@dataclass
class Case:
    """One problem, its last samples to be forgotten; seconds and distances of everything tried."""

    name: str
    x: np.ndarray
    y: np.ndarray
    model: Any
    fit: float = 0.0
    requests: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    distance: dict[str, float] = field(default_factory=dict)
    gradient: float = 0.0
    near: str = ""
    cold: str = ""
    proved: int = 0
    refused: bool = False

    @property
    def erase(self) -> float:
        return float(np.median(self.requests))

    def cells(self) -> list[Any]:
        warm, cold = self.seconds.get("warm"), self.seconds[self.cold]
        near = self.seconds.get(self.near)
        ratios = [f"{seconds / self.erase:,.0f}" if seconds else "–" for seconds in (warm, cold, near)]
        pays = self.fit / max((warm or cold) - self.erase, 1e-12)
        return [
            self.name,
            self.fit,
            1e3 * self.erase,
            "–" if warm is None else warm,
            cold,
            "–" if near is None else near,
            *ratios,
            f"{int(np.ceil(pays)):,}" if (warm or cold) > self.erase else "never",
        ]


def main(_: Path) -> None:
    report = Report("sklearn_speed", "Erasing from scikit-learn models against refitting them")
    tables: dict[str, list[Case]] = {"Binary, n × d": [], "Other models": []}
    left_out = []
    for d in FEATURES:
        for n in SAMPLES:
            if 8 * n * d > MOST_BYTES:
                left_out.append(f"{n:,} × {d:,} ({8e-9 * n * d:.0f} GB)")
                continue
            tables["Binary, n × d"].append(measured(binary(n, d), warm_binary))
    tables["Other models"] += [
        measured(binary(*HEADLINE, correlated=0.9), warm_binary),
        measured(classes(100_000, 50, 10), warm_binary),
        measured(outputs(10_000, 100, 40), warm_outputs),
        measured(least_squares(*HEADLINE), None),
    ]
    for title, cases in tables.items():
        report.table(f"{title}; requests of {K}, medians", COLUMNS, [case.cells() for case in cases])
    every = [case for cases in tables.values() for case in cases]
    report.table(
        "Distance to the new minimum, over that of the original model",
        ("model", "erased", "warm", "cold", "warm, as near", "which", "requests proved"),
        [
            [
                case.name,
                case.distance["erased"],
                case.distance.get("warm", "–"),
                case.distance[case.cold],
                case.distance.get(case.near, "–"),
                case.near or "none",
                f"{case.proved} of {len(case.requests)}" + ", then refused" * case.refused,
            ]
            for case in every
        ],
    )
    late, fresh = stream()
    report.table(
        f"{STREAM:,} requests of one sample, n = 10,000, d = 200",
        ("last hundred, ms", "first hundred, ms", "ratio"),
        [(1e3 * late, 1e3 * fresh, late / fresh)],
    )
    headline = next(case for case in every if case.name == name_of(*HEADLINE))
    what = "n = 100,000, d = 500, ten samples: faster than a refit, "
    report.at_least(what + "warm", headline.seconds["warm"] / headline.erase, 50, "×")
    if headline.near:
        report.at_least(what + "warm and as near", headline.seconds[headline.near] / headline.erase, 50, "×")
    report.at_least(what + "cold", headline.seconds[headline.cold] / headline.erase, 50, "×")
    report.at_most(f"{STREAM:,} requests: time of the last hundred against the first", late / fresh, 1.1, "×")
    report.notes += [
        "Erase: the median of a stream of 31 requests (of 1,000 samples: 7) between the rounds of the refits, the "
        "update of the held inverse in it. Pays after: so many requests until Eraser.fit has cost less than warm "
        "refits at the default tolerance (of Ridge: cold ones).",
        "Which: the solver and tolerance that came as near as the erased model; none: no tolerance did. Requests "
        "proved: for how many of the stream distance_bound_ was finite; a stream that is refused has left the "
        "curvature it was fitted with too far behind, and ends there. Ridge is solved directly: no warm start.",
        f"Left out, X being above {MOST_BYTES / 1e9:.0f} GB: {', '.join(left_out) or 'nothing'}. newton-cholesky is "
        f"not tried above {MOST_NEWTON:.0e} operations a step. Largest gradient left at any θ₋S, over what the "
        f"request's samples add: {max(case.gradient for case in every):.0e}.",
        "The first hundred requests to a fresh copy take turns with the last hundred of the thousand.",
    ]
    report.numbers = {
        case.name: {"fit": case.fit, "requests": case.requests, "seconds": case.seconds, "distance": case.distance}
        for case in every
    }
    report.finish()


def measured(case: Case, warm: Callable[..., Any] | None) -> Case:
    """Erasing, then refits in turn; `warm(case, solver, tolerance)` fits on from the original model."""
    print(f"{case.name} …", flush=True)
    x, y, original = case.x[:-K], case.y[:-K], parameters(case.model)
    started = time.perf_counter()
    eraser = Eraser(case.model).fit(case.x, case.y)
    case.fit = time.perf_counter() - started
    erased = erase_next(case, eraser)
    first = copy.copy(eraser)
    truth = parameters(first.refine(x, y, steps=20))
    case.gradient = gradient_left(case, first.estimator_)
    moved = np.linalg.norm(original - truth)

    def distance(model: Any) -> float:
        return float(np.linalg.norm(parameters(model) - truth) / moved)

    case.distance["erased"] = distance(erased)
    del first
    newton = 2 * x.shape[0] * x.shape[1] ** 2 * _outputs(case) <= MOST_NEWTON and not isinstance(case.model, Ridge)
    opponents: dict[str, Callable[[], Any]] = {"cold": lambda: plain(case.model).fit(x, y)}
    if newton:
        opponents["cold, newton"] = lambda: plain(case.model, solver="newton-cholesky").fit(x, y)
    if warm is not None:
        opponents["warm"] = lambda: warm(case, "lbfgs", DEFAULT)
        near = (t for t in TOLERANCES if distance(warm(case, "lbfgs", t)) <= case.distance["erased"])
        if (tolerance := next(near, None)) is not None and tolerance < DEFAULT:
            opponents[f"lbfgs, {tolerance:.0e}"] = lambda: warm(case, "lbfgs", tolerance)
        if newton:
            opponents["newton-cholesky"] = lambda: warm(case, "newton-cholesky", DEFAULT)
    requests = range(min(REQUESTS, max(1, len(x) // 450)))
    seconds, models = in_turn(opponents, lambda: [erase_next(case, eraser) for _ in requests])
    case.seconds |= seconds
    case.distance |= {key: distance(model) for key, model in models.items()}
    case.cold = min((key for key in seconds if key.startswith("cold")), key=seconds.__getitem__)
    warmed = [key for key in seconds if not key.startswith("cold")]
    reached = [key for key in warmed if case.distance[key] <= max(1.01 * case.distance["erased"], 1e-9)]
    case.near = min(reached, key=seconds.__getitem__, default="")
    case.x = case.y = np.zeros(0)  # a few gigabytes
    return case


def erase_next(case: Case, eraser: Eraser) -> Any:
    """The next request of the stream, timed: the last K samples of those that are still there."""
    if case.refused:
        return None
    last = len(case.x) - K * len(case.requests)
    x, y = case.x[last - K : last], case.y[last - K : last]
    started = time.perf_counter()
    try:
        erased = eraser.erase(x, y)
    except Refused:
        case.refused = True
        return None
    case.requests.append(time.perf_counter() - started)
    case.proved += bool(np.isfinite(eraser.distance_bound_))
    return erased


def in_turn(
    functions: dict[str, Callable[[], Any]], between: Callable[[], Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each, and what it returned; in every round each that is not out of time has its turn."""
    took: dict[str, list[float]] = {key: [] for key in functions}
    found = {}
    for _ in range(ROUNDS):
        between()
        for key, function in functions.items():
            if sum(took[key]) + (took[key] or [0.0])[-1] <= ENOUGH:
                started = time.perf_counter()
                found[key] = function()
                took[key].append(time.perf_counter() - started)
    return {key: float(np.median(values)) for key, values in took.items()}, found


def warm_binary(case: Case, solver: str, tolerance: float) -> LogisticRegression:
    return continued(case.model, case.x[:-K], case.y[:-K], solver, tolerance)


def warm_outputs(case: Case, solver: str, tolerance: float) -> MultiOutputClassifier:
    """MultiOutputClassifier passes no warm start on: one output after another."""
    new = copy.deepcopy(case.model)
    new.estimators_ = [
        continued(part, case.x[:-K], own, solver, tolerance)
        for part, own in zip(case.model.estimators_, case.y[:-K].T, strict=True)
    ]
    return new


def continued(model: LogisticRegression, x: np.ndarray, y: np.ndarray, solver: str, tolerance: float) -> Any:
    new = copy.deepcopy(model)
    return new.set_params(warm_start=True, solver=solver, tol=tolerance, max_iter=10_000).fit(x, y)


def plain(model: Any, **settings: Any) -> Any:
    """The same estimator with scikit-learn's own solver and tolerance."""
    if isinstance(model, MultiOutputClassifier):
        return MultiOutputClassifier(LogisticRegression(max_iter=10_000, **settings))
    return Ridge(alpha=1.0) if isinstance(model, Ridge) else LogisticRegression(max_iter=10_000, **settings)


def binary(n: int, d: int, correlated: float = 0.0) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    name = name_of(n, d)
    if correlated:  # neighbours by that much
        for j in range(1, d):
            x[:, j] = correlated * x[:, j - 1] + (1 - correlated**2) ** 0.5 * x[:, j]
        name += f", neighbours correlated by {correlated}"
    scores = x @ rng.standard_normal(d)
    y = (rng.random(n) < expit(scores * (2 / scores.std()))).astype(np.int64)
    return Case(name, x, y, at_minimum(x, y))


def classes(n: int, d: int, count: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    scores = x @ rng.standard_normal((d, count)) * (2 / d**0.5)
    y = (softmax(scores, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return Case(f"{name_of(n, d)}, {count} classes (softmax)", x, y, at_minimum(x, y))


def outputs(n: int, d: int, count: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    y = (rng.random((n, count)) < expit(x @ rng.standard_normal((d, count)) * (2 / d**0.5))).astype(np.int64)
    model = MultiOutputClassifier(LogisticRegression()).fit(x, y)
    model.estimators_ = [at_minimum(x, own) for own in y.T]
    return Case(f"{name_of(n, d)}, {count} outputs (MultiOutputClassifier)", x, y, model)


def least_squares(n: int, d: int) -> Case:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    y = x @ rng.standard_normal(d) + rng.standard_normal(n)
    return Case(f"{name_of(n, d)}, Ridge", x, y, Ridge(alpha=1.0).fit(x, y))


def at_minimum(x: np.ndarray, y: np.ndarray) -> LogisticRegression:
    return LogisticRegression(tol=1e-8, max_iter=10_000).fit(x, y)


def name_of(n: int, d: int) -> str:
    return f"{n:,} × {d:,}"


def parameters(model: Any) -> np.ndarray:
    tables = []
    for part in parts_of(model):
        coef = np.atleast_2d(part.coef_)
        table = np.hstack([coef, np.broadcast_to(part.intercept_, len(coef))[:, None]])
        tables.append(table - table.mean(axis=0) if len(coef) > 2 else table)  # softmax: a shift changes nothing
    return np.concatenate([table.ravel() for table in tables])


def parts_of(model: Any) -> list[Any]:
    return list(getattr(model, "estimators_", [model]))


def gradient_left(case: Case, model: Any) -> float:
    """‖∇L₋S‖ at the model over ‖∇ Σ_S ℓ‖, the gradient that leaving S out has made, both by the samples themselves."""
    kept, gone = (slopes(model, case.x[part], case.y[part]) for part in (slice(None, -K), slice(-K, None)))
    ridge = parameters_as_slopes(model)
    return float(np.linalg.norm(kept + ridge) / np.linalg.norm(gone))


def slopes(model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Σ ∇ℓ, shape (d + 1, columns)."""
    if isinstance(model, Ridge):
        away = (model.predict(x) - y)[:, None]
    elif len(parts_of(model)) > 1:
        away = np.stack([part.predict_proba(x)[:, 1] for part in parts_of(model)], axis=1) - y
    elif len(model.classes_) == 2:
        away = (model.predict_proba(x)[:, 1] - y)[:, None]
    else:
        away = model.predict_proba(x) - np.eye(len(model.classes_))[y]
    return np.vstack([x.T @ away, away.sum(axis=0)])


def parameters_as_slopes(model: Any) -> np.ndarray:
    """The penalty's gradient, C and alpha being 1."""
    coef = np.vstack([np.atleast_2d(part.coef_) for part in parts_of(model)])
    return np.vstack([coef.T, np.zeros(len(coef))])


def stream() -> tuple[float, float]:
    """Seconds of a request among the last hundred of a thousand, and among the first of a fresh eraser, in turn."""
    case = binary(10_000, 200)
    eraser = Eraser(case.model).fit(case.x, case.y)
    fresh, turns = copy.copy(eraser), []

    def timed(which: Eraser, place: int) -> float:
        started = time.perf_counter()
        which.erase(case.x[[place]], case.y[[place]])
        return time.perf_counter() - started

    for place in range(STREAM - COMPARED):
        timed(eraser, place)
    for place in range(STREAM - COMPARED, STREAM):
        turns.append((timed(eraser, place), timed(fresh, place)))
    late, early = np.median(turns, axis=0)
    return float(late), float(early)


def _outputs(case: Case) -> int:
    """Blocks of the Hessian that Newton's method forms."""
    count = len(getattr(case.model, "classes_", ())) if len(parts_of(case.model)) == 1 else 0
    return count * (count + 1) // 2 if count > 2 else len(parts_of(case.model))


if __name__ == "__main__":
    run_alone(main, __doc__)
