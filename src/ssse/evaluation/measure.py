"""Models on a split, sample by sample: what every table, every curve along a step and every attack starts from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ssse.errors import InvalidData
from ssse.evaluation.splits import SPLITS
from ssse.metrics.gaps import divergence
from ssse.metrics.scores import Task, as_labels, confidences, hits, log_probabilities
from ssse.problem.batches import Batch, check_repeatable, count_samples, read_batch, without_weights
from ssse.system.progress import track

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Record:
    """One model on one split, sample by sample; NaN where its logits are not finite."""

    right: np.ndarray  # 1 or 0; with attributes the share that is right
    confidences: np.ndarray | None  # log p_y − log(1 − p_y), where they were asked for
    divergence: np.ndarray | None  # KL from the average of the retrained models but one
    logits: np.ndarray | None

    @property
    def phi(self) -> np.ndarray:
        assert self.confidences is not None
        return self.confidences

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


@dataclass(frozen=True)
class MeasuredSplit(Generic[Key]):
    """All models on one split. outputs: columns of the logits."""

    records: dict[Key, Record]
    labels: np.ndarray
    task: Task
    outputs: int


def measure_split(
    split: str,
    data: Iterable[Any],
    logits_of: Callable[[Batch], Mapping[Key, np.ndarray]],
    *,
    retrained: Sequence[Key] = (),
    with_confidences: bool = True,
    device: torch.device | None = None,
    progress: str | None = None,
) -> MeasuredSplit[Key]:
    """Read a split once, every batch under all models.

    A loader that shuffles shows each model the same samples, and only one batch is held. Logits are kept of S alone.

    Args:
        logits_of: float64 logits of every model on a batch, shape (n, c); the first model's must be finite.
        retrained: the models that divergences are taken from; without any there are none.
        device: where batches are moved; None: they stay where they are.
        progress: what the progress bar says before the name of the split; None: no bar.
    """
    check_repeatable(data)
    parts: dict[Key, _Parts] = {}
    labels: list[np.ndarray] = []
    task: Task | None = None
    outputs = 0
    # As they come: these fit the memory. Every sample counts once, whatever it weighed in training.
    batches = (without_weights(read_batch(batch, device)) for batch in data)
    for batch in track(batches, count_samples(data), f"{progress} {SPLITS[split]}", progress is not None):
        if not len(batch[1]):
            continue
        logits = logits_of(batch)
        first = next(iter(logits.values()))
        truth, kind = as_labels(batch[1], first)
        if kind != (task or kind):
            raise InvalidData(f"Some batches of '{split}' have class indices as labels, others attributes.")
        task, outputs = kind, first.shape[1]
        divergences = divergences_from(logits, task, retrained)
        for key, z in logits.items():
            part = parts.setdefault(key, _Parts())
            part.add(z, truth, task, with_confidences, divergences.get(key), keep=split == "forgotten")
        labels.append(truth)
    if task is None:
        raise InvalidData(f"The split '{split}' is empty; leave it out, or pass its samples.")
    records = {key: part.joined() for key, part in parts.items()}
    return MeasuredSplit(records, np.concatenate(labels), task, outputs)


def divergences_from(logits: Mapping[Key, np.ndarray], task: Task, retrained: Sequence[Key]) -> dict[Key, np.ndarray]:
    """From the retrained models' average prediction, for a retrained model that of the others.

    An average of R models is nearer to everything than one of R − 1. So that values and floor can be compared, every
    model is held against the R averages that leave one out, and the mean is taken.
    """
    if not retrained:
        return {}
    with np.errstate(invalid="ignore", over="ignore"):
        log_p = {key: log_probabilities(z, task) for key, z in logits.items()}
        if len(retrained) == 1:
            goal = log_p[retrained[0]]
            return {key: divergence(own, goal) for key, own in log_p.items() if key not in retrained}
        total = np.sum([np.exp(log_p[key]) for key in retrained], axis=0)
        tiny = np.finfo(np.float64).tiny  # a difference may round below zero
        others = len(retrained) - 1
        rest = {key: np.log(np.maximum((total - np.exp(log_p[key])) / others, tiny)) for key in retrained}
        distances = {key: divergence(log_p[key], rest[key]) for key in retrained}
        for key, own in log_p.items():
            if key not in retrained:
                distances[key] = np.mean([divergence(own, one) for one in rest.values()], axis=0)
    return distances


@dataclass
class _Parts:
    """A record in the making, batch by batch."""

    right: list[np.ndarray] = field(default_factory=list)
    phi: list[np.ndarray] = field(default_factory=list)
    divergence: list[np.ndarray] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        task: Task,
        with_confidences: bool,
        divergence: np.ndarray | None,
        keep: bool,
    ) -> None:
        finite = bool(np.isfinite(logits).all())
        self.right.append(hits(logits, labels, task) if finite else np.full(len(labels), np.nan))
        if with_confidences:
            with np.errstate(invalid="ignore", over="ignore"):
                self.phi.append(confidences(logits, labels, task))
        if divergence is not None:
            self.divergence.append(divergence)
        if keep:
            self.logits.append(logits)

    def joined(self) -> Record:
        parts = (self.right, self.phi, self.divergence, self.logits)
        right, phi, divergence, logits = (np.concatenate(part) if part else None for part in parts)
        assert right is not None
        return Record(right, phi, divergence, logits)
