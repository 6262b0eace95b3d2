"""Samples that should keep working, under the model before a step and after it: whether the step has ruined it.

Both engines measure with it; what is measured is one number a sample, so nothing here depends on the kind of model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# A model is ruined that gets so many fewer right, or is no better than guessing any more; or, where a loss is the
# user's own and guessing is not known, whose loss is so many times what it was.
RUINED_ACCURACY = 0.10
RUINED_LOSS = 10.0
# From here on it is said. The loss: as a share of what guessing costs, or so many times what it was.
WORSE_ACCURACY = 0.03
WORSE_LOSS_SHARE = 0.10
WORSE_LOSS = 2.0
NOISE = 2.5  # standard errors: of few samples, some fall by chance
# Of a class, as the probe has it: one that loses so much need not keep working, unless all lose nearly so much.
LEAVING, MORE_THAN_ALL = 0.25, 1.25


@dataclass(frozen=True)
class Seen:
    """One model on the probe. losses: of every sample. right: 1 or 0, with attributes the share that is right."""

    losses: np.ndarray | None
    right: np.ndarray | None


@dataclass(frozen=True)
class Health:
    """Both models on the same samples. guessing: the mean loss of an answer that does not look at the input."""

    before: Seen
    after: Seen
    guessing: float | None = None

    @property
    def finite(self) -> bool:
        return self.after.losses is None or bool(np.isfinite(self.after.losses).all())

    def numbers(self) -> dict[str, Any]:
        """As an assessment has them."""
        some = self.before.right if self.before.losses is None else self.before.losses
        return {
            "probe_samples": 0 if some is None else len(some),
            "probe_loss_before": _mean(self.before.losses),
            "probe_loss_after": _mean(self.after.losses),
            "probe_accuracy_before": _mean(self.before.right),
            "probe_accuracy_after": _mean(self.after.right),
        }


def staying(labels: np.ndarray, forgotten: np.ndarray, n: int) -> np.ndarray:
    """Which samples of the probe count, shape (m,): those whose class does not leave with the forgotten samples.

    Of a class that goes, or half goes, a retrained model knows less too. How much of a class goes is judged by the
    probe: it is taken to hold the classes as the n training samples did. Where all go alike, all count.
    """
    classes, counts = np.unique(labels, return_counts=True)
    gone = np.array([(forgotten == one).sum() for one in classes])
    limit = max(LEAVING, MORE_THAN_ALL * len(forgotten) / n)
    most = counts + NOISE * np.sqrt(counts)  # as many as there may be of a class, by the few that the probe has
    leaving = classes[gone > limit * n * most / len(labels)]
    mask = ~np.isin(labels, leaving)
    return mask if mask.any() else np.ones(len(labels), dtype=bool)


def ruin(health: Health) -> list[str]:
    """Why the model after the step cannot be served; none if it can."""
    if reason := _fewer_right(health, RUINED_ACCURACY):
        return [reason]
    guessing = health.guessing
    if guessing is None:
        return _larger_loss(health, lambda was: RUINED_LOSS * was)
    return _larger_loss(
        health, lambda was: guessing if was < guessing else math.inf, f", beyond the {guessing:.3g} of guessing"
    )


def worsening(health: Health) -> list[str]:
    """A reason for caution, in words and numbers."""
    if reason := _fewer_right(health, WORSE_ACCURACY):
        return [reason]
    guessing = health.guessing
    return _larger_loss(health, lambda was: WORSE_LOSS * was if guessing is None else was + WORSE_LOSS_SHARE * guessing)


def _fewer_right(health: Health, limit: float) -> str:
    before, after = health.before.right, health.after.right
    if before is None or after is None or before.mean() - after.mean() <= limit or not _beyond_noise(before - after):
        return ""
    return (
        f"Of {len(before):,} probe samples {before.mean():.1%} were right before the step, {after.mean():.1%} after it."
    )


def _larger_loss(health: Health, limit: Callable[[float], float], beyond: str = "") -> list[str]:
    before, after = health.before.losses, health.after.losses
    if before is None or after is None or not _beyond_noise(after - before):
        return []
    was, now = float(before.mean()), float(after.mean())
    if now <= limit(was):
        return []
    return [f"The mean loss on {len(before):,} probe samples went from {was:.3g} to {now:.3g}{beyond}."]


def _beyond_noise(falls: np.ndarray) -> bool:
    """Whether the mean fall is more than samples that go up and down by chance would show (for right and wrong: the
    test of McNemar)."""
    with np.errstate(over="ignore"):  # of a model whose losses are beyond all numbers
        return float(falls.sum()) > NOISE * float(np.linalg.norm(falls))


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(values.mean())
