"""An erased scikit-learn estimator beside scikit-learn's own refit without the samples, taken to its minimum.

For 1, 10, 1 %, 10 % of the samples and a whole class: the distance ‖θ̂ − θ₋S‖/‖θ* − θ₋S‖ (0 = refit, 1 = nothing
erased; θ has the intercepts in it), what of it is proved (`distance_bound_`, in the same unit), how many predictions
agree, and seconds. Everything below was fixed before any result was seen:

    breast cancer, wine, diabetes   StandardScaler, C = 1 and alpha = 1
    digits                          X / 16, C = 1 and alpha = 1
    faces, pets, animals50          as in `ssse.paper.experiments`: faces with a mean squared norm of 1, the others
                                    standardised and divided by √1280, a random 70 % to train on; C = 1/(n · 1e-4), the
                                    weight decay there

θ* and θ₋S: scikit-learn's own fit, then the same estimator fitted on by Newton's method ("newton-cholesky", warm start)
to a tolerance of 1e-10; LinearSVC to 1e-10 in its primal form; least squares by scikit-learn's direct solvers. Seconds
of a refit are those of scikit-learn's default solver and tolerance, from zero. PCA, where there is one, is fitted once
and stays as it is. Random requests: the mean and the worst of five seeds, of the large data one. A whole class: each
class in turn, of the large data the first.

A class that is gone has no coefficients in the refit. θ* is then the original over the classes that stay: softmax
coefficients less their mean (a shift of all changes nothing), and where two classes stay, what scikit-learn fits to
two: the difference of both, or the second one's model against the rest.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from record import Report, run_alone
from ssse.errors import DoesNotFit, InvalidData, Refused
from ssse.sklearn import Eraser

DECAY = 1e-4
SEEDS, TOLERANCE = 5, 1e-10
ROUNDING = 1e-9  # of ‖θ‖: what a refit may be off by itself
ATTRIBUTES = 8  # every eighth of the faces': refits of all 40 to the minimum take an hour and a half
STILL = 1e-6  # of ‖θ‖: a refit that moved by less is the original, and no distance is measured
CLASS = "a class"
COLUMNS = (
    "estimator", "removed", "k", "distance", "worst", "proved", "holds", "leverage", "agreement, %", "worst, %",
    "erase, s", "refit, s",
)  # fmt: skip

Make = Callable[[], Any]


@dataclass(frozen=True)
class Data:
    """x, y: to train on. others: samples that agreement is measured on as well."""

    name: str
    x: np.ndarray
    y: np.ndarray
    how: str
    others: np.ndarray | None = None
    large: bool = False

    @property
    def classes(self) -> np.ndarray:
        return np.unique(self.y)

    @property
    def everything(self) -> np.ndarray:
        return self.x if self.others is None else np.concatenate([self.x, self.others])


@dataclass
class Row:
    """One estimator, one kind of request; lists over seeds or classes."""

    estimator: str
    removed: str
    samples: int
    k: list[int] = field(default_factory=list)
    distance: list[float] = field(default_factory=list)
    absolute: list[float] = field(default_factory=list)
    proved: list[float] = field(default_factory=list)
    holds: list[bool] = field(default_factory=list)
    leverage: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    erase: list[float] = field(default_factory=list)
    refit: list[float] = field(default_factory=list)
    exact: bool = False
    instead: str = ""

    @property
    def share(self) -> float:
        return max(self.k) / self.samples if self.k else math.inf

    @property
    def limit(self) -> float | None:
        """Of the distance; at random only."""
        if self.removed == CLASS or self.instead:
            return None
        return 0.05 if self.k[0] <= max(1, round(0.01 * self.samples)) else 0.2

    @property
    def mean(self) -> float:
        """Of the distances that could be measured."""
        known = [value for value in self.distance if math.isfinite(value)]
        return float(np.mean(known)) if known else math.nan

    def cells(self) -> list[Any]:
        if self.instead:
            return [self.estimator, self.removed, self.instead, *["–"] * (len(COLUMNS) - 3)]
        agreement = [f"{100 * np.mean(self.agreement):.2f}", f"{100 * min(self.agreement):.2f}"]
        low, high = min(self.k), max(self.k)
        return [
            self.estimator,
            self.removed,
            f"{low:,}" if low == high else f"{low:,}–{high:,}",
            self.mean if math.isfinite(self.mean) else "–",
            float(np.nanmax(self.distance)) if math.isfinite(self.mean) else "–",
            _proved(self.proved),
            "–" if not np.isfinite(self.proved).any() else f"{sum(self.holds)} of {len(self.holds)}",
            max(self.leverage),
            *(agreement if np.isfinite(self.agreement).all() else ("–", "–")),
            float(np.median(self.erase)),
            float(np.median(self.refit)),
        ]


def main(folder: Path) -> None:
    report = Report("sklearn_refits", "Erased scikit-learn estimators against scikit-learn's own refits")
    found: dict[str, list[Row]] = {}
    for data, estimators in subjects(folder, report):
        rows = found[data.name] = []
        for name, make in estimators.items():
            rows += measured(data, name, make)
        report.table(f"{data.name}: {data.how}", COLUMNS, [row.cells() for row in rows])
    tell(report, found)
    report.finish()


def subjects(folder: Path, report: Report) -> Iterator[tuple[Data, dict[str, Make]]]:
    """Each data set with its estimators, as scikit-learn fits them by default."""
    classifiers: dict[str, Make] = {
        "LogisticRegression": lambda: logistic(1.0),
        "OneVsRest, logistic": lambda: OneVsRestClassifier(logistic(1.0)),
        "RidgeClassifier": lambda: RidgeClassifier(alpha=1.0),
        "LinearSVC": lambda: LinearSVC(C=1.0),
    }
    for name, load in (("breast cancer", load_breast_cancer), ("wine", load_wine)):
        x, y = read(load)
        binary = len(np.unique(y)) == 2
        mine = {key: make for key, make in classifiers.items() if not (binary and key.startswith("OneVsRest"))}
        yield embedded(name, np.asarray(StandardScaler().fit_transform(x)), y, "standardised"), mine
    x, y = read(load_digits)
    yield embedded("digits", x / 16, y, "divided by 16"), classifiers
    x, y = read(load_diabetes)
    yield (
        embedded("diabetes", np.asarray(StandardScaler().fit_transform(x)), y, "standardised"),
        {"Ridge": lambda: Ridge(alpha=1.0), "LinearRegression": LinearRegression},
    )
    missing = [name for name in ("faces", "pets", "animals50") if not (folder / f"{name}.npz").is_file()]
    if missing:
        report.notes.append(f"Left out, since '--data' holds none of it: {', '.join(missing)}.")
    if "faces" not in missing:
        data, c = faces(folder)
        yield data, {"MultiOutput, logistic": lambda: MultiOutputClassifier(logistic(c))}
    for name in ("pets", "animals50"):
        if name not in missing:
            data, c = pictures(folder, name)
            yield data, of_pictures(data, c)


def read(load: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
    """Data that comes with scikit-learn."""
    return load(return_X_y=True)


def embedded(name: str, x: np.ndarray, y: np.ndarray, how: str) -> Data:
    return Data(name, x, y, f"{len(x):,} samples × {x.shape[1]} features, {how}")


def faces(folder: Path) -> tuple[Data, float]:
    with np.load(folder / "faces.npz") as stored:
        x = stored["features_u8"].astype(np.float64) * stored["scale"]
        y, split = stored["attributes"].astype(np.int64), stored["split"]
    train = split == 0
    x /= np.sqrt((x[train] ** 2).sum(axis=1).mean())
    n = int(train.sum())
    y = y[:, ::ATTRIBUTES]
    how = f"{n:,} samples × {x.shape[1]:,} features, {y.shape[1]} of 40 attributes, mean squared norm 1"
    return Data("faces", x[train], y[train], how, x[split == 2], large=True), 1 / (n * DECAY)


def pictures(folder: Path, name: str) -> tuple[Data, float]:
    """Of pets or animals50 a random 70 %, standardised on them and divided by √p."""
    with np.load(folder / f"{name}.npz") as stored:
        raw = stored["features"] if "features" in stored else stored["features_u8"] * stored["scale"]
        x, y = raw.astype(np.float64), stored["labels"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[: int(0.7 * len(x))], order[int(0.8 * len(x)) :]
    x = (x - x[train].mean(axis=0)) / np.maximum(x[train].std(axis=0), 1e-6) / x.shape[1] ** 0.5
    how = f"{len(train):,} samples × {x.shape[1]:,} features, {len(np.unique(y))} classes, standardised, divided by √p"
    return Data(name, x[train], y[train], how, x[test], large=True), 1 / (len(train) * DECAY)


def of_pictures(data: Data, c: float) -> dict[str, Make]:
    """One against the rest on 256 directions: 1,280 would be an hour of Newton's method, in refits."""

    def reduced(width: int) -> Callable[[Any], Pipeline]:
        pca = FrozenEstimator(PCA(width, svd_solver="covariance_eigh").fit(data.x))
        return lambda last: make_pipeline(pca, last)

    narrow, wide = reduced(64), reduced(256)
    return {
        "LogisticRegression": lambda: logistic(c),
        "LogisticRegression, PCA 64": lambda: narrow(logistic(c)),
        "OneVsRest, logistic, PCA 256": lambda: wide(OneVsRestClassifier(logistic(c))),
    }


