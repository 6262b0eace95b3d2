"""Whose sample was erased? An attack by what is published of a request, the served model, and some candidates.

Every number that is published, and every sentence, is held against every statistic of every candidate under the served
model. Which of them tells most is learnt on other requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")
FEW = 3  # requests with the same words, below which nothing is learnt from the words
TINY = 1e-12
FAR = 1e6  # beyond all statistics


@dataclass(frozen=True)
class Published:
    """Of one request: the numbers and words found, by where they stood, and the statistics of the candidates."""

    numbers: Mapping[str, float]
    words: Mapping[str, str]
    statistics: Mapping[str, np.ndarray]
    members: np.ndarray  # places of the erased samples among the candidates


@dataclass
class Answer:
    """What the attack found in requests that it had not learnt from. Of several samples only `share` is known."""

    ranks: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    by: list[str] = field(default_factory=list)


def found_in(value: Any, place: str = "") -> tuple[dict[str, float], dict[str, str]]:
    """Every number and every text in something that JSON can hold, or in a text."""
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for where, leaf in _leaves(value, place):
        if isinstance(leaf, bool):
            words[where] = str(leaf)
        elif isinstance(leaf, int | float):
            numbers[where] = float(leaf)
        elif isinstance(leaf, str):
            words[where] = NUMBER.sub("", leaf)
            numbers |= {f"{where}#{i}": float(n.replace(",", "")) for i, n in enumerate(NUMBER.findall(leaf))}
    return numbers, words


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            yield from _leaves(one, f"{place}[{i}]")
    else:
        yield place, value


@dataclass(frozen=True)
class Candidates:
    """People of whom some are meant, with what is the same for all models near to each other: their curvature.

    Attributes:
        x, y: with a one in the last column; labels. inverse: M⁻¹, (c·p, c·p). held: xᵀ(M⁻¹)ᵢⱼx, (m, c, c).
    """

    x: np.ndarray
    y: np.ndarray
    inverse: np.ndarray
    held: np.ndarray

    @classmethod
    def under(cls, x: np.ndarray, y: np.ndarray, others: np.ndarray, weights: np.ndarray, damping: float) -> Candidates:
        """Weights (c, p + 1) of a softmax regression, the intercept last; `damping` on the curvature's diagonal.

        `others`: people who are no candidates, of whom the curvature is: it knows no candidate better than another.
        """
        x, others = (np.column_stack([one, np.ones(len(one))]) for one in (x, others))
        whole = _curvature(others, _softmax(others @ weights.T)) * (len(x) / len(others))
        inverse = np.linalg.inv(whole + damping * np.eye(weights.size))
        return cls(x, y, inverse, _held(x, inverse, len(weights)))

    def joined_by(self, x: np.ndarray, y: np.ndarray) -> Candidates:
        """The last are other people, so that there are as many as before."""
        x, stay = np.column_stack([x, np.ones(len(x))]), len(self.y) - len(y)
        held = np.concatenate([self.held[:stay], _held(x, self.inverse, self.held.shape[1])])
        joined = np.concatenate([self.x[:stay], x]), np.concatenate([self.y[:stay], y])
        return Candidates(*joined, self.inverse, held)

    def statistics(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Of every candidate, shape (m,) each."""
        z = self.x @ weights.T
        p, m = _softmax(z), np.arange(len(z))
        label = np.arange(len(weights)) == self.y[:, None]
        residual = p - label
        weighting = p[:, :, None] * np.eye(len(weights)) - p[:, :, None] * p[:, None, :]
        leverages = np.sort(np.linalg.eigvals(weighting @ self.held).real, axis=1)
        gradients = (residual[:, :, None] * self.x[:, None, :]).reshape(len(z), -1)
        loss = -np.log(np.maximum(p[m, self.y], TINY))
        return {
            "loss": loss,
            "margin": z[m, self.y] - np.where(label, -np.inf, z).max(1),
            "confidence": p.max(1),
            "gradient": np.linalg.norm(gradients, axis=1),
            "largest leverage": leverages[:, -1],
            "sum of leverages": leverages.sum(1),
            "norm": np.linalg.norm(self.x, axis=1),
            "step": np.linalg.norm(gradients @ self.inverse, axis=1),
            "loss before": loss - np.einsum("mi,mij,mj->m", residual, self.held, residual, optimize=True),
        }


