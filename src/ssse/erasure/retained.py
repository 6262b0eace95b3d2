"""The training data less the samples to forget, for the methods that still need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ssse.errors import InvalidData
from ssse.problem.batches import Batch, check_repeatable, read_batch, regroup, take_samples
from ssse.problem.loaders import Data, as_batches
from ssse.problem.sample_digests import digest_samples, take_due

# The digests live as long as one call and meet only each other, so their key need not be secret.
SALT = b"ssse-retained"


def retained_batches(
    data: Data,
    forget: Data,
    device: torch.device,
    group: int = 1024,
    label_key: str | None = None,
) -> list[Batch]:
    """D∖S in the order of D, `group` samples at a time, on the device.

    A forgotten sample is found by a keyed digest of its bytes (inputs and label). Each occurrence counts
    once: a sample that is twice in the data and once in the forget set stays once, its later copy.

    Raises:
        InvalidData: a forgotten sample is not in the data, or nothing remains.
    """
    data = as_batches(data, label_key)
    check_repeatable(data)
    wanted = count_digests(as_batches(forget, label_key), device)
    asked = wanted.total()
    kept = list(drop_forgotten(data, wanted, device))
    missing = wanted.total()
    if missing:
        raise InvalidData(
            f"{missing} of the {asked} samples to forget are not in the training data, not bit for bit in this form "
            "(other preprocessing, dtype or labels), or more often than they are there. Pass them as they were trained "
            "on, and the data with them still in it."
        )
    if not kept:
        raise InvalidData("Nothing remains: the forget set is the whole of the training data.")
    return list(regroup(kept, group))


def count_digests(forget: Iterable[Any], device: torch.device) -> Counter[int]:
    """How often each forgotten sample is to be forgotten, by its digest."""
    wanted: Counter[int] = Counter()
    for batch in forget:
        wanted.update(_digests(read_batch(batch, device)))
    return wanted


def drop_forgotten(data: Iterable[Any], wanted: Counter[int], device: torch.device) -> Iterator[Batch]:
    """The batches of the data without the wanted samples, which are counted down as they are met."""
    for batch in data:
        read = read_batch(batch, device)
        keep = [place for place, forgotten in enumerate(take_due(_digests(read), wanted)) if not forgotten]
        if keep:
            whole = len(keep) == len(read[1])
            yield read if whole else take_samples(read, torch.tensor(keep, device=device))


def _digests(batch: Batch) -> list[int]:
    return digest_samples(batch, SALT).tolist() if len(batch[1]) else []
