"""What every format becomes: samples with ids, read in batches as often as needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidRequest, InvalidSetting
from ssse.intake.messages import did_you_mean, listing
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import Batch

SHOWN_IDS = 5
# PyTorch stores these but hardly computes with them.
WIDENED = {torch.uint16: torch.int64, torch.uint32: torch.int64}


class Source(ABC):
    """Samples of the user.

    Attributes:
        name: for messages: the path or pkg.module:dataset as given.
        ids: texts, shape (n,), every one once; None if there are none.
        columns: of a table, the names of its inputs in order.
    """

    columns: tuple[str, ...] = ()

    def __init__(self, name: str, length: int, ids: np.ndarray | None, dtype: torch.dtype | None):
        if length == 0:
            raise InvalidData(f"'{name}' is empty; it needs one sample at least.")
        self.name = name
        self.ids = ids
        self._length = length
        self._dtype = dtype
        self._place: dict[str, int] = {}
        if ids is not None:
            self._place = self._index(ids)

    def __len__(self) -> int:
        return self._length

    def batches(self, places: np.ndarray | None = None, size: int = 1024) -> Batches:
        """The samples at these places in that order, or all of them; can be iterated again and again."""
        if size < 1:
            raise InvalidSetting(f"A batch needs one sample at least, not {size}.")
        if places is None:
            return Batches(self, range(len(self)), size)
        if not np.issubdtype(np.asarray(places).dtype, np.integer) and len(places):
            raise InvalidData(f"Places of samples must be whole numbers, not {np.asarray(places).dtype}.")
        where = np.asarray(places, dtype=np.int64)
        if where.ndim != 1 or (len(where) and not 0 <= where.min() <= where.max() < len(self)):
            raise InvalidData(
                f"Places in '{self.name}' must be a list of numbers from 0 to {len(self) - 1}; some are not."
            )
        return Batches(self, where, size)

    def places_of(self, ids: Sequence[str]) -> np.ndarray:
        """The places of the samples with these ids, in that order."""
        if self.ids is None:
            raise InvalidData(
                f"'{self.name}' has no ids, so its samples cannot be named. Pass the samples themselves with --forget, "
                'give the data an "id" column, or set [data] ids = "place" if its order never changes.'
            )
        doubled = [name for name, count in Counter(ids).items() if count > 1]
        if doubled:
            raise InvalidRequest(
                f"The request names {listing(doubled, SHOWN_IDS)} more than once; name every sample once."
            )
        unknown = [name for name in ids if name not in self._place]
        if unknown:
            hint = did_you_mean(unknown[0], self.ids.tolist()) if len(unknown) == 1 else ""
            what = f"has no sample with the id {listing(unknown, SHOWN_IDS)}."
            raise InvalidRequest(f"'{self.name}' {what}{hint}", f"The training data {what}")
        return np.array([self._place[name] for name in ids], dtype=np.int64)

    @abstractmethod
    def read(self, places: range | np.ndarray, size: int) -> Iterator[Batch]:
        """Batches of `size`; the places are valid."""

    def as_input(self, value: Tensor) -> Tensor:
        """A copy of our own, so that no model that works in place can change the data."""
        wanted = WIDENED.get(value.dtype, value.dtype)
        if value.is_floating_point():
            wanted = self._dtype or value.dtype
        return value.detach().to("cpu", wanted, copy=True, memory_format=torch.contiguous_format)

    def as_labels(self, value: Tensor) -> Tensor:
        wanted = (self._dtype or value.dtype) if value.is_floating_point() else torch.int64
        return value.detach().to("cpu", wanted, copy=True, memory_format=torch.contiguous_format)

    def _index(self, ids: np.ndarray) -> dict[str, int]:
        if ids.shape != (len(self),):
            raise InvalidData(f"'{self.name}' has {len(self)} samples but {len(ids)} ids; every sample needs one.")
        texts: list[str] = ids.tolist()
        places = {text: place for place, text in enumerate(texts)}
        if "" in places:
            raise InvalidData(f"'{self.name}': the id of sample {places['']} is empty; every sample needs one.")
        if len(places) < len(texts):
            doubled = [text for text, count in Counter(texts).items() if count > 1]
            raise InvalidData(f"'{self.name}' has {listing(doubled, SHOWN_IDS)} as the id of more than one sample.")
        return places


class Batches:
    """Some samples of a source, (x, y) at a time.

    Attributes:
        sampler: the places to read; under this name because that is where the samples of a loader are counted.
    """

    def __init__(self, source: Source, places: range | np.ndarray, size: int):
        self.sampler = places
        self._source = source
        self._size = size

    def __len__(self) -> int:
        return -(-len(self.sampler) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        return self._source.read(self.sampler, self._size)

    def at_places(self, places: np.ndarray) -> Batches:
        """Some of these."""
        return Batches(self._source, np.asarray(self.sampler)[places], self._size)


class ArraySource(Source):
    """Samples along the first dimension of tensors, which may be mapped from a file and are only ever sliced."""

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Tensor],
        labels: tuple[str, Tensor],
        ids: np.ndarray | None,
        dtype: torch.dtype | None,
    ):
        everything = [*inputs.items(), labels]
        for key, value in everything:
            if value.dim() == 0:
                raise InvalidData(f"'{name}': {key!r} is a single number; samples go along the first dimension.")
            if value.is_complex() or value.is_quantized or value.layout != torch.strided or value.dtype == torch.uint64:
                raise InvalidData(f"'{name}': {key!r} must be a plain array of real numbers, not {value.dtype}.")
        if len({len(value) for _, value in everything}) > 1:
            raise InvalidData(
                f"'{name}': inputs and labels differ in length: "
                + ", ".join(f"{key!r} has {len(value)}" for key, value in everything)
                + ". Every sample needs both."
            )
        super().__init__(name, len(labels[1]), ids, dtype)
        for key, value in everything:
            if value.numel() == 0:
                raise InvalidData(f"'{name}': {key!r} is empty; its shape is {tuple(value.shape)}.")
        self._inputs = dict(inputs)
        self._labels = labels[1]

    def read(self, places: range | np.ndarray, size: int) -> Iterator[Batch]:
        for start in range(0, len(places), size):
            part = places[start : start + size]
            index = slice(part.start, part.stop) if isinstance(part, range) else torch.from_numpy(part)
            taken = {key: self.as_input(value[index]) for key, value in self._inputs.items()}
            x: Inputs = taken if len(taken) > 1 else next(iter(taken.values()))
            yield x, self.as_labels(self._labels[index])
