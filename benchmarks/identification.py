"""Does what is published of a request tell whose samples it erased? 1,000 candidates, and the model that is served.

python benchmarks/identification.py                                  about fifteen minutes
python benchmarks/identification.py --requests 40 --candidates 200   less, and less certain

Every request is answered by a copy of the same workspace. What is published: the page, `log --json` and `erase --json`.
The same attack on what the ledger holds (`log --exact`) shows what it can do.
"""

from __future__ import annotations

import argparse
import html
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression

from identification_attack import Answer, Candidates, Published, attack, found_in
from record import DATA, Report
from sklearn import datasets as sklearn_datasets
from ssse.demo import WEIGHT_DECAY, train
from ssse.workspace.record.published import PUBLIC
from ssse.workspace.workspace import Workspace

datasets: Any = sklearn_datasets
REQUESTS, CANDIDATES = 200, 1000
OTHERS = 200  # people who are neither
SEVERAL, OF_SEVERAL = (PUBLIC, 50), 40  # samples of a request; how many such requests
AMONG = (1, 10, 100)  # the best-ranked
PUBLISHED, EXACT = "what is published", "the ledger, exact"


@dataclass(frozen=True)
class Data:
    """What the model was trained on, and people of the same kind whom it never saw: all candidates but those meant;
    and others, whom the attacker knows besides."""

    x: np.ndarray
    y: np.ndarray
    unseen_x: np.ndarray
    unseen_y: np.ndarray
    others_x: np.ndarray


@dataclass(frozen=True)
class Subject:
    """A workspace that was fitted and has answered nothing; `damping`: of the whole curvature, on its diagonal."""

    name: str
    path: Path
    data: Data
    damping: float


def main(requests: int, candidates: int) -> None:
    report = Report("identification", "Whose samples were erased?")
    rows, shares = [], []
    with ProcessPoolExecutor(len(MODELS), multiprocessing.get_context("spawn")) as pool:
        for subject, single, several in pool.map(partial(examined, requests, candidates), MODELS):
            for name, answer in single.items():
                rows.append((subject, name, *scores(answer), "; ".join(dict.fromkeys(answer.by))))
                if name in (PUBLISHED, EXACT):
                    targets(report, f"{subject}, {name}", answer, candidates, exact=name == EXACT)
            for (k, name), answer in several.items():
                share, chance = float(np.mean(answer.share)), k / candidates
                shares.append((subject, name, k, share, chance, share / chance))
                if name == PUBLISHED:
                    what = f"{subject}, {k} samples, published: members among the {k} best, against chance"
                    report.at_most(what, share / chance, 2, "×")
    columns = (
        "model",
        "the model and",
        "requests",
        *(f"among the best {few}" for few in AMONG),
        "mean rank",
        "best by",
    )
    report.table(f"One sample a request, {candidates:,} candidates", columns, rows)
    report.table(
        f"Several samples a request, {OF_SEVERAL} requests each, {candidates:,} candidates",
        ("model", "the model and", "samples", "members among as many best", "chance", "times chance"),
        shares,
    )
    chance = ", ".join(f"{few / candidates:.1%} among the best {few}" for few in AMONG)
    report.notes.append(
        f"Chance: {chance}, mean rank {(candidates + 1) / 2:g}. What to look at is learnt on half of the requests, and "
        "the other half is attacked by it; then the other way round. Ties count as half. The model was trained "
        f"on {1797 - candidates - OTHERS} digits, of which those of a request are drawn at random; the other "
        "candidates are digits that it never saw."
    )
    report.finish()


def examined(
    requests: int, candidates: int, model: str
) -> tuple[str, dict[str, Answer], dict[tuple[int, str], Answer]]:
    """One model: requests of one sample, by what the attacker has; and of several."""
    with tempfile.TemporaryDirectory() as place:
        subject = MODELS[model](Path(place), digits(candidates))
        seen = list(answered(subject, drawn(subject, requests, 1)))
        single = {name: attack(known) for name, known in attackers(seen)}
        several = {}
        for k in SEVERAL:
            seen = list(answered(subject, drawn(subject, OF_SEVERAL, k)))
            several |= {(k, name): attack(known) for name, known in attackers(seen)}
    return subject.name, single, several


def targets(report: Report, name: str, answer: Answer, candidates: int, exact: bool) -> None:
    ranks = np.array(answer.ranks)
    if exact:
        report.at_least(f"{name}: found at once", float(100 * (ranks == 1).mean()), 95, " %")
        return
    for few in AMONG[1:]:
        times = float((ranks <= few).mean()) / (few / candidates)
        report.at_most(f"{name}: among the best {few}, against chance", times, 2, "×")


def scores(answer: Answer) -> list[Any]:
    ranks = np.array(answer.ranks)
    return [len(ranks), *(f"{(ranks <= few).mean():.1%}" for few in AMONG), float(ranks.mean())]


