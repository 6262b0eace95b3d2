"""The stored numbers, by kind of request: what tables, figures and findings are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssse.paper.lasting.jobs import ALONE, ASCENT, NOTHING, OURS, PAPER, PUSHED, RETRAINED
from ssse.paper.lasting.plans import OPPONENTS

Numbers = Mapping[str, Any]

SPLITS = (("retained", "D∖S"), ("forgotten", "S"), ("test_other", "T∖T_a"), ("test_same", "T_a"))

# Key of the method, whether alone or repaired, its words, its group in the summary.
WAYS = (
    (NOTHING, "alone", "the original: nothing done", "floor"),
    (PAPER, "alone", "the paper's step, ε best in hindsight", "paper"),
    (ASCENT, "alone", "gradient ascent until S is as held-out", "baseline"),
    (ASCENT, "repaired", "the same, then repaired", "baseline"),
    (NOTHING, "repaired", "fine-tuning (the repair alone)", "baseline"),
    *(
        (opponent.key, way, opponent.label if way == "alone" else f"{opponent.label}, then repaired", "baseline")
        for opponent in OPPONENTS
        for way in ("alone", "repaired")
    ),
    (ALONE, "alone", "ours, from S alone: the exact step, ε = 1", "ours"),
    (OURS, "repaired", "ours: the chosen step, then repaired", "ours"),
    (PUSHED, "repaired", "ours, margins pushed by √(1−p), then repaired", "ours"),
)


def kinds(numbers: Numbers) -> dict[float, str]:
    """Shares of a class and of all samples, in words, the largest first."""
    found = {}
    for request in sorted(numbers["requests"], key=lambda one: -one["rate"]):
        rate = request["rate"]
        whole = {1.0: "a whole class", 0.5: "half a class"}
        found[rate] = whole.get(rate, f"{rate:.0%} at random")
    return found


def requests_of(numbers: Numbers, rate: float) -> list[str]:
    return [request["words"] for request in numbers["requests"] if request["rate"] == rate]


def answers_of(numbers: Numbers, method: str, rate: float, like: str | None = None) -> list[Numbers]:
    """Over requests and seeds; those that failed are empty and left out. like: over those that this method has."""
    found, other = numbers["answers"].get(method, {}), numbers["answers"].get(like or method, {})
    pairs = [(seed, words) for seed in found for words in requests_of(numbers, rate)]
    return [found[s][words] for s, words in pairs if found[s].get(words) and other.get(s, {}).get(words)]


def values(numbers: Numbers, method: str, way: str, rate: float, name: str, like: str | None = None) -> np.ndarray:
    """One measure: "gap", "kl", "auc", "unseen", or the accuracy on a split."""
    found = [one[way] for one in answers_of(numbers, method, rate, like) if way in one]
    return np.array([one[name] if name in one else one["accuracy"].get(name, np.nan) for one in found], dtype=float)


def mean(
    numbers: Numbers, method: str, way: str, rate: float, name: str = "gap", like: str | None = None
) -> float | None:
    found = values(numbers, method, way, rate, name, like)
    return float(np.nanmean(found)) if np.isfinite(found).any() else None


def rises(numbers: Numbers, method: str, rate: float) -> list[float]:
    """By how many points S rises from the first to the last moment of the harmless training."""
    found = [one["moments"] for one in answers_of(numbers, method, rate) if one.get("moments")]
    return [moments[-1]["accuracy"] - moments[0]["accuracy"] for moments in found]


def beside_the_retrained(numbers: Numbers, method: str, rate: float) -> list[Numbers]:
    """Answers whose way in the harmless training is known, of the requests for which the retrained network's is too."""
    pairs = zip(answers_of(numbers, method, rate, RETRAINED), answers_of(numbers, RETRAINED, rate, method), strict=True)
    return [one for one, twin in pairs if one.get("moments") and twin.get("moments")]


def judged(numbers: Numbers, rate: float) -> list[list[float]]:
    """Accuracies on S and on held-out samples of its kind: ours, then the retrained network's; where both are known."""
    pairs = zip(answers_of(numbers, OURS, rate, RETRAINED), answers_of(numbers, RETRAINED, rate, OURS), strict=True)
    firsts = [[one["moments"][0] for one in pair] for pair in pairs if all(one.get("moments") for one in pair)]
    return [[moment[name] for moment in both for name in ("accuracy", "alike")] for both in firsts]


def pressed(found: Numbers) -> float | None:
    """The rise in as many epochs at the rate of the repair itself."""
    first_and_last = found.get("pressed")
    return first_and_last[1]["accuracy"] - first_and_last[0]["accuracy"] if first_and_last else None


def heard(numbers: Numbers, method: str, rate: float) -> list[tuple[float, float]]:
    """The attack's AUC on S at the first and the last moment of the harmless training."""
    found = [one["moments"] for one in answers_of(numbers, method, rate) if one.get("moments")]
    return [(moments[0]["auc"], moments[-1]["auc"]) for moments in found]


def floor(numbers: Numbers, rate: float, of: str = "floors") -> float | None:
    """Between two retrained seeds; of: "floors" is the gap, "floors_kl" the KL on S."""
    by_request = numbers.get(of, {})
    found = [by_request[words] for words in requests_of(numbers, rate) if words in by_request]
    return float(np.mean(found)) if found else None


def unmeasured(numbers: Numbers, methods: Sequence[str]) -> str:
    """Which of them have no answer to which kind of request, in words; empty where all have."""
    labels = {key: label for key, _, label, _ in reversed(WAYS)}
    texts = []
    for rate, words in kinds(numbers).items():
        absent = [labels[method] for method in methods if not answers_of(numbers, method, rate)]
        texts += [f"{', '.join(absent)} ({words})"] if absent else []
    return "; ".join(texts)
