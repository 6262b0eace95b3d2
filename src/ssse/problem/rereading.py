"""Samples read again and again, to see whether they stay as they are: the curvature needs each as one fixed input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from ssse.errors import InvalidData

# A flip with probability ½ stays unseen in 4 reads of one sample with probability 1/8, in those of 8 with (1/8)⁸.
PLACES, READS = 8, 4
COLLATIONS = 16  # of a function that changes a batch as a whole: with probability ½ unseen in one of 2¹⁵
SECONDS = 1.0  # after that no more than was begun, however slow a sample is


def refuse_changing_samples(data: Any) -> None:
    """Read a few samples, spread over a map-style data set, several times, and join them as the loader does.

    Nothing is taken from an iterator, and torch's random numbers go on as if nothing had been read.
    """
    dataset = getattr(data, "dataset", None)
    if dataset is None or not hasattr(dataset, "__getitem__") or isinstance(dataset, IterableDataset):
        return
    length = getattr(dataset, "__len__", lambda: 0)()
    if not length:
        return
    count = min(PLACES, length)
    places = [i * (length - 1) // max(count - 1, 1) for i in range(count)]
    with torch.random.fork_rng(devices=[]):  # inside, each read draws anew
        deadline = time.monotonic() + SECONDS
        places = _read_again(dataset, places, deadline)
        _collate_again(data, dataset, places, deadline)


def _read_again(dataset: Any, places: Sequence[int], deadline: float) -> list[int]:
    """The places that time allowed, one at least, read twice at least."""
    first: dict[int, Any] = {}
    for place in places:
        if first and time.monotonic() > deadline:
            break
        first[place] = dataset[place]
        _compare(place, first[place], dataset[place])
    for _ in range(READS - 2):
        for place, before in first.items():
            if time.monotonic() > deadline:
                return list(first)
            _compare(place, before, dataset[place])
    return list(first)


def _compare(place: int, before: Any, now: Any) -> None:
    if not same(before, now):
        raise InvalidData(
            f"The data set returns different values for index {place} when it is read again (random augmentation?). "
            "The curvature needs each sample as one fixed input: switch the augmentation off."
        )


def _collate_again(data: Any, dataset: Any, places: list[int], deadline: float) -> None:
    """The loader's own collate function, on items read anew each time: it may change them."""
    collate: Callable[[Any], Any] | None = getattr(data, "collate_fn", None)
    if collate is None or collate is default_collate:  # which changes nothing
        return
    batched = getattr(data, "batch_sampler", None) is not None
    first: Any = None
    for done in range(COLLATIONS):
        if done > 1 and time.monotonic() > deadline:
            return
        now = collate(_items(dataset, places) if batched else dataset[places[0]])
        if done and not same(first, now):
            raise InvalidData(
                f"The loader's collate function makes different batches of the same {len(places)} samples (random "
                "augmentation?). The curvature needs each sample as one fixed input: switch the augmentation off."
            )
        first = first if done else now


def _items(dataset: Any, places: list[int]) -> Any:
    """As torch's loader fetches them."""
    many = getattr(dataset, "__getitems__", None)
    return [dataset[place] for place in places] if many is None else many(places)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    try:
        p, q = torch.as_tensor(a), torch.as_tensor(b)
    except (TypeError, ValueError, RuntimeError):
        return True  # not numbers yet; the collated batches are checked when they come
    return p.shape == q.shape and bool(((p == q) | ((p != p) & (q != q))).all())
