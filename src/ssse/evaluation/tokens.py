"""Language models on the splits: what is kept of every sequence, and the rows of the table that come of it.

A sequence is one sample. Of each model it leaves the sum of its labels' losses, their number, the share that was the
model's first choice, and how far the predictions are from the retrained models', on average over its labels. What is
defined for one label a sample alone, the confusion distance δ, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation.comparison import Comparison, Row
from ssse.evaluation.measure import Record, divergences_from
from ssse.evaluation.outputs import Model, read_outputs
from ssse.evaluation.records import Key, Records, named_models
from ssse.evaluation.splits import SPLITS, Splits
from ssse.evaluation.table import Measure
from ssse.metrics.exposure import exposure
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import check_repeatable, count_samples, read_batch, slice_batch, without_weights
from ssse.problem.token_losses import IGNORED, TokenLoss
from ssse.system.progress import track

AT_A_TIME = 2**23  # scores of all models together that are held at once


@dataclass(frozen=True)
class TokenRecord(Record):
    """One model on one split, sequence by sequence: `right` is the share of labels, `confidences` the mean of log p."""

    losses: np.ndarray = field(default_factory=lambda: np.empty(0))  # sums over a sequence's labels
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0))  # how many they are

    @property
    def loss(self) -> float:
        """Of a token, over all of them."""
        return float(self.losses.sum() / self.tokens.sum())


def collect_tokens(
    models: Mapping[str, Model | Sequence[Model]], splits: Splits, loss: TokenLoss, retrained: str, progress: bool
) -> Records:
    """One pass over each split, every model on every batch, as many sequences at a time as memory is to be had for."""
    records = Records(named_models(models))
    for split, data in splits.items():
        check_repeatable(data)
        parts: dict[Key, list[TokenRecord]] = {key: [] for key in records.models}
        batches = (without_weights(read_batch(batch, None)) for batch in data)
        for batch in track(batches, count_samples(data), f"evaluating on {SPLITS[split]}", progress):
            for key, one in _measure(records, batch, loss, records.seeds(retrained)):
                parts[key].append(one)
        if not all(parts.values()):
            raise InvalidData(f"The split '{split}' is empty; leave it out, or pass its samples.")
        records.splits[split] = {key: _joined(pieces) for key, pieces in parts.items()}
    return records


def _measure(
    records: Records, batch: tuple[Inputs, Tensor], loss: TokenLoss, goal: list[Key]
) -> Iterator[tuple[Key, TokenRecord]]:
    x, y = batch
    start, step = 0, 1
    while start < len(y):
        part, labels = slice_batch(x, slice(start, start + step)), y[start : start + step]
        start += step
        scores = {key: _scores_of(model, part, labels, loss, str(key)) for key, model in records.models.items()}
        sizes = {key: one.shape[2] for key, one in scores.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"'{key}' has {size}" for key, size in sizes.items())
            raise InvalidData(f"The models disagree on the vocabulary: {told}.")
        yield from _records_of(scores, loss.targets(labels).cpu(), goal)
        first = next(iter(scores.values()))
        step = max(1, AT_A_TIME // (len(scores) * first[0].numel()))  # known once the vocabulary was seen


def _scores_of(model: Model, x: Any, y: Tensor, loss: TokenLoss, name: str) -> Tensor:
    def read(scores: Tensor, _: str) -> Tensor:
        bound = loss.bound(tuple(scores.shape), y)
        bound.check(y, torch.Size((len(y), scores[0].numel())))
        if not bool(torch.isfinite(scores).all()):
            raise InvalidData(f"{name}: the logits of a sequence hold NaN or infinity.")
        return scores.detach().cpu().double()

    return read_outputs(model, x, name, read)


def _records_of(scores: Mapping[Key, Tensor], target: Tensor, goal: list[Key]) -> Iterator[tuple[Key, TokenRecord]]:
    known = target != IGNORED
    sequence, labels = known.nonzero()[:, 0].numpy(), target[known]
    counts = known.sum(1).numpy().astype(np.float64)

    def over_sequences(values: np.ndarray) -> np.ndarray:
        return np.bincount(sequence, weights=values, minlength=len(counts))

    each = {key: one[known] for key, one in scores.items()}  # (labels, V)
    apart = divergences_from({key: one.numpy() for key, one in each.items()}, "classes", goal)
    for key, one in each.items():
        losses = over_sequences(torch.nn.functional.cross_entropy(one, labels, reduction="none").numpy())
        right = over_sequences((one.argmax(1) == labels).double().numpy()) / counts
        divergence = over_sequences(apart[key]) / counts if key in apart else None
        yield key, TokenRecord(right, -losses / counts, divergence, None, losses, counts)


def _joined(parts: list[TokenRecord]) -> TokenRecord:
    def join(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return TokenRecord(join("right"), join("confidences"), join("divergence"), None, join("losses"), join("tokens"))


@dataclass
class TokenComparison(Comparison):
    """As of classes, with loss and perplexity of a token beside the share of labels that was the first choice."""

    right: ClassVar[str] = "labels that were the first choice, %"
    confidence: ClassVar[str] = "mean log-likelihood"

    def rows(self) -> Iterator[Row]:
        yield from self.losses()
        yield from self.accuracies()
        if self.goal:
            yield from self.gaps()
            yield self.loss_gap()
            yield from self.distances()
        if "forgotten" in self.records.splits:
            yield from self.attacks()
            yield from self.distributions()

    def loss_of(self, key: Key, split: str) -> float:
        record = self.records.splits[split][key]
        assert isinstance(record, TokenRecord)
        return record.loss

    def losses(self) -> Iterator[Row]:
        for split in self.records.splits:
            measure = Measure(f"loss_{split}", SPLITS[split], "loss per token, nats", 3)
            yield self.row(measure, lambda key, split=split: self.loss_of(key, split))
        for split in self.records.splits:
            measure = Measure(f"perplexity_{split}", SPLITS[split], "perplexity", 2)
            yield self.row(measure, lambda key, split=split: math.exp(min(self.loss_of(key, split), 700.0)))

    def loss_gap(self) -> Row:
        def gap(key: Key) -> float:
            apart = [
                abs(self.loss_of(key, split) - float(np.mean([self.loss_of(other, split) for other in group])))
                for group in self.references(key)
                for split in self.records.splits
            ]
            return float(np.mean(apart))

        measure = Measure(
            "loss_gap", "mean gap in loss per token, nats", f"difference to '{self.retrained}'", 3, gap=True
        )
        return self.gap_row(measure, gap)

    def exposures(self, canaries: Sequence[tuple[Any, Any]]) -> Iterator[Row]:
        """Mean and largest over the canaries, of every model."""
        found = {
            key: [exposure(model, canary, alternatives).exposure for canary, alternatives in canaries]
            for key, model in self.records.models.items()
        }
        group = f"exposure of {len(canaries)} canar{'y' if len(canaries) == 1 else 'ies'}, bits"
        yield self.row(Measure("exposure", "mean", group), lambda key: float(np.mean(found[key])))
        if len(canaries) > 1:
            yield self.row(Measure("exposure_max", "largest", group), lambda key: max(found[key]))


def check_canaries(canaries: Any, loss: object) -> list[tuple[Any, Any]]:
    """Pairs of a canary and its alternatives."""
    if not isinstance(loss, TokenLoss):
        raise InvalidSetting("Canaries are sequences of a language model: pass its loss, loss_fn='causal_lm'.")
    pairs = list(canaries)
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise InvalidSetting(
            "canaries is a list of pairs (canary, alternatives), each as ssse.metrics.exposure takes them: token ids, "
            "and the token ids of other secrets."
        )
    return [(pair[0], pair[1]) for pair in pairs]
