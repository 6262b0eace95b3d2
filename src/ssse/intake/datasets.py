"""Data that the user's Python code gives: a data set of PyTorch, a pair (x, y), or a mapping of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ssse.errors import InvalidData, SSSEError
from ssse.intake.columns import PLACE, Columns, choose_columns, ids_of, number_labels, places_as_ids
from ssse.intake.importing import import_object, searching
from ssse.intake.messages import cause, listing
from ssse.intake.samples import Source
from ssse.problem.batches import Batch, check_repeatable, map_inputs, read_batch
from ssse.problem.labels import label_values, with_values

Arrays = Mapping[str, np.ndarray | Tensor]


def import_data(spec: str, search: Path | None) -> Any:
    """The object that the spec names, or what it returns when called."""
    imported = import_object(spec, search, "dataset")
    if isinstance(imported, type) or (callable(imported) and not hasattr(imported, "__getitem__")):
        try:
            with searching(search):
                return imported()
        except SSSEError:
            raise
        except Exception as error:
            raise InvalidData(
                f"The dataset '{spec}' raised {cause(error)} when it was called. It is called without arguments."
            ) from error
    return imported


def arrays_in(data: Any, name: str) -> Arrays | None:
    """The arrays of a mapping or of a pair (x, y), by key; None if it is neither."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and _is_array(data[1]):
        x, y = data
        data = {**x, "y": y} if isinstance(x, Mapping) else {"x": x, "y": y}
    if not isinstance(data, Mapping):
        return None
    return {str(key): _array(value, str(key), name) for key, value in data.items()}


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _array(value: Any, key: str, name: str) -> np.ndarray | Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidData(f"'{name}': {key!r}, a {type(value).__name__}, is not an array ({cause(error)}).") from error


class DatasetSource(Source):
    """A map-style data set, read by a loader of ours."""

    def __init__(self, name: str, data: Any, columns: Columns, dtype: torch.dtype | None):
        if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InvalidData(
                f"'{name}' must be a torch Dataset with __len__ and __getitem__, a pair (x, y) or a mapping of arrays, "
                f"not a {type(data).__name__}. Samples are read by their place, so an iterable is not enough."
            )
        self._data: Dataset[Any] = data
        self._columns = columns
        length = len(data)
        super().__init__(name, length, _ids(data, columns, length, name), dtype)
        try:
            check_repeatable(DataLoader(self._data))
        except SSSEError:
            raise
        except Exception as error:
            raise InvalidData(f"'{name}': reading sample 0 raised {cause(error)}.") from error
        next(iter(self.batches(np.array([0]))))  # what is wrong with every sample is better said now

    def read(self, places: range | np.ndarray, size: int) -> Iterator[Batch]:
        chosen: Sequence[int] = places if isinstance(places, range) else places.tolist()
        # A generator of its own: a loader takes a number from the global one even where it draws nothing.
        loader = DataLoader(Subset(self._data, chosen), batch_size=size, generator=torch.Generator())
        batches = iter(loader)
        for start in range(0, len(chosen), size):
            try:
                batch = next(batches)
            except Exception as error:
                raise InvalidData(
                    f"'{self.name}': reading samples {chosen[start]} … {chosen[min(start + size, len(chosen)) - 1]} "
                    f"raised {cause(error)}."
                ) from error
            x, y = read_batch(self._named_parts(batch), None)
            yield map_inputs(self.as_input, x), with_values(y, self.as_labels(label_values(y)))

    def _named_parts(self, batch: Any) -> Any:
        """A pair; the keys of samples that are mappings may be set, and labels may be words."""
        if isinstance(batch, Mapping):
            keys = choose_columns(replace(self._columns, ids=None), list(batch), self.name)
            x = {key: batch[key] for key in keys.inputs}
            batch = (x if len(x) > 1 else next(iter(x.values())), batch[keys.labels])
        elif self._columns.inputs or self._columns.labels:
            raise InvalidData(
                f"'{self.name}' gives {type(batch).__name__}s without keys, so [data] inputs and labels mean nothing "
                "there. Leave them out."
            )
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            return batch[0], self._numbers(batch[1])
        return batch

    def _numbers(self, labels: Any) -> Any:
        classes = self._columns.classes
        words = isinstance(labels, (tuple, list)) and all(isinstance(label, str) for label in labels)
        if words and not classes:
            raise InvalidData(
                f"'{self.name}': labels are words, {listing(labels[:1])} for instance. Name the classes in the model's "
                'order: [data] classes = ["…", "…"].'
            )
        if not classes:
            return labels
        if not words and not (isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()):
            raise InvalidData(
                f"'{self.name}': with [data] classes every label must be one class; leave the setting out."
            )
        texts = [str(label) for label in (labels.tolist() if isinstance(labels, Tensor) else labels)]
        return number_labels(classes, texts, self.name, lambda sample: f"sample {sample} of a batch")


def _ids(data: Any, columns: Columns, length: int, name: str) -> np.ndarray | None:
    if columns.ids == PLACE:
        return places_as_ids(length)
    key = columns.ids or "ids"
    stored = getattr(data, key, None)
    if stored is None:
        if columns.ids is not None and columns.ids_needed:
            raise InvalidData(f"'{name}' has no attribute {key!r}, which [data] ids names.")
        return None
    return ids_of(_array(stored, key, name), key, name)
