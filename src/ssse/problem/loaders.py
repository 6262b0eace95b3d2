"""What a user passes as data → batches: a loader for a bare data set, and labels under a name of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.batch_forms import as_inputs, as_label_tensor, is_frame, parts_of
from ssse.problem.batches import named_inputs

Data = Iterable[Any] | Dataset[Any]  # batches, read in order, or a data set that gets a loader

SIZE = 128  # samples in a batch of a bare data set; they are regrouped anyway


class KeyedBatches:
    """Batches of a loader, the labels of mappings found under a name."""

    def __init__(self, data: Iterable[Any], label_key: str):
        self.inner: Iterable[Any] = data
        self._label_key = label_key

    def __iter__(self) -> Iterator[Any]:
        return (_keyed(batch, self._label_key) for batch in self.inner)

    def around(self, data: Iterable[Any]) -> KeyedBatches:
        return KeyedBatches(data, self._label_key)

    def __getattr__(self, name: str) -> Any:
        """Its sampler and data set, for those who count samples."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def as_batches(data: Data, label_key: str | None = None) -> Iterable[Any]:
    """The data as an iterable of batches.

    A bare data set, of torch's or Hugging Face's, gets a loader without shuffling. One whose items are batches already,
    inputs and labels along a first dimension, is iterated as it is, like a list of batches.

    Args:
        label_key: the name of the labels in batches that are mappings; None: one of the usual ones.
    """
    if label_key is not None and not isinstance(label_key, str):
        raise InvalidSetting(f"label_key is the name of the labels in a mapping, not {label_key!r}.")
    if isinstance(data, Mapping):
        raise InvalidData(
            f"The data is a mapping of {', '.join(map(str, data))}, and must be batches: pass one of its data sets, "
            "or, if it is a single batch, [batch]."
        )
    batches: Any = data  # of a Dataset torch's types do not say that it can be iterated
    _refuse_no_batches(data)
    if _is_hugging_face(data):
        batches = _loader(_with_tensors(data))
    elif isinstance(data, Dataset) and iter(batches) is not data and not _holds_batches(data, label_key):
        batches = _loader(data)
    if label_key is None:
        return batches
    if isinstance(batches, (list, tuple)):
        return [_keyed(batch, label_key) for batch in batches]
    if isinstance(batches, Iterator):
        return (_keyed(batch, label_key) for batch in batches)  # an iterator still: some need more than one pass
    return KeyedBatches(batches, label_key)


def _refuse_no_batches(data: Any) -> None:
    """What people pass in place of an iterable of batches."""
    if isinstance(data, str | bytes) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise InvalidData(f"The data must be batches, such as a DataLoader or a list of (x, y), not {data!r:.60}.")
    if is_frame(data):
        raise InvalidData(
            "The data is a frame, and must be batches: pass [(frame[inputs], frame[label])], with the names of its "
            "columns."
        )
    if isinstance(data, Tensor | np.ndarray):
        raise InvalidData("The data is one array, and must be batches with labels: pass [(x, y)].")
    if isinstance(data, list | tuple) and len(data) in (2, 3) and all(isinstance(p, Tensor | np.ndarray) for p in data):
        raise InvalidData("The data is one batch itself, and must be a list of batches: pass [(x, y)].")


def _keyed(batch: Any, label_key: str) -> Any:
    """A pair, or with weights a triple, of a mapping; others say themselves which their labels are."""
    if not isinstance(batch, Mapping):
        return batch
    x, y, weights = parts_of(batch, label_key)
    return (x, y) if weights is None else (x, y, weights)


def _is_hugging_face(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("column_names", "features", "with_format"))


def _with_tensors(data: Any) -> Any:
    """Of columns that are lists, torch's loader would make one tensor a place."""
    format = getattr(data, "format", None) or {}
    if format.get("type") == "torch":
        return data
    return data.with_format("torch", columns=format["columns"]) if "columns" in format else data.with_format("torch")


def _loader(dataset: Any) -> DataLoader[Any]:
    """With a generator of its own: a loader takes a number from the global one even where it draws nothing."""
    return DataLoader(dataset, batch_size=SIZE, collate_fn=_collate, generator=torch.Generator())


def _collate(samples: list[Any]) -> Any:
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidData(
            f"The samples of this data set cannot be put into one batch ({' '.join(str(error).split())[:150]}). Pass a "
            "DataLoader of it, with a collate_fn that pads them to one length or leaves out what is no number."
        ) from error


def _holds_batches(data: Any, label_key: str | None) -> bool:
    """Whether its first item is a batch: as many inputs as labels along the first dimension, of two or more."""
    with torch.random.fork_rng(devices=[]):  # an item may be drawn
        first = next(iter(data), None)
    try:
        x, y, _ = parts_of(first, label_key)
        labels = as_label_tensor(y, None)
        if not labels.dim():
            return False
        inputs = named_inputs(as_inputs(x, None, len(labels))).values()
    except InvalidData:
        return False
    return all(value.dim() > 1 and len(value) == len(labels) for value in inputs)