def logistic(c: float) -> LogisticRegression:
    return LogisticRegression(C=c, max_iter=1000)


def measured(data: Data, name: str, make: Make) -> list[Row]:
    """All requests to one estimator; or one row, where its curvature does not fit into memory."""
    if data.large and name == "LogisticRegression":  # a few steps will do: what is asked is whether there is room
        few = make().set_params(max_iter=3, tol=1.0).fit(data.x, data.y)
        try:
            Eraser(few).fit(data.x, data.y)
        except DoesNotFit as error:
            return [Row(name, "–", len(data.x), instead=f"does not fit: {_needs(error)}")]
    original = make().fit(data.x, data.y)
    to_minimum(original, data.x, data.y)
    eraser = Eraser(original).fit(data.x, data.y)
    rows = []
    for removed, requests in requests_to(data):
        row = Row(name, removed, len(data.x), exact=_is_least_squares(original))
        for forget in requests:
            answer(row, data, make, original, copy.copy(eraser), forget)
            if row.instead:
                break
        rows.append(row)
    return rows


def requests_to(data: Data) -> list[tuple[str, list[np.ndarray]]]:
    n, seeds = len(data.x), range(1 if data.large else SEEDS)
    sizes = {"1": 1, "10": 10, "1 %": max(1, round(0.01 * n)), "10 %": round(0.1 * n)}
    orders = [np.random.default_rng(seed).permutation(n) for seed in seeds]
    found = [(name, [order[:k] for order in orders]) for name, k in sizes.items()]
    if data.name == "diabetes":
        return found
    if data.y.ndim == 2:  # everybody with the attribute that fewest have
        return [*found, (CLASS, [np.flatnonzero(data.y[:, data.y.sum(axis=0).argmin()])])]
    return [*found, (CLASS, [np.flatnonzero(data.y == one) for one in data.classes[: 1 if data.large else None]])]


