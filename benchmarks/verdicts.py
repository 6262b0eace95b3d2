"""Verdict against truth: what an erasure says of itself, and how far it is from the retrained model.

Linear models (softmax by `ssse.erase`, scikit-learn's by `Eraser`) and small networks, on data sets of many kinds, at
weight decays from far too small to large, for requests from half a percent to a whole class. The distance is
‖θ̂ − θ₋S‖ / ‖θ* − θ₋S‖: 0 is the retrained model, 1 is doing nothing. Up to 0.35 an erasure is called good here. The
limits of the verdict were chosen on some of the data sets; what they do on the others is what counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from torch import Tensor, nn

import ssse
from record import Report, run_alone
from ssse.errors import Refused
from ssse.sklearn import Eraser
from ssse.verdict import (
    TRUSTED_BEND,
    TRUSTED_LEVERAGE,
    TRUSTED_STRAIN,
    TRUSTED_STRETCH,
    TRUSTED_SWING,
    Assessment,
    distrust,
)
from verdict_problems import (
    CHOSEN_ON,
    DataSet,
    Request,
    Softmax,
    as_module,
    as_theta,
    data_sets,
    mislabelled,
    requests,
)

GOOD = 0.35
EDGES = (0.05, 0.1, 0.2, GOOD, 1.0, np.inf)
SKLEARN_DECAYS = (1e-2, 1e-4)
NETWORK_SETS = ("wine", "breast cancer", "pooled digits", "four classes", "moons", "counts")
NETWORK_DECAY, HIDDEN = 1e-3, 16


@dataclass(frozen=True)
class Case:
    """One erasure. `gap…`: of the objective on what stays, 0 at the refit and 1 for doing nothing."""

    engine: str
    data: str
    decay: float
    request: str
    k: int
    n: int
    verdict: str
    forced: bool
    distance: float
    swing: float | None = None
    strain: float | None = None
    stretch: float | None = None
    bend: float | None = None
    residual_step: float | None = None
    leverage_max: float | None = None
    relative_step: float | None = None
    gap: float | None = None
    gap_refined: float | None = None
    distance_refined: float | None = None
    bound: float | None = None
    moved: float | None = None

    @property
    def good(self) -> bool:
        return self.distance <= GOOD

    @property
    def chosen_on(self) -> bool:
        return self.data in CHOSEN_ON


def main(folder: Path) -> None:
    report = Report("verdicts", "Verdict against truth")
    cases: list[Case] = []
    for number, data in enumerate(data_sets(folder)):
        cases += softmax_cases(data, number)
        cases += sklearn_cases(data, number)
        if data.name in NETWORK_SETS:
            cases += network_cases(data, number)
        print(f"{data.name}: {len(cases)} erasures so far", flush=True)
    write(report, cases)


def softmax_cases(data: DataSet, number: int) -> list[Case]:
    """By `ssse.erase`: requests, a stream of five, a model that was not trained to its end, and wrong labels."""
    out = []
    for decay in data.decays:
        random = np.random.default_rng([number, round(-np.log10(decay))])
        problem = Softmax(data, decay)
        everything = np.arange(len(data.y))
        theta = problem.minimum(everything, problem.zeros())
        asked = requests(data, random)
        out += [softmax_case(data, problem, theta, request) for request in asked]
        out.append(stream_case(data, problem, theta, asked[3]))
        early = problem.minimum(everything, problem.zeros(), steps=4)
        out.append(softmax_case(data, problem, early, replace(asked[1], name="2.0% at random, trained for 4 steps")))
        wrong, asked = mislabelled(data, random)
        problem = Softmax(wrong, decay)
        theta = problem.minimum(everything, problem.zeros())
        out += [softmax_case(wrong, problem, theta, request) for request in asked]
    return out


def softmax_case(data: DataSet, problem: Softmax, theta: np.ndarray, request: Request) -> Case:
    module = as_module(theta)
    curvature = fit_curvature(module, data, problem.decay)
    stays = np.setdiff1d(np.arange(len(data.y)), request.places)
    erasure = erase(module, curvature, [batch(data, request.places)])
    twin = problem.minimum(stays, theta)
    refined = ssse.refine(erasure.model, erasure.curvature, None, [batch(data, stays)], steps=20, progress=False)
    worth = gap_of(problem, stays, theta, twin)
    return case(
        "softmax", data, problem.decay, request, erasure.diagnostics,
        distance=distance(as_theta(erasure.model), theta, twin),
        gap=worth(as_theta(erasure.model)),
        gap_refined=worth(as_theta(refined.model)),
        distance_refined=distance(as_theta(refined.model), theta, twin),
    )  # fmt: skip


def stream_case(data: DataSet, problem: Softmax, theta: np.ndarray, request: Request) -> Case:
    """The same samples in five requests, one after another; the last one's verdict, the distance of all."""
    model: nn.Module = as_module(theta)
    curvature = fit_curvature(model, data, problem.decay)
    diagnostics, refused = None, False
    for part in np.array_split(request.places, min(5, len(request.places))):
        try:
            erasure = erase(model, curvature, [batch(data, part)])
        except Refused:  # rows have moved so far from those stored that no step is left: fit again
            refused = True
            break
        model, curvature, diagnostics = erasure.model, erasure.curvature, erasure.diagnostics
    assert diagnostics is not None
    twin = problem.minimum(np.setdiff1d(np.arange(len(data.y)), request.places), theta)
    request = replace(request, name=f"{request.name}, in five requests")
    found = case("softmax", data, problem.decay, request, diagnostics, distance=distance(as_theta(model), theta, twin))
    return replace(found, k=len(request.places), n=len(data.y), verdict="refused" if refused else found.verdict)


