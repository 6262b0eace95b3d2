"""Samples that should keep working, under the model before a step and after it: whether the step has ruined it.

Both engines measure with it; what is measured is one number a sample, so nothing here depends on the kind of model.
"""

from __future__ import annotations

import math
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
    before, after = health.before, health.after
    if before.right is not None and after.right is not None:
        was, now = before.right.mean(), after.right.mean()
        if was - now > RUINED_ACCURACY and _beyond_noise(before.right - after.right):
            return [f"Of {len(before.right):,} probe samples {was:.1%} were right before the step, {now:.1%} after it."]
    if before.losses is not None and after.losses is not None and _beyond_noise(after.losses - before.losses):
        was, now, guessing = before.losses.mean(), after.losses.mean(), health.guessing
        if guessing is not None and was < guessing < now:
            return [
                f"The mean loss on {len(before.losses):,} probe samples went from {was:.3g} to {now:.3g}, beyond the "
                f"{guessing:.3g} of guessing."
            ]
        if guessing is None and now > RUINED_LOSS * was:
            return [f"The mean loss on {len(before.losses):,} probe samples went from {was:.3g} to {now:.3g}."]
    return []


def worsening(health: Health) -> list[str]:
    """A reason for caution, in words and numbers."""
    before, after = health.before, health.after
    if before.right is not None and after.right is not None:
        was, now = before.right.mean(), after.right.mean()
        if was - now > WORSE_ACCURACY and _beyond_noise(before.right - after.right):
            return [f"Of {len(before.right):,} probe samples {was:.1%} were right before the step, {now:.1%} after it."]
    if before.losses is not None and after.losses is not None and _beyond_noise(after.losses - before.losses):
        was, now = before.losses.mean(), after.losses.mean()
        limit = WORSE_LOSS * was if health.guessing is None else was + WORSE_LOSS_SHARE * health.guessing
        if now > limit:
            return [f"The mean loss on {len(before.losses):,} probe samples went from {was:.3g} to {now:.3g}."]
    return []


def _beyond_noise(falls: np.ndarray) -> bool:
    """Whether the mean fall is more than samples that go up and down by chance would show (for right and wrong: the
    test of McNemar)."""
    return float(falls.sum()) > NOISE * math.sqrt(float(np.square(falls).sum()))


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(values.mean())
