"""What is kept of every model on every split: three numbers a sample, and all logits on S alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation.measure import Record, measure_split
from ssse.evaluation.outputs import Model, check_model, logits_of
from ssse.evaluation.splits import HELD_OUT, WHOLE_TEST, Splits
from ssse.metrics.scores import Task, check_alike
from ssse.problem.batches import Batch


@dataclass(frozen=True)
class Key:
    """One model: its name and which of its seeds."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name} ({self.seed})" if self.seed else self.name


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
        return {split: len(next(iter(records.values())).right) for split, records in self.splits.items()}

    def accuracies(self, key: Key) -> dict[str, float]:
        return {split: records[key].accuracy for split, records in self.splits.items()}

    def accuracy_on_test(self, key: Key) -> float | None:
        """On the whole test set, the forgotten class in it: dropping it would hide what was forgotten too much."""
        parts = self.whole_test
        return float(np.concatenate([records[key].right for records in parts]).mean()) if parts else None

    @property
    def whole_test(self) -> list[dict[Key, Record]]:
        """The test set in its parts; none where one of them is missing."""
        whole = next((parts for parts in WHOLE_TEST if parts <= self.splits.keys()), set())
        return [records for split, records in self.splits.items() if split in whole]

    @property
    def held_out(self) -> dict[Key, Record] | None:
        """On samples of the forgotten kind that no model was trained on."""
        return next((self.splits[split] for split in HELD_OUT if split in self.splits), None)


def collect(models: Mapping[str, Model | Sequence[Model]], splits: Splits, retrained: str, progress: bool) -> Records:
    """One pass over each split, every model on every batch."""
    records = Records(named_models(models))
    if len({str(key) for key in records.models}) < len(records.models):
        raise InvalidSetting("Two models end up with the same name; call them differently.")
    ranges = {key: _Range() for key in records.models}

    def outputs(batch: Batch) -> dict[Key, np.ndarray]:
        logits = {key: logits_of(model, batch[0], str(key)) for key, model in records.models.items()}
        check_alike({str(key): z for key, z in logits.items()})
        for key, z in logits.items():
            ranges[key].add(z)
        return logits

    task: Task | None = None
    for split, data in splits.items():
        measured = measure_split(
            split,
            data,
            outputs,
            retrained=records.seeds(retrained),
            progress="evaluating on" if progress else None,
        )
        if measured.task != (task or measured.task):
            raise InvalidData(f"The labels of '{split}' are {measured.task}, those of the splits before it {task}.")
        task, labels = measured.task, measured.labels
        records.splits[split] = measured.records
        if split == "forgotten":
            records.labels = labels
        if task == "attributes" and labels.shape[1] > 2 and (labels.sum(1) == 1).all():
            records.flags.append(
                f"Every sample of '{split}' has exactly one attribute: one-hot labels? For classes pass their indices."
            )
        if task == "classes":
            records.shares[split] = np.bincount(labels, minlength=measured.outputs) / len(labels)
    records.task = task or "classes"
    for key, one in ranges.items():
        if one.constant and sum(records.counts.values()) > 1:
            raise InvalidData(f"'{key}': the logits are constant, the same for every sample; this model says nothing.")
        if one.probabilities and records.task == "classes":
            raise InvalidData(
                f"'{key}': the outputs are probabilities (none negative, each row sums to 1), and logits are needed. "
                "Leave the softmax out, or pass log-probabilities."
            )
    return records


@dataclass
class _Range:
    """What a model's logits are like over all splits, to refuse those that say nothing and those that are none."""

    low: np.ndarray | float = np.inf  # of each output
    high: np.ndarray | float = -np.inf
    sum_to_one: bool = True

    def add(self, logits: np.ndarray) -> None:
        self.low, self.high = np.minimum(self.low, logits.min(0)), np.maximum(self.high, logits.max(0))
        self.sum_to_one &= bool(np.abs(logits.sum(1) - 1).max() < 1e-4)

    @property
    def constant(self) -> bool:
        return bool(np.all(self.low == self.high))

    @property
    def probabilities(self) -> bool:
        return self.sum_to_one and bool(np.all(self.low >= 0))


def named_models(models: Mapping[str, Model | Sequence[Model]]) -> dict[Key, Model]:
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