def answer(row: Row, data: Data, make: Make, original: Any, eraser: Eraser, forget: np.ndarray) -> None:
    """One request, erased and refitted; the row takes in what came of it."""
    started = time.perf_counter()
    try:
        erased = eraser.erase(data.x[forget], data.y[forget])
    except InvalidData as error:
        row.instead = "refused: one class left" if "nly the class" in str(error) else f"refused: {error}"
        return
    except Refused as error:
        row.instead = f"refused: {error.diagnostics.reasons[0].split('.')[0]}"
        return
    seconds = time.perf_counter() - started
    keep = np.ones(len(data.x), dtype=bool)
    keep[forget] = False
    x, y = data.x[keep], data.y[keep]
    started = time.perf_counter()
    refit = make().fit(x, y)
    row.refit.append(time.perf_counter() - started)
    row.erase.append(seconds)
    to_minimum(refit, x, y)
    left = None if row.removed != CLASS else np.unique(y)
    truth = parameters(refit, left)
    moved, away = (np.linalg.norm(parameters(one, left) - truth) for one in (original, erased))
    row.k.append(len(forget))
    row.distance.append(float(away / moved) if moved > STILL * np.linalg.norm(truth) else math.nan)
    row.absolute.append(float(away))
    row.proved.append(float(eraser.distance_bound_ / moved))
    row.holds.append(bool(away <= eraser.distance_bound_ + ROUNDING * np.linalg.norm(truth)))
    row.leverage.append(eraser.leverage_ or 0.0)
    if isinstance(last_of(refit), (Ridge, LinearRegression)):
        row.agreement.append(math.nan)
    else:
        row.agreement.append(float((erased.predict(data.everything) == refit.predict(data.everything)).mean()))


