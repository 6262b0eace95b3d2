"""Samples recognised by digests alone. Each occurrence counts once: a sample that is there twice can be taken twice.

Nothing here imports torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ssse.problem.padding import without_padding
from ssse.system.digests import bytes_of, digest_lines

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ssse.problem.batch_forms import Inputs
    from ssse.problem.batches import Batch


COUNTED = b"counted, and not kept"


def digest_to_count(batch: Batch) -> np.ndarray:
    """As `digest_samples`, for what is compared with digests of this version of the library alone."""
    return digest_samples(batch, COUNTED, stored=False)


def digest_samples(batch: Batch, salt: bytes, stored: bool = True) -> np.ndarray:
    """64 bits of a keyed hash of each sample's inputs and label, with the names, shapes and dtypes of the inputs.

    A weight is part of its sample, and padding is not, where an attention mask tells it: however a sequence is padded,
    its digest is that of the sequence alone. Without a mask it is digested as it comes.
    """
    import numpy as np

    from ssse.problem.labels import label_values, label_weights

    x, y = batch
    weights, digests = label_weights(y), np.empty(len(y), dtype=np.uint64)
    for places, inputs, labels in without_padding(x, label_values(y)):
        named = _named(inputs)
        form = repr([(key, str(named[key].dtype), tuple(named[key].shape[1:])) for key in sorted(named)])
        entries = {**named, "": labels.double() + 0.0}  # 1 is the same label in any dtype, and −0 is 0
        lines = [bytes_of(entries[key]) for key in sorted(entries)]
        if weights is not None:
            lines.append(bytes_of(weights[places].double() + 0.0))
        digests[_index(places)] = digest_lines(lines, salt, form.encode(), stored)
    return digests


def digest_inputs(x: Inputs, key: bytes) -> np.ndarray:
    """64 bits of a keyed hash of each sample's inputs alone; of padding as in `digest_samples`."""
    import numpy as np

    first = next(iter(_named(x).values()))
    digests = np.empty(len(first), dtype=np.uint64)
    for places, inputs, _ in without_padding(x, first):
        named = _named(inputs)
        digests[_index(places)] = digest_lines([bytes_of(named[name]) for name in sorted(named)], key)
    return digests


def _named(x: Inputs) -> dict[str, Tensor]:
    if isinstance(x, tuple):
        return {f"x[{i:04}]": value for i, value in enumerate(x)}
    return x if isinstance(x, dict) else {"x": x}


def _index(places: Tensor | slice) -> Any:
    return places if isinstance(places, slice) else places.cpu().numpy()


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
