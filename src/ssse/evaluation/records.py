"""What is kept of every model on every split: two numbers a sample, and all logits on S alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation.outputs import (
    Model,
    Seen,
    check_model,
    watch,
)
from ssse.evaluation.splits import HELD_OUT, WHOLE_TEST, Splits
from ssse.metrics.gaps import divergence
from ssse.metrics.scores import (
    Task,
    confidences,
    hits,
    log_probabilities,
)


@dataclass(frozen=True)
class Key:
    """One model: its name and which of its seeds."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name} ({self.seed})" if self.seed else self.name


@dataclass
class Record:
    """One model on one split, sample by sample."""

    right: np.ndarray  # 1 or 0; with attributes the share that is right
    phi: np.ndarray  # log p_y − log(1 − p_y)
    divergence: np.ndarray | None  # KL from the average of the retrained models but one
    logits: np.ndarray | None  # on S alone


@dataclass
class Records:
    """Everything that the passes over the splits left.

    Attributes:
        splits: by split, then model. labels: of S. task: classes or attributes.
        shares: of each class in a split, shape (c,); empty for attributes.
    """

    models: dict[Key, Model]
    splits: dict[str, dict[Key, Record]] = field(default_factory=dict)
    labels: np.ndarray | None = None
    task: Task = "classes"
    shares: dict[str, np.ndarray] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    def seeds(self, name: str) -> list[Key]:
        return [key for key in self.models if key.name == name]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(key.name for key in self.models))

    @property
    def counts(self) -> dict[str, int]:
        return {split: len(next(iter(found.values())).right) for split, found in self.splits.items()}

    def accuracies(self, key: Key) -> dict[str, float]:
        return {split: float(found[key].right.mean()) for split, found in self.splits.items()}

    def accuracy_on_test(self, key: Key) -> float | None:
        """On the whole test set, the forgotten class in it: dropping it would hide what was forgotten too much."""
        parts = self.whole_test
        return float(np.concatenate([found[key].right for found in parts]).mean()) if parts else None

    @property
    def whole_test(self) -> list[dict[Key, Record]]:
        """The test set in its parts; none where one of them is missing."""
        whole = next((parts for parts in WHOLE_TEST if parts <= self.splits.keys()), set())
        return [found for split, found in self.splits.items() if split in whole]

    @property
    def held_out(self) -> dict[Key, Record] | None:
        """On samples of the forgotten kind that no model was trained on."""
        return next((self.splits[split] for split in HELD_OUT if split in self.splits), None)


def collect(models: Mapping[str, Model | Sequence[Model]], splits: Splits, retrained: str, progress: bool) -> Records:
    """One pass over each split, every model on every batch."""
    records = Records(_named(models))
    shown = {str(key): model for key, model in records.models.items()}
    if len(shown) < len(records.models):
        raise InvalidSetting("Two models end up with the same name; call them differently.")
    goal, spans, task = records.seeds(retrained), {}, None
    sums: dict[Key, tuple[bool, ...]] = {}  # whether the rows of a model's outputs sum to one: (True,) if all do
    for split, data in splits.items():
        labels, width = [], 0
        taken = {key: _Parts() for key in records.models}
        for seen in watch(shown, data, split, progress):
            if seen.task != (task or seen.task):
                raise InvalidData(f"The labels of '{split}' are {seen.task}, those of the splits before it {task}.")
            task = seen.task
            far = _divergences(records, seen, goal)
            for key in records.models:
                logits = seen.logits[str(key)]
                low, high = spans.get(key, (np.inf, -np.inf))
                spans[key] = np.minimum(low, logits.min(0)), np.maximum(high, logits.max(0))
                to_one = bool(np.abs(logits.sum(1) - 1).max() < 1e-4)
                sums[key] = tuple({*sums.get(key, ()), to_one})
                taken[key].add(logits, seen, far.get(key), keep=split == "forgotten")
            labels.append(seen.labels)
            width = next(iter(seen.logits.values())).shape[1]
        records.splits[split] = {key: part.joined() for key, part in taken.items()}
        whole = np.concatenate(labels)
        if split == "forgotten":
            records.labels = whole
        if task == "attributes" and whole.shape[1] > 2 and (whole.sum(1) == 1).all():
            records.flags.append(
                f"Every sample of '{split}' has exactly one attribute: one-hot labels? For classes pass their indices."
            )
        if task == "classes":
            records.shares[split] = np.bincount(whole, minlength=width) / len(whole)
    records.task = task or "classes"
    for key, (low, high) in spans.items():
        if (low == high).all() and sum(records.counts.values()) > 1:
            raise InvalidData(f"'{key}': the logits are constant, the same for every sample; this model says nothing.")
        if (low >= 0).all() and sums[key] == (True,) and records.task == "classes":
            raise InvalidData(
                f"'{key}': the outputs are probabilities (none negative, each row sums to 1), and logits are needed. "
                "Leave the softmax out, or pass log-probabilities."
            )
    return records


def _named(models: Mapping[str, Model | Sequence[Model]]) -> dict[Key, Model]:
    if not models:
        raise InvalidSetting("There are no models to evaluate.")
    named: dict[Key, Model] = {}
    for name, given in models.items():
        group: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
        if not group:
            raise InvalidSetting(f"'{name}' is an empty list; give it at least one model, or leave it out.")
        for seed, model in enumerate(group):
            check_model(model, name)
            named[Key(name, seed)] = model
    return named


def _divergences(records: Records, seen: Seen, goal: list[Key]) -> dict[Key, np.ndarray]:
    """From the retrained models' average prediction, for a retrained model that of the others.

    An average of R models is nearer to everything than one of R − 1. So that values and floor can be compared, every
    model is held against the R averages that leave one out, and the mean is taken.
    """
    if not goal:
        return {}
    log_p = {key: log_probabilities(seen.logits[str(key)], seen.task) for key in records.models}
    if len(goal) == 1:
        return {key: divergence(log_p[key], log_p[goal[0]]) for key in records.models if key not in goal}
    total = np.sum([np.exp(log_p[key]) for key in goal], axis=0)
    tiny = np.finfo(np.float64).tiny  # a difference may round below zero
    rest = {key: np.log(np.maximum((total - np.exp(log_p[key])) / (len(goal) - 1), tiny)) for key in goal}
    found = {key: divergence(log_p[key], rest[key]) for key in goal}
    for key in records.models:
        if key not in goal:
            found[key] = np.mean([divergence(log_p[key], one) for one in rest.values()], axis=0)
    return found


@dataclass
class _Parts:
    """A record in the making."""

    right: list[np.ndarray] = field(default_factory=list)
    phi: list[np.ndarray] = field(default_factory=list)
    far: list[np.ndarray] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)

    def add(self, logits: np.ndarray, seen: Seen, far: np.ndarray | None, keep: bool) -> None:
        self.right.append(hits(logits, seen.labels, seen.task))
        self.phi.append(confidences(logits, seen.labels, seen.task))
        if far is not None:
            self.far.append(far)
        if keep:
            self.logits.append(logits)

    def joined(self) -> Record:
        far = np.concatenate(self.far) if self.far else None
        logits = np.concatenate(self.logits) if self.logits else None
        return Record(np.concatenate(self.right), np.concatenate(self.phi), far, logits)