def _held(x: np.ndarray, inverse: np.ndarray, classes: int) -> np.ndarray:
    blocks = inverse.reshape(classes, x.shape[1], classes, x.shape[1])
    return np.stack([np.einsum("mp,pjq,mq->mj", x, rows, x, optimize=True) for rows in blocks], axis=1)


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _curvature(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    classes, size = p.shape[1], x.shape[1]
    whole = np.empty((classes, size, classes, size))
    for i in range(classes):
        for j in range(i, classes):
            whole[i, :, j] = x.T @ ((p[:, i] * ((i == j) - p[:, j]))[:, None] * x)
            whole[j, :, i] = whole[i, :, j].T
    return whole.reshape(classes * size, classes * size)


# ── the attack ────────────────────────────────────────────────────────────────────────────────────────────────────


def attack(requests: Sequence[Published]) -> Answer:
    """Each half of the requests is attacked by what was learnt on the other."""
    answer = Answer()
    halves = (requests[::2], requests[1::2])
    for learnt, scored in (halves, halves[::-1]):
        best = max(_guesses(learnt, scored), key=lambda guess: guess.worth)
        answer.by.append(best.by)
        answer.ranks += best.ranks
        answer.share += best.share
    return answer


@dataclass(frozen=True)
class _Guess:
    by: str
    worth: float  # on what it was learnt on
    ranks: list[float]
    share: list[float]


def _guesses(learnt: Sequence[Published], scored: Sequence[Published]) -> Iterator[_Guess]:
    """Of every statistic, by every number and by every text: what it is expected to be, and who comes nearest."""
    for name in learnt[0].statistics:
        values = [np.array([one.statistics[name] for one in some]) for some in (learnt, scored)]
        truth = np.array([values[0][i][one.members].mean() for i, one in enumerate(learnt)])
        for by, expected in _expectations(learnt, scored, truth):
            ranks, share = _near(values[0], expected[0], learnt)
            worth = float(np.mean(share)) if len(learnt[0].members) > 1 else -float(np.mean(np.log(ranks)))
            yield _Guess(f"{name} by {by}", worth, *_near(values[1], expected[1], scored))


def _expectations(
    learnt: Sequence[Published], scored: Sequence[Published], truth: np.ndarray
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """What the statistic is expected to be: by itself, by a number as it is or on a line through it, by a text."""
    mean, halves, seen = float(truth.mean()), (learnt, scored), set[bytes]()
    for name, value in (("the usual", mean), ("the largest", FAR), ("the smallest", -FAR), ("nearest to 0", 0.0)):
        yield f"itself, {name}", [np.full(len(half), value) for half in halves]
    for key in sorted(set().union(*(one.numbers for one in learnt))):
        known = [np.array([one.numbers.get(key, np.nan) for one in half]) for half in halves]
        there = np.isfinite(known[0])
        same = np.concatenate(known).tobytes()  # the same number stands in several places
        if same in seen or len(np.unique(known[0][there])) < 2:
            continue
        seen.add(same)
        yield key, [np.where(np.isfinite(one), one, mean) for one in known]
        if there.sum() > FEW:
            slope, offset = np.polyfit(known[0][there], truth[there], 1)
            yield f"{key}, fitted", [np.where(np.isfinite(one), offset + slope * one, mean) for one in known]
    for key in sorted(set().union(*(one.words for one in learnt))):
        said = [[one.words.get(key) for one in half] for half in halves]
        groups = {text: truth[[one == text for one in said[0]]] for text in set(said[0])}
        means = {text: float(group.mean()) for text, group in groups.items() if len(group) >= FEW}
        if len(means) > 1:
            yield key, [np.array([means.get(text, mean) for text in half]) for half in said]


def _near(values: np.ndarray, expected: np.ndarray, requests: Sequence[Published]) -> tuple[list[float], list[float]]:
    """The rank of the one that is meant; or of several the share of them among the nearest, as many as there are."""
    away = np.abs(values - expected[:, None])
    if len(requests[0].members) == 1:
        own = away[np.arange(len(requests)), [one.members[0] for one in requests]][:, None]
        return (1 + (away < own).sum(1) + ((away == own).sum(1) - 1) / 2).tolist(), []
    share = []
    for row, one in zip(away, requests, strict=True):
        nearest = np.argpartition(row, len(one.members))[: len(one.members)]
        share.append(float(np.isin(nearest, one.members).mean()))
    return [], share
