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
    if among := _count_among(retained, forgotten):
        raise InvalidData(
            f"{among:,} of the retained samples {'is a forgotten one' if among == 1 else 'are forgotten ones'}, or bit "
            "for bit the same: a training on them would teach them again. Leave them out of the retained data."
        )


def refuse_forgotten_held_out(held_out: Iterable[Batch], forgotten: Iterable[Batch]) -> None:
    """Samples that were forgotten were trained on before: what they should be like, they cannot tell themselves.

    Raises:
        InvalidData: with how many of the held-out samples are forgotten ones.
    """
    if among := _count_among(held_out, forgotten):
        raise InvalidData(
            f"{among:,} of the held-out samples {'is a forgotten one' if among == 1 else 'are forgotten ones'}, or bit "
            "for bit the same: what the forgotten samples should be like, others must tell. Leave them out of held_out."
        )


def _count_among(samples: Iterable[Batch], forgotten: Iterable[Batch]) -> int:
    gone = {digest for batch in forgotten for digest in _digests(batch)}
    return sum(digest in gone for batch in samples for digest in _digests(batch))


def _digests(batch: Batch) -> list[int]:
    return digest_samples(without_weights(batch), SALT).tolist() if len(batch[1]) else []