def erase(model: nn.Module, curvature: ssse.Curvature, forget: list[Any]) -> ssse.Erasure:
    """By force where it is refused: a refusal is counted, and its step looked at all the same."""
    return ssse.erase(model, curvature, forget=forget, override=ssse.BOUNDS)


def fit_curvature(module: nn.Module, data: DataSet, decay: float) -> ssse.Curvature:
    with warnings.catch_warnings():  # of weight decays that do not fit a model which was not trained to its end
        warnings.simplefilter("ignore")
        return ssse.Curvature.fit(
            module, "cross_entropy", [batch(data, np.arange(len(data.y)))], weight_decay=decay, progress=False,
            n=len(data.y),
        )  # fmt: skip


def gap_of(problem: Softmax, stays: np.ndarray, theta: np.ndarray, twin: np.ndarray) -> Callable[[np.ndarray], float]:
    best, before = problem.objective(twin, stays), problem.objective(theta, stays)
    return lambda at: (problem.objective(at, stays) - best) / max(before - best, 1e-300)


def sklearn_cases(data: DataSet, number: int) -> list[Case]:
    """As people fit them: default tolerance. The twin is refitted to its minimum."""
    out = []
    for decay in SKLEARN_DECAYS:
        random = np.random.default_rng([number, 99])
        asked = requests(data, random)
        out += sklearn_run(LogisticRegression(C=1 / (decay * len(data.y)), max_iter=2000), data, decay, asked)
    random = np.random.default_rng([number, 98])
    asked = requests(data, random)[1:8:2]
    out += sklearn_run(LinearSVC(dual="auto", max_iter=5000), data, float("nan"), asked)
    out += sklearn_run(Ridge(), data, float("nan"), asked)
    return out


def sklearn_run(estimator: Any, data: DataSet, decay: float, asked: Sequence[Request]) -> list[Case]:
    out = []
    name = type(estimator).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = estimator.fit(data.x, data.y)
        for request in asked:
            stays = np.setdiff1d(np.arange(len(data.y)), request.places)
            if name != "Ridge" and len(np.unique(data.y[stays])) < 2:
                continue
            tight = {} if name == "Ridge" else {"tol": 1e-10, "max_iter": 100_000}
            twin = type(estimator)(**{**estimator.get_params(), **tight}).fit(data.x[stays], data.y[stays])
            eraser = Eraser(fitted).fit(data.x, data.y)
            try:
                model = eraser.erase(data.x[request.places], data.y[request.places])
            except Refused as refused:
                out.append(case(name, data, decay, request, refused.diagnostics, distance=np.nan))
                continue
            outcome = eraser.outcome_
            before, after, wanted = (coefficients(one) for one in (fitted, model, twin))
            refined = coefficients(eraser.refine(data.x[stays], data.y[stays], steps=10))
            if before.shape != wanted.shape:  # a class has gone: nothing to compare the old coefficients with
                before = np.zeros_like(wanted)
            found = case(name, data, decay, request, outcome, distance=distance(after, before, wanted))
            known = np.isfinite(outcome.distance_bound)
            out.append(
                replace(
                    found,
                    bound=outcome.distance_bound if known else None,
                    moved=float(np.linalg.norm(after - wanted)),
                    distance_refined=distance(refined, before, wanted),
                )
            )
    return out


def coefficients(estimator: Any) -> np.ndarray:
    return np.concatenate([np.ravel(estimator.coef_), np.ravel(estimator.intercept_)])


