"""A thousand deletions
====================

A thousand deletion requests in a row: the last one costs what the first did, and the error stays small.

Two erasers answer the same requests. policy="rebase" keeps nothing of the models before, and what can be proved about
it fades; policy="joint" keeps the first model, and its bound holds on. `refine`, which reads what remains, renews it.

python examples/thousand_deletions.py
"""

from __future__ import annotations

import time

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from ssse.sklearn import Eraser

SAMPLES, REQUESTS, LOOK_EVERY = 20_000, 1000, 250


def untrained() -> LogisticRegression:
    return LogisticRegression(C=0.01, solver="newton-cholesky", tol=1e-10)


def coefficients(model: LogisticRegression) -> np.ndarray:
    return np.append(model.coef_.ravel(), model.intercept_)


def apart(one: LogisticRegression, other: LogisticRegression) -> float:
    return float(np.linalg.norm(coefficients(one) - coefficients(other)))


def shown(distance_bound: float) -> str:
    return f"{distance_bound:.1e}" if np.isfinite(distance_bound) else "no bound"


def milliseconds(taken: list[float]) -> float:
    return 1000 * float(np.median(taken))


def draw(looks: dict[int, list[float]]) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.add_subplot()
    names = ("the model moved by", "rebase", "rebase, proved", "joint", "joint, proved")
    styles = ("s-", "o-", "o:", "^-", "^:")
    colours = ("#666666", "#0072B2", "#0072B2", "#D55E00", "#D55E00")
    for name, style, colour, values in zip(names, styles, colours, zip(*looks.values(), strict=True), strict=True):
        ax.loglog(list(looks), values, style, color=colour, label=name)
    ax.set(xlabel="requests", ylabel="distance from the refit", title="A thousand requests, one after another")
    ax.legend(frameon=False)
    return figure


def main() -> None:
    table = make_classification(SAMPLES, 30, n_informative=15, class_sep=0.7, flip_y=0.1, random_state=0)
    x, y = map(np.asarray, table)
    trained = untrained().fit(x, y)
    erasers = {policy: Eraser(trained, policy=policy).fit(x, y) for policy in ("rebase", "joint")}
    seconds: dict[str, list[float]] = {policy: [] for policy in erasers}

    print(f"{SAMPLES} samples, {x.shape[1]} features; distances of coefficients\n")
    print(f"{'':>21}{'—— rebase, from the refit ——':^32}{'—— joint, from the refit ——':^32}")
    print(f"{'requests':>8}{'moved':>13}" + f"{'true':>16}{'proved':>16}" * 2)
    stays = np.ones(SAMPLES, dtype=bool)
    proved = 0  # the last request after which rebase has a bound
    refit, refit_seconds = trained, 0.0
    looks: dict[int, list[float]] = {}  # requests → moved, and of each policy the true and the proved distance
    for request, sample in enumerate(np.random.default_rng(0).permutation(SAMPLES)[:REQUESTS], start=1):
        stays[sample] = False
        for policy, eraser in erasers.items():
            started = time.perf_counter()
            eraser.erase(x[[sample]], y[[sample]])
            seconds[policy].append(time.perf_counter() - started)
        if np.isfinite(erasers["rebase"].distance_bound_):
            proved = request
        if request == 1 or request % LOOK_EVERY == 0:
            started = time.perf_counter()
            refit = untrained().fit(x[stays], y[stays])
            refit_seconds = time.perf_counter() - started
            looks[request] = [apart(trained, refit)]
            for each in erasers.values():
                looks[request] += [apart(each.estimator_, refit), each.distance_bound_]
            columns = [f"{apart(e.estimator_, refit):>16.1e}{shown(e.distance_bound_):>16}" for e in erasers.values()]
            print(f"{request:>8}{apart(trained, refit):>13.1e}{''.join(columns)}")

    print(f"\n{'time of a request':<22}{'first hundred':>16}{'last hundred':>16}{'a refit':>12}")
    for policy, taken in seconds.items():
        first, last = milliseconds(taken[:100]), milliseconds(taken[-100:])
        print(f"  {policy:<20}{first:>13.2f} ms{last:>13.2f} ms{1000 * refit_seconds:>9.0f} ms")

    erased = erasers["rebase"].estimator_
    nearer = erasers["rebase"].refine(x[stays], y[stays])
    renewed = erasers["rebase"].distance_bound_
    print(f"\nrebase has a bound up to request {proved}. Then refined with what remains, which is read for that, it is")
    print(f"{apart(nearer, refit):.1e} from scikit-learn's refit, and {shown(renewed)} from the minimum is proved.")

    draw(looks).savefig("thousand_deletions.svg")
    longer = milliseconds(seconds["rebase"][-100:]) / milliseconds(seconds["rebase"][:100])
    error = 100 * apart(erased, refit) / apart(trained, refit)
    print(
        f"\nShown: after {REQUESTS} requests the error is {error:.1f} % of the way that the model moved, and a request"
        f"\ntakes {longer:.1f} times as long as at first. What is proved grows faster than the error: refine at times."
    )


if __name__ == "__main__":
    main()
