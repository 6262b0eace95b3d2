"""Samples recognised by digests alone. Each occurrence counts once: a sample that is there twice can be taken twice.

Nothing here imports torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ssse.system.digests import bytes_of, digest_lines

if TYPE_CHECKING:
    import numpy as np

    from ssse.problem.batches import Batch


def digest_samples(batch: Batch, salt: bytes) -> np.ndarray:
    """64 bits of a keyed hash of each sample's inputs and label, with the names, shapes and dtypes of the inputs."""
    x, y = batch
    inputs = dict(x) if isinstance(x, dict) else {"x": x}
    form = repr([(key, str(inputs[key].dtype), tuple(inputs[key].shape[1:])) for key in sorted(inputs)])
    entries = {**inputs, "": y.double() + 0.0}  # 1 is the same label in any dtype, and −0 is 0
    return digest_lines([bytes_of(entries[key]) for key in sorted(entries)], salt, form.encode())


def take_due(digests: Iterable[int], due: Counter[int]) -> list[bool]:
    """Which of these samples are due: the first occurrences of each, as many as `due` says. It is counted down."""
    taken = []
    for digest in digests:
        taken.append(due[digest] > 0)
        due[digest] -= taken[-1]
    return taken


def find_places(wanted: Iterable[int], stored: Iterable[int]) -> list[int | None]:
    """For each wanted sample, in order, the first free place among the stored ones; None where there is none."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, digest in enumerate(stored):
        places[digest].append(place)
    for free in places.values():
        free.reverse()
    return [places[digest].pop() if places.get(digest) else None for digest in wanted]