def network_cases(data: DataSet, number: int) -> list[Case]:
    """Two layers, trained by L-BFGS. Twins start from the same weights; the distance is that of predictions."""
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    everything = torch.arange(len(y))
    fitted = train_network(x, y, data.classes, number)
    out = []
    curvature = ssse.Curvature.fit(
        fitted, "cross_entropy", [(x, y)], weight_decay=NETWORK_DECAY, progress=False, n=len(y)
    )
    few = np.random.default_rng([number, 96]).choice(len(y), max(1, len(y) // 100), replace=False)
    for request in (*requests(data, np.random.default_rng([number, 97])), Request("1% at random", few)):
        places = torch.from_numpy(np.sort(request.places))
        stays = everything[~torch.isin(everything, places)]
        twin = train_network(x[stays], y[stays], data.classes, number)
        erasure = erase(fitted, curvature, [(x[places], y[places])])
        before, after, wanted = (probabilities(model, x) for model in (fitted, erasure.model, twin))
        found = float((after - wanted).norm() / (before - wanted).norm())
        out.append(case("network", data, NETWORK_DECAY, request, erasure.diagnostics, distance=found))
    return out


def train_network(x: Tensor, y: Tensor, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, classes)).double()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=800, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss = loss + NETWORK_DECAY / 2 * sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
    return model.eval()


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).softmax(1)


def case(
    engine: str, data: DataSet, decay: float, request: Request, found: Assessment, *, distance: float, **more: Any
) -> Case:
    return Case(
        engine, data.name, decay, request.name, len(request.places), len(data.y),
        "refused" if found.overridden else found.verdict, bool(found.overridden), float(distance),
        found.swing, found.strain, found.stretch, found.bend, getattr(found, "residual_step", None),
        found.leverage_max, found.relative_step, **more,
    )  # fmt: skip


def batch(data: DataSet, places: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.x[places]), torch.from_numpy(data.y[places])


def distance(found: np.ndarray, before: np.ndarray, wanted: np.ndarray) -> float:
    """Samples that change nothing leave nothing to be far from."""
    had_to_move, left = np.linalg.norm(before - wanted), np.linalg.norm(found - wanted)
    if had_to_move <= 1e-9 * np.linalg.norm(wanted):
        return 0.0 if left <= 1e-9 * np.linalg.norm(wanted) else float("inf")
    return float(left / had_to_move)


def write(report: Report, cases: list[Case]) -> None:
    linear = [one for one in cases if one.engine != "network"]
    networks = [one for one in cases if one.engine == "network"]
    others = [one for one in linear if not one.chosen_on]
    columns = ("", *(f"≤ {edge:g}" for edge in EDGES[:-1]), "> 1", "all")
    for title, some in (
        ("Linear models, data sets that the limits were chosen on", [c for c in linear if c.chosen_on]),
        ("Linear models, the other data sets", others),
        ("Networks (distance of predicted probabilities)", networks),
    ):
        report.table(f"{title}: verdict against distance", columns, against(some))
    report.table(
        "By engine, all data sets",
        ("", "erasures", "ok", "of those good", "good", "of those ok", "refused"),
        [row_of(name, [c for c in cases if c.engine == name]) for name in sorted({c.engine for c in cases})],
    )
    report.table(
        "By data set, linear models",
        ("", "erasures", "ok", "of those good", "good", "of those ok", "refused"),
        [row_of(name, [c for c in linear if c.data == name]) for name in dict.fromkeys(c.data for c in linear)],
    )
    trained = [c for c in linear if c.engine == "softmax" and "steps" not in c.request and "in five" not in c.request]
    report.table(
        "Softmax models trained to the end: rank correlation with the distance, and single thresholds at their best",
        *alternatives(trained),
    )
    softmax = [c for c in cases if c.gap is not None and c.gap_refined is not None]
    early = [c for c in softmax if "steps" in c.request]
    done = [c for c in softmax if "steps" not in c.request]
    raised = [c for c in done if is_raised(c)]
    report.table(
        "Softmax models: the objective on what stays (0: refit, 1: doing nothing)",
        (
            "",
            "erasures",
            "raised by the step",
            "refused",
            "caution",
            "ok",
            "raised by refine",
            "refined: worst distance",
        ),
        [objective_row(name, some) for name, some in (("trained to the end", done), ("for 4 steps only", early))],
    )
    oks, good = [c for c in linear if c.verdict == "ok"], [c for c in linear if c.good]
    report.at_least("linear models: erasures", len(linear), 300)
    report.at_least("networks: erasures", len(networks), 60)
    report.at_least("linear models: ok is right", percent(c.good for c in oks), 95, " %")
    report.at_least(
        "linear models, other data sets: ok is right", percent(c.good for c in oks if not c.chosen_on), 95, " %"
    )
    report.at_least("linear models: good ones that get ok", percent(c.verdict == "ok" for c in good), 70, " %")
    found = percent(c.verdict == "ok" for c in good if not c.chosen_on)
    report.at_least("linear models, other data sets: good ones that get ok", found, 70, " %")
    report.at_most(
        "other data sets: largest distance under ok", max(c.distance for c in others if c.verdict == "ok"), GOOD
    )
    report.at_most(
        "networks: ok with a distance above 0.35", sum(c.verdict == "ok" and not c.good for c in networks), 0
    )
    bounds = [(c.moved, c.bound) for c in cases if c.bound is not None and c.moved is not None]
    broken = sum(moved > bound * (1 + 1e-6) + 1e-7 for moved, bound in bounds)
    report.at_most(f"finite bounds broken, of {len(bounds)}", broken, 0)
    report.at_most(
        "trained to the end: raised by the step and not refused", sum(c.verdict != "refused" for c in raised), 0
    )
    report.at_most(
        "refine ends above where it began", sum((c.gap_refined or 0) > (c.gap or 0) + 1e-9 for c in softmax), 0
    )
    report.notes.append(
        f"Limits: swing {TRUSTED_SWING:g}, strain {TRUSTED_STRAIN:g}, stretch {TRUSTED_STRETCH:g}, bend "
        f"{TRUSTED_BEND:g}, together as the root of their squares; leverage {TRUSTED_LEVERAGE:g}. Chosen on "
        f"{', '.join(CHOSEN_ON)}; in two earlier rounds the sets that came last showed what was missing, and "
        "were counted among these. The others were drawn after that. Refused steps were taken by force and "
        "measured as the others."
    )
    names = list(asdict(cases[0]))  # a line for each case: as objects they would be ten times as long
    lines = [", ".join(_plain(getattr(c, name)) for name in names) for c in cases]
    report.numbers = {"columns": ", ".join(names), "cases": lines}
    report.finish()


