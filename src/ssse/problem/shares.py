"""Which samples this process reads: those of a data set that can be read anywhere are dealt out, a stream is its own.

DistributedSampler's rule, without its padding: process r of P takes the places r, r + P, r + 2P, … So do those that
remain after a checkpoint, whatever the number of processes was then. Where consecutive samples share a row, they are
dealt out together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from ssse.errors import InvalidData
from ssse.problem.batches import check_repeatable, count_samples, given_form, read_batch, take_samples
from ssse.problem.loaders import KeyedBatches
from ssse.system.group import Group


@dataclass(frozen=True)
class Share:
    """What one process reads.

    Attributes:
        data: its batches. total: samples on all processes, where known.
        places: of its samples among all, in the order in which they come; None of a stream, which says nothing of them.
        whole: its batches when nothing was done yet, to be read again and again.
    """

    data: Iterable[Any]
    total: int | None
    places: np.ndarray | None = None
    whole: Iterable[Any] | None = None


class Joined:
    """Batches of several data, one after the other. Read as often as its parts can be."""

    def __init__(self, *parts: Iterable[Any]):
        self.parts = parts

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.parts)

    def places(self) -> list[int] | None:
        """In each part, where all can be read by place."""
        counts = [places_in(part) for part in self.parts]
        return None if None in counts else [count for count in counts if count is not None]

    def at(self, places: np.ndarray) -> Joined:
        starts = np.cumsum([0, *(self.places() or ())])
        inside = (places[(places >= a) & (places < b)] - a for a, b in itertools.pairwise(starts))
        return Joined(*(samples_at(part, index) for part, index in zip(self.parts, inside, strict=True)))


def deal(data: Iterable[Any], group: Group, unit: int, done: np.ndarray | None = None) -> Share:
    """This process's share of the data.

    Args:
        unit: consecutive samples that stay together. done: which places need not be read any more.
    """
    check_repeatable(data, 1)  # a sampler for several processes is meant: what it would deal out is dealt out here
    count = places_in(data)
    if count is None:
        return Share(data, None, whole=data)
    if count < group.size:
        raise InvalidData(f"{count} samples are fewer than the {group.size} processes: take fewer of them.")
    every = np.arange(count)
    left = every if done is None else every[~done]
    mine, fresh = _share(left, group, unit), _share(every, group, unit)
    return Share(samples_at(data, mine), count, mine, samples_at(data, fresh))


def _share(places: np.ndarray, group: Group, unit: int) -> np.ndarray:
    return places[(np.arange(len(places)) // unit) % group.size == group.rank]


def places_in(data: Any) -> int | None:
    """How many samples can be read by their place; None of a stream."""
    if isinstance(data, KeyedBatches):
        return places_in(data.inner)
    if isinstance(data, Joined):
        counts = data.places()
        return None if counts is None else sum(counts)
    if isinstance(data, list | tuple):
        return count_samples(data)
    if hasattr(data, "at_places"):
        return len(data.sampler)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return None
    if type(data.batch_sampler) is not BatchSampler:  # one of the user's own, which says alone what comes when
        return None
    return len(_indices(data))


def samples_at(data: Any, places: np.ndarray) -> Iterable[Any]:
    """Batches of the samples at these places, ascending."""
    if isinstance(data, KeyedBatches):
        return data.around(samples_at(data.inner, places))
    if isinstance(data, Joined):
        return data.at(places)
    if isinstance(data, list | tuple):
        return PartOfList(data, places)
    if hasattr(data, "at_places"):
        return data.at_places(places)
    indices = _indices(data)
    return DataLoader(
        data.dataset,
        batch_size=data.batch_size,
        sampler=[indices[place] for place in places.tolist()],
        num_workers=data.num_workers,
        collate_fn=data.collate_fn,
        pin_memory=data.pin_memory,
        worker_init_fn=data.worker_init_fn,
        multiprocessing_context=data.multiprocessing_context,
        generator=torch.Generator(),
    )


def _indices(data: DataLoader[Any]) -> Any:
    """Of all samples that the loader would read, in ascending order, the same on every process however it shuffles."""
    sampler: Any = data.sampler
    length = len(data.dataset)  # type: ignore[arg-type]
    whole = type(sampler).__module__ == Sampler.__module__ and len(sampler) == length
    return range(length) if whole or getattr(sampler, "num_replicas", 1) > 1 else sorted(sampler)


class PartOfList:
    """Some samples of a list of batches.

    Attributes:
        sampler: their places; under this name because that is where the samples of a loader are counted.
    """

    def __init__(self, batches: list[Any] | tuple[Any, ...], places: np.ndarray):
        self.sampler = places
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        start = 0
        for raw in self._batches:
            batch = read_batch(raw, None)
            stop = start + len(batch[1])
            inside = self.sampler[(self.sampler >= start) & (self.sampler < stop)] - start
            if len(inside):
                index = torch.from_numpy(inside).to(batch[1].device)
                yield given_form(take_samples(batch, index))
            start = stop


def check_streams(data: Iterable[Any]) -> None:
    """What can be gone on with after an interruption must be readable at any place."""
    if places_in(data) is None:
        raise InvalidData(
            "checkpoint= needs data that can be read from any place on: a DataLoader over a data set with a length, "
            f"the data set itself, or a list of batches; not {type(data).__name__}."
        )