def attackers(seen: Sequence[tuple[Published, Published]]) -> Iterator[tuple[str, list[Published]]]:
    """By what they have: all have the served model and the candidates."""
    yield "nothing more", [replace(shown, numbers={}, words={}) for shown, _ in seen]
    yield "what is published, its words alone", [replace(shown, numbers={}) for shown, _ in seen]
    yield PUBLISHED, [shown for shown, _ in seen]
    yield EXACT, [ledger for _, ledger in seen]


# ── what is published of a request ────────────────────────────────────────────────────────────────────────────────


def answered(subject: Subject, requests: Sequence[Sequence[int]]) -> Iterator[tuple[Published, Published]]:
    """Each by a copy of the workspace: what is published of it, and what the ledger holds."""
    trial, unseen = subject.path.with_name("trial"), None
    for places in requests:
        shutil.copytree(subject.path, trial, symlinks=True)
        workspace = Workspace(trial)
        erased = workspace.erase("case", ids=[f"s{place}" for place in places])
        page = workspace.report(trial.with_name("page.html")).page.read_text(encoding="utf-8")
        log = workspace.log("case")
        weights = served(trial)
        unseen = unseen or Candidates.under(
            subject.data.unseen_x, subject.data.unseen_y, subject.data.others_x, weights, subject.damping
        )
        candidates = unseen.joined_by(subject.data.x[places], subject.data.y[places])
        members = np.arange(len(candidates.y) - len(places), len(candidates.y))
        shown = {"page": text_of(page), "erase": erased.to_dict(), "log": log.to_dict()}
        made = partial(Published, statistics=candidates.statistics(weights), members=members)
        yield as_read(shown, made), as_read({"log": log.exact()}, made)
        shutil.rmtree(trial)


def as_read(shown: Mapping[str, Any], made: Callable[..., Published]) -> Published:
    numbers, words = found_in(shown)
    times = {entry["kind"]: datetime.fromisoformat(entry["time"]) for entry in shown["log"]["entries"]}
    if "erased" in times:
        numbers["seconds"] = (times["erased"] - times["received"]).total_seconds()
    return made(numbers=numbers, words=words)


def text_of(page: str) -> str:
    plain = re.sub(r"<style>.*?</style>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", plain))


def served(path: Path) -> np.ndarray:
    """(c, p + 1), the intercept last."""
    stored = load_file(path / "current" / "weights.safetensors")
    weight, bias = (stored[a] if a in stored else stored[b] for a, b in (("weight", "coef_"), ("bias", "intercept_")))
    return np.column_stack([weight, bias]).astype(np.float64)


# ── the models ────────────────────────────────────────────────────────────────────────────────────────────────────


def digits(candidates: int) -> Data:
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    unseen, others, trained = np.split(order, [candidates, candidates + OTHERS])
    return Data(x[trained] / 16, y[trained], x[unseen] / 16, y[unseen], x[others] / 16)


def drawn(subject: Subject, requests: int, k: int) -> list[list[int]]:
    draw = np.random.default_rng(k)
    if k == 1:
        return [[int(one)] for one in draw.permutation(len(subject.data.x))[:requests]]
    return [draw.permutation(len(subject.data.x))[:k].tolist() for _ in range(requests)]


def softmax(home: Path, data: Data) -> Subject:
    folder = home / "softmax"
    folder.mkdir(parents=True)
    write(folder, data)
    model = train(torch.tensor(data.x), torch.tensor(data.y))
    save_file({name: value.numpy() for name, value in model.state_dict().items()}, folder / "w.safetensors")
    settings = {"model.factory": "ssse.demo:softmax", "fit.weight_decay": WEIGHT_DECAY}
    workspace = Workspace.init(folder / "ws", {**settings, **DATA_SETTINGS}, folder / "w.safetensors").workspace
    workspace.fit()
    return Subject("softmax regression (torch)", folder / "ws", data, WEIGHT_DECAY * len(data.x))


def logistic(home: Path, data: Data) -> Subject:
    folder = home / "logistic"
    folder.mkdir(parents=True)
    write(folder, data)
    model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(data.x, data.y)
    np.savez(folder / "model.npz", coef_=model.coef_, intercept_=model.intercept_, classes_=model.classes_)
    settings = {
        "model.factory": "sklearn.linear_model:LogisticRegression",
        "model.arguments": {"tol": 1e-10, "max_iter": 10_000},
    }
    workspace = Workspace.init(folder / "ws", {**settings, **DATA_SETTINGS}, folder / "model.npz").workspace
    workspace.fit()
    return Subject("LogisticRegression (scikit-learn)", folder / "ws", data, 1.0)


MODELS = {"softmax": softmax, "logistic": logistic}
DATA_SETTINGS = {"data.train": "../train.npz", "data.test": "../test.npz", "data.ids": "id"}


def write(folder: Path, data: Data) -> None:
    np.savez(folder / "train.npz", x=data.x, y=data.y, id=np.array([f"s{place}" for place in range(len(data.x))]))
    np.savez(folder / "test.npz", x=data.unseen_x, y=data.unseen_y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of one sample, for each model")
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="of whom one is meant")
    parser.add_argument("--data", type=Path, default=DATA, help="not used; for benchmarks/run.py")
    chosen = parser.parse_args()
    main(chosen.requests, chosen.candidates)
