"""Samples that must not be among others: a training on what stays would teach them again."""

from __future__ import annotations

from collections.abc import Iterable

from ssse.errors import InvalidData
from ssse.problem.batches import Batch, without_weights
from ssse.problem.sample_digests import digest_samples

SALT = b"ssse-overlap"  # the digests live as long as one call and meet only each other: nothing secret


def refuse_forgotten(retained: Iterable[Batch], forgotten: Iterable[Batch]) -> None:
    """By digests of inputs and labels, whatever the weights.

    Raises:
        InvalidData: with how many of the retained samples are forgotten ones.
    """
    gone = {digest for batch in forgotten for digest in _digests(batch)}
    among = sum(digest in gone for batch in retained for digest in _digests(batch))
    if among:
        raise InvalidData(
            f"{among:,} of the retained samples {'is a forgotten one' if among == 1 else 'are forgotten ones'}, or bit "
            "for bit the same: a training on them would teach them again. Leave them out of the retained data."
        )


def _digests(batch: Batch) -> list[int]:
    return digest_samples(without_weights(batch), SALT).tolist() if len(batch[1]) else []