def to_minimum(estimator: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Fit on from where it is, every model in it, until rounding stops it."""
    kind = type(estimator)
    if kind is Pipeline:
        to_minimum(estimator[-1], estimator[:-1].transform(x), y)
    elif kind is OneVsRestClassifier:
        labels = estimator.label_binarizer_.transform(y).toarray().T
        for part, own in zip(estimator.estimators_, labels, strict=True):
            to_minimum(part, x, own)
    elif kind is MultiOutputClassifier:
        for part, own in zip(estimator.estimators_, y.T, strict=True):
            to_minimum(part, x, own)
    elif kind is LogisticRegression:
        estimator.set_params(solver="newton-cholesky", tol=TOLERANCE, warm_start=True).fit(x, y)
    elif kind is LinearSVC:
        estimator.set_params(dual=False, tol=TOLERANCE, max_iter=100_000).fit(x, y)


def parameters(estimator: Any, left: np.ndarray | None) -> np.ndarray:
    """Coefficients and intercepts, of the classes that are `left` where one has gone."""
    last = last_of(estimator)
    tables = []
    for part in getattr(last, "estimators_", [last]):
        coef = np.atleast_2d(part.coef_)
        tables.append(np.hstack([coef, np.broadcast_to(part.intercept_, len(coef))[:, None]]))
    table = np.vstack(tables)
    if left is not None and len(table) > 1:
        table = table[np.isin(last.classes_, left)]
    if type(last) is LogisticRegression and len(table) > 1:
        table = table[[1]] - table[[0]] if len(table) == 2 else table - table.mean(axis=0)
    elif len(table) == 2 and left is not None:
        table = table[[1]]
    return table.ravel()


def last_of(estimator: Any) -> Any:
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def tell(report: Report, found: dict[str, list[Row]]) -> None:
    for name, rows in found.items():
        asked = [row for row in rows if row.limit is not None and not row.exact]
        for family in ("logistic", "LinearSVC"):
            mine = [row for row in asked if (row.estimator == "LinearSVC") == (family == "LinearSVC")]
            for limit, words in ((0.05, "up to 1 %"), (0.2, "up to 10 %, at random")):
                if some := [row for row in mine if row.limit == limit and math.isfinite(row.mean)]:
                    worst = max(some, key=lambda row: row.mean)
                    report.at_most(f"{name}, {family}, {words}: distance", worst.mean, limit)
            if few := [100 - 100 * float(np.mean(row.agreement)) for row in mine if row.limit == 0.05]:
                report.at_most(f"{name}, {family}, up to 1 %: predictions that do not agree", max(few), 0.1, " %")
    every = [row for rows in found.values() for row in rows if not row.instead]
    least = [value for row in every if row.exact for value in row.distance if math.isfinite(value)]
    report.at_most("least squares: the largest distance", max(least), 1e-6)
    judged = [holds for row in every for holds, e in zip(row.holds, row.proved, strict=True) if math.isfinite(e)]
    report.at_most(f"of {len(judged):,} proved distances, broken", len(judged) - sum(judged), 0)
    report.notes += [
        "Distance: ‖θ̂ − θ₋S‖/‖θ* − θ₋S‖, mean and worst over five random requests, or over the classes; of the large "
        "data one. Proved: the median of distance_bound_/‖θ* − θ₋S‖ (∞: nothing is). Holds: how often the distance was "
        "not above it, to 1e-9 of ‖θ‖, where refits themselves end. Agreement: of predictions on all samples, the "
        "forgotten ones too, and on the test data of the large. Leverage: the largest.",
        "A request of which the refit takes no notice (‖θ* − θ₋S‖ below 1e-6 of ‖θ‖: samples outside LinearSVC's "
        "margin) has no distance, and is left out of the mean.",
        "Targets take the mean over the requests, and of each data set the worst of its estimators. 10 of fewer than "
        "1,000 samples are more than 1 %, and are held to what is asked of 10 %. Of a whole class nothing is asked.",
        "Refit: scikit-learn's default solver and tolerance, from zero. A refit to one class is refused by "
        "scikit-learn too; of faces, so is one without everybody who has an attribute.",
    ]
    report.numbers = {name: [vars(row) for row in rows] for name, rows in found.items()}
    for rows in report.numbers.values():
        for row in rows:
            for key in ("distance", "proved", "agreement"):
                row[key] = [value if math.isfinite(value) else None for value in row[key]]


def _proved(values: list[float]) -> str | float:
    middle = float(np.median(values))
    return middle if math.isfinite(middle) else "∞"


def _needs(error: DoesNotFit) -> str:
    """The curvature's size, out of the error's words; not what was free, which is another every time."""
    return str(error).split("needs ")[1].split(",")[0]


def _is_least_squares(estimator: Any) -> bool:
    return isinstance(last_of(estimator), (Ridge, LinearRegression, RidgeClassifier))


if __name__ == "__main__":
    run_alone(main, __doc__)
