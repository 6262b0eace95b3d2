"""Requests to linear models against their floor and against a refit, everything on one thread.

    scikit-learn   binary, n = 100,000, d = 500, ten samples out: a request of a stream, in milliseconds, beside the two
                   symmetric updates of d × d by ten rows and the copies that any such request must make
    Eraser         softmax, 10 classes × 100 features, 100 samples out: 1,000 rows to 909 parameters, so that a new
                   factor is made; against a cold refit by scikit-learn's defaults
    torch          softmax, 784 → 10 (d = 7,850; drawn, of the shape of MNIST), n = 10,000, 1,000 samples out: some
                   2·10¹¹ operations; against L-BFGS from the old weights until
                   no entry of the gradient is above 1e-5

Of each the best of a few rounds in turn. Where the refit is faster, the outcome or the plan has to say so.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import ssse
from record import Report, best_of, run_alone
from ssse.sklearn import Eraser

K, REQUESTS = 10, 40
PIXELS, CLASSES, DECAY, STOP = 784, 10, 1e-3, 1e-5


def main(_: Path) -> None:
    report = Report("linear_requests", "Requests to linear models, against their floor and a refit, one thread")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        stream, floor = binary()
        cases = [eraser(n) for n in (10_000, 100_000)]
        pixels = images()
    report.table(
        "scikit-learn, n = 100,000, d = 500, ten samples out, best of 40 requests",
        ("request, ms", "floor, ms", "ratio"),
        [(1e3 * stream, 1e3 * floor, stream / floor)],
    )
    report.table(
        "A new factor against a refit",
        ("model", "request, s", "refit, s", "request over refit", "said to be cheaper"),
        [[*case[:3], case[1] / case[2], "the refit" if case[3] else "the request"] for case in (*cases, pixels)],
    )
    report.at_most("scikit-learn, n = 100,000, d = 500: a request", 1e3 * stream, 2.5, " ms")
    for case in (*cases, pixels):
        report.at_most(f"{case[0]}: a request over a refit", case[1] / case[2], 1, "×")
    silent = sum(case[1] > case[2] and not case[3] for case in (*cases, pixels))
    report.at_most("requests dearer than a refit of which nothing says so", silent, 0)
    report.notes.append(f"Processes that wanted a core meanwhile, on average of a minute: {os.getloadavg()[0]:.0f}.")
    report.numbers = {"stream": stream, "floor": floor, "cases": [list(case) for case in (*cases, pixels)]}
    report.finish()


def binary() -> tuple[float, float]:
    """Seconds of the best request of a stream, and of what none can do without."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100_000, 500))
    scores = x @ rng.standard_normal(500)
    y = (rng.random(len(x)) < expit(scores * (2 / scores.std()))).astype(np.int64)
    fitted = Eraser(LogisticRegression(tol=1e-8, max_iter=10_000).fit(x, y)).fit(x, y)
    square, rows = np.eye(501), rng.standard_normal((K, 501))

    def updates() -> None:
        for _ in range(2):  # of the curvature and of its inverse
            _ = square + rows.T @ rows

    requests, floors = [], []
    for i in range(REQUESTS):
        some = slice(i * K, (i + 1) * K)
        requests.append(best_of(1, request=lambda some=some: fitted.erase(x[some], y[some]))["request"])
        floors.append(best_of(1, updates=updates)["updates"])
    return min(requests), min(floors)


def eraser(n: int) -> tuple[str, float, float, bool]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 100))
    scores = x @ rng.standard_normal((100, 10)) * 0.2
    y = (softmax(scores, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    fitted = Eraser(LogisticRegression(tol=1e-8, max_iter=10_000).fit(x, y)).fit(x, y)
    fresh = copy.copy(fitted)

    def request() -> None:
        nonlocal fresh
        fresh = copy.copy(fitted)
        fresh.erase(x[:100], y[:100])

    best = best_of(3, request=request, refit=lambda: LogisticRegression(max_iter=10_000).fit(x[100:], y[100:]))
    name = f"10 classes × 100 features, n = {n:,}, 100 out"
    return name, best["request"], best["refit"], fresh.outcome_.refit_cheaper


def images() -> tuple[str, float, float, bool]:
    generator = torch.Generator().manual_seed(0)
    n, k = 10_000, 1_000
    kinds = torch.rand(5 * CLASSES, PIXELS, generator=generator) ** 4
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    x = 0.7 * kinds[5 * y + torch.randint(0, 5, (n,), generator=generator)]
    x = (x + 0.5 * torch.rand(n, PIXELS, generator=generator)).clamp(0, 1)
    wrong = torch.rand(n, generator=generator) < 0.1
    y[wrong] = torch.randint(0, CLASSES, (int(wrong.sum()),), generator=generator)
    model = torch.nn.Linear(PIXELS, CLASSES)
    train(model, x, y, STOP / 10)
    model.eval()
    settings = {"weight_decay": DECAY, "rows": "expected", "structure": "dense", "blocks": "one"}
    plan = ssse.plan(model, "cross_entropy", [(x, y)], forget=k, **settings)  # type: ignore[arg-type]  # settings of several types
    curvature = ssse.Curvature.fit(model, "cross_entropy", [(x, y)], **settings)  # type: ignore[arg-type]  # settings of several types
    again = copy.deepcopy(model)

    def refit() -> None:
        nonlocal again
        again = copy.deepcopy(model)
        train(again, x[k:], y[k:], STOP)

    best = best_of(
        2, request=lambda: ssse.erase(model, curvature, forget=[(x[:k], y[:k])], override=ssse.BOUNDS), refit=refit
    )
    return "784 → 10, n = 10,000, 1,000 out", best["request"], best["refit"], plan.refit_cheaper


def train(model: torch.nn.Linear, x: torch.Tensor, y: torch.Tensor, stop: float) -> None:
    """Full-batch L-BFGS until no entry of the gradient is above `stop`, or three hundred steps."""
    parameters = list(model.parameters())
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=300,
        tolerance_grad=stop,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        decay = sum((p.square().sum() for p in parameters), torch.zeros(()))
        value = F.cross_entropy(model(x), y) + DECAY / 2 * decay
        value.backward()
        return value

    optimiser.step(loss)


if __name__ == "__main__":
    run_alone(main, __doc__)
