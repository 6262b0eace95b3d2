"""How many samples came, and how often each: what a loader hands out twice, or only a part of, is found by counting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ssse.errors import InvalidData
from ssse.problem.batches import Batch, count_samples
from ssse.problem.sample_digests import digest_to_count
from ssse.system.group import ALONE, Group

FEW = 10  # different samples: of so few all may well be there twice


@dataclass(frozen=True)
class Counted:
    """Samples of one pass.

    Attributes:
        total: n. distinct: how many different ones. times: each of them comes this often, or a multiple of it.
    """

    total: int
    distinct: int
    times: int

    @classmethod
    def of(cls, digests: np.ndarray) -> Counted:
        _, each = np.unique(digests, return_counts=True)
        return cls(len(digests), len(each), int(np.gcd.reduce(each)) if len(each) else 1)

    @property
    def repeats(self) -> int:
        """Samples that are the same, in inputs and label, as one before them."""
        return self.total - self.distinct

    @property
    def all_repeated(self) -> bool:
        return self.times > 1 and self.distinct > FEW


class SampleCounter:
    """Counts while the batches pass by: a digest of eight bytes a sample, forgotten afterwards."""

    def __init__(self) -> None:
        self._digests: list[np.ndarray] = []

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if len(batch[1]):
                self._digests.append(digest_to_count(batch))
            yield batch

    @property
    def digests(self) -> np.ndarray:
        """Of all samples so far, in their order."""
        return np.concatenate([np.empty(0, dtype=np.uint64), *self._digests])

    def include(self, digests: np.ndarray) -> None:
        """Samples that passed by earlier."""
        self._digests.insert(0, digests)

    def counted(self, group: Group = ALONE) -> Counted:
        """On all processes together: every digest goes to the one that counts it."""
        mine = self.digests if group.alone else _dealt(self.digests, group)
        counted = Counted.of(mine)
        if group.alone:
            return counted
        told = group.numbers(counted.total, counted.distinct, counted.times if counted.total else 0).long()
        return Counted(int(told[:, 0].sum()), int(told[:, 1].sum()), int(np.gcd.reduce(told[:, 2].cpu().numpy())))

    def on_several(self, group: Group) -> int:
        """Different samples that more than one process has seen."""
        _, each = np.unique(_dealt(np.unique(self.digests), group), return_counts=True)
        return int(group.numbers(float((each > 1).sum())).sum())


def _dealt(digests: np.ndarray, group: Group) -> np.ndarray:
    """Those that this process counts, from all processes."""
    owners = digests % np.uint64(group.size)
    parts = [torch.from_numpy(digests[owners == rank].view(np.int64)).to(group.device) for rank in range(group.size)]
    return group.exchange(parts).cpu().numpy().view(np.uint64)


def count_at_hand(batches: Iterable[Batch]) -> Counted:
    """Of samples in memory."""
    counter = SampleCounter()
    for _ in counter.watch(batches):
        pass
    return counter.counted()


def check_expected(data: Any, expected: int | None) -> None:
    """Before the pass, where the number of samples is certain then."""
    if expected is not None and expected < 1:
        raise InvalidData(f"n must be the number of training samples, 1 or more, not {expected}.")
    certain = isinstance(data, (list, tuple)) or (
        type(getattr(data, "batch_sampler", None)) is BatchSampler and not _streams(data)
    )
    total = count_samples(data) if certain else None
    if expected is not None and total not in (None, 0, expected):
        raise InvalidData(unexpected(expected, total or 0))


def check_worker_split(data: Any, first: list[Batch], expected: int | None) -> None:
    """The first batch of every worker of a streaming data set: where all are the same, each reads the whole data."""
    workers = batches_to_compare(data)
    if expected is not None or workers < 2 or len(first) < workers or not all(len(y) for _, y in first):
        return
    digests = [digest_to_count(batch) for batch in first[:workers]]
    several = Counted.of(digests[0]).distinct > 1  # one sample alone may well be there twice
    if several and all(np.array_equal(digests[0], other) for other in digests):
        raise InvalidData(
            f"All {workers} workers of the data loader begin with the same samples: an IterableDataset that does not "
            f"split its samples between workers gives each of them {workers} times. {_SPLIT} "
            "If it is meant, pass n=, the number of samples with all repeats."
        )


def batches_to_compare(data: Any) -> int:
    """One of each worker; a loader takes them in turns."""
    return getattr(data, "num_workers", 0) if _streams(data) else 0


def check_counted(data: Any, counted: Counted, expected: int | None) -> tuple[str, ...]:
    """After the pass: refuse what cannot be the training data, and say what may be a mistake.

    `expected` is what the user says that n is; being right, it confirms that repeats and parts are meant.
    """
    total, notes = counted.total, []
    if expected is not None and total != expected:
        raise InvalidData(unexpected(expected, total) + _cause(data, counted))
    length = _length(data)
    if expected is None and counted.all_repeated:
        raise InvalidData(
            f"Every sample came {counted.times} times: {total} samples, of which {counted.distinct} differ, in inputs "
            f"and label.{_cause(data, counted)} If it is meant, pass n={total}."
        )
    if expected is None and _streams(data) and length not in (None, total):
        raise InvalidData(
            f"The data set says that it has {length} samples, and {total} came.{_cause(data, counted)} "
            f"If {total} is right, pass n={total}."
        )
    if counted.repeats:
        notes.append(
            f"{counted.repeats:,} of the {total:,} samples repeat another one, in inputs and label: to forget such a "
            "sample, forget all of its copies."
        )
    if length is not None and length != total and not _streams(data):
        notes.append(
            f"The data loader passed over {total:,} samples of a data set of {length:,}: the curvature is of those."
        )
    return tuple(notes)


_SPLIT = (
    "Split them (torch.utils.data.get_worker_info() in __iter__), or use num_workers=0: the curvature needs each once."
)


def unexpected(expected: int, total: int) -> str:
    return f"n={expected} training samples were expected, and the data holds {total}."


def _cause(data: Any, counted: Counted) -> str:
    if batches_to_compare(data) > 1 and counted.repeats:
        return (
            f" The loader has {data.num_workers} workers, and an IterableDataset that does not split its samples "
            f"between them gives each sample once a worker. {_SPLIT}"
        )
    if counted.all_repeated:
        return " Is the same list of batches in it more than once, or a data set joined with itself? Give each once."
    return ""


def _streams(data: Any) -> bool:
    """Whether it is a loader of single samples that come one after another; there may be no telling how many."""
    return isinstance(getattr(data, "dataset", None), IterableDataset) and getattr(data, "batch_size", None) is not None


def _length(data: Any) -> int | None:
    """Of the data set below a loader that takes single samples from it."""
    dataset = getattr(data, "dataset", None)
    single = getattr(data, "batch_sampler", None) is not None or getattr(data, "batch_size", None) is not None
    return len(dataset) if single and dataset is not None and hasattr(dataset, "__len__") else None