def is_raised(c: Case) -> bool:
    return c.gap is not None and c.gap > 1 + 1e-6


def objective_row(name: str, cases: Sequence[Case]) -> list[Any]:
    raised = [c for c in cases if is_raised(c)]
    verdicts = [sum(c.verdict == verdict for c in raised) for verdict in ("refused", "caution", "ok")]
    again = sum((c.gap_refined or 0) > (c.gap or 0) + 1e-9 for c in cases)
    return [name, len(cases), len(raised), *verdicts, again, max(c.distance_refined or 0.0 for c in cases)]


def against(cases: Sequence[Case]) -> list[list[Any]]:
    rows = []
    for verdict in ("ok", "caution", "refused"):
        mine = [c for c in cases if c.verdict == verdict]
        low, cells = -1.0, []
        for edge in EDGES:
            cells.append(sum(low < c.distance <= edge for c in mine))
            low = edge
        rows.append([verdict, *cells, len(mine)])
    return rows


def row_of(name: str, cases: Sequence[Case]) -> list[Any]:
    ok, good = [c for c in cases if c.verdict == "ok"], [c for c in cases if c.good]
    return [
        name, len(cases), len(ok), share(c.good for c in ok), len(good), share(c.verdict == "ok" for c in good),
        sum(c.verdict == "refused" for c in cases),
    ]  # fmt: skip


def alternatives(cases: Sequence[Case]) -> tuple[Sequence[str], list[list[Any]]]:
    """Each measure alone, its threshold the largest without a bad erasure on the sets to choose on; then counted on the
    others. Last, all four together, at the limits of `ssse.verdict`."""
    columns = ("", "rank correlation", "threshold", "others: ok", "others: ok and bad", "others: good that get ok")
    distances = np.array([c.distance for c in cases])
    chosen = np.array([c.chosen_on for c in cases])
    rows = []
    for name in ("swing", "strain", "stretch", "bend", "leverage_max", "relative_step"):
        values = np.array([np.nan if getattr(c, name) is None else getattr(c, name) for c in cases], dtype=float)
        known = np.isfinite(values)
        bad = values[known & chosen & (distances > GOOD)]
        limit = float(bad.min()) if len(bad) else np.inf
        rank: Any = spearmanr(values[known], distances[known])
        rows.append([name, float(rank[0]), limit, *counted(values < limit, distances, ~chosen)])
    together = np.array([not distrust(c) for c in cases])
    rows.append(["all four and the leverage, as they are", "", "", *counted(together, distances, ~chosen)])
    return columns, rows


def counted(ok: np.ndarray, distances: np.ndarray, among: np.ndarray) -> list[Any]:
    good = among & (distances <= GOOD)
    return [
        int((ok & among).sum()),
        int((ok & among & (distances > GOOD)).sum()),
        f"{(ok & good).sum() / good.sum():.0%}",
    ]


def percent(flags: Iterable[bool]) -> float:
    values = list(flags)
    return 100 * sum(values) / len(values) if values else 100.0


def share(flags: Iterable[bool]) -> str:
    values = list(flags)
    return f"{percent(values):.0f} %" if values else "–"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace(",", ";")


if __name__ == "__main__":
    run_alone(main, __doc__)
