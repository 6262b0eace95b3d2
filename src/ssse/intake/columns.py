"""Which parts of the user's data are inputs, labels and ids; ids and labels as we need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssse.errors import InvalidData, InvalidSetting
from ssse.intake.messages import did_you_mean, listing

# In any case: x and X.
INPUT_NAMES = ("x", "inputs", "input", "features", "data")
LABEL_NAMES = ("y", "label", "labels", "target", "targets")
ID_NAMES = ("id", "ids", "sample_id")
PLACE = "place"

Locate = Callable[[int], str]  # where a sample stands in the file, in words


@dataclass(frozen=True)
class Columns:
    """The [data] settings.

    Attributes:
        inputs: key or keys of the inputs; None: found by usual names. labels: likewise, one key.
        ids: key of the ids; "place": a sample's place, from 0, is its id; None: found by usual names, or none.
        classes: names of the classes where labels are words, in the model's order.
        ids_needed: whether named ids must be there; test data and samples to forget may come without.
    """

    inputs: str | tuple[str, ...] | None = None
    labels: str | None = None
    ids: str | None = None
    classes: tuple[str, ...] = ()
    ids_needed: bool = True

    def __post_init__(self) -> None:
        doubled = [name for name in dict.fromkeys(self.classes) if self.classes.count(name) > 1]
        if doubled:
            raise InvalidSetting(f"[data] classes names {listing(doubled)} more than once; every class has one place.")
        if self.inputs is not None and not self.input_keys:
            raise InvalidSetting("[data] inputs is an empty list; name at least one, or leave the setting out.")
        named = [key for key in (*self.input_keys, self.labels, self.ids) if key is not None]
        doubled = [key for key in dict.fromkeys(named) if named.count(key) > 1]
        if doubled:
            raise InvalidSetting(
                f"{listing(doubled)} is named more than once in [data] inputs, labels and ids; each part of the data "
                "can be one thing only."
            )

    @property
    def input_keys(self) -> tuple[str, ...]:
        return (self.inputs,) if isinstance(self.inputs, str) else self.inputs or ()

    def unnamed(self, keys: Sequence[str]) -> list[str]:
        """Those that the settings say nothing of: an array named as inputs is not found as labels again."""
        return [key for key in keys if key not in (*self.input_keys, self.labels, self.ids)]


@dataclass(frozen=True)
class Keys:
    """The columns as found in one file; `ids` is None also where a sample's place is its id."""

    inputs: tuple[str, ...]
    labels: str
    ids: str | None

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.inputs, self.labels) if self.ids is None else (*self.inputs, self.labels, self.ids)


def choose_arrays(columns: Columns, keys: Sequence[str], name: str) -> Keys:
    """Of a collection of named arrays: the inputs are one of them, or several by setting."""
    labels, ids = _labels_and_ids(columns, keys, name)
    if columns.inputs is None:
        return Keys((_needed("inputs", INPUT_NAMES, columns.unnamed(keys), name),), labels, ids)
    return Keys(tuple(_present("inputs", key, keys, name) for key in columns.input_keys), labels, ids)


def choose_columns(columns: Columns, header: Sequence[str], name: str) -> Keys:
    """Of a table: the inputs are all columns but labels and ids, or those that the setting names."""
    labels, ids = _labels_and_ids(columns, header, name)
    if columns.inputs is not None:
        return Keys(tuple(_present("inputs", key, header, name) for key in columns.input_keys), labels, ids)
    rest = tuple(key for key in header if key not in (labels, ids))
    # Taken for inputs without a word, these would give the answer away or number the samples.
    suspect = [key for key in rest if key.casefold() in (*LABEL_NAMES, *ID_NAMES) or key.startswith("__index_level_")]
    if suspect:
        raise InvalidData(
            f"'{name}': {listing(suspect)} would be taken for inputs, as all is but labels and ids. Name the "
            "inputs in [data] inputs, or take it out of the data."
        )
    if not rest:
        raise InvalidData(f"'{name}' holds no inputs; it holds {listing(header)} only.")
    return Keys(rest, labels, ids)


def _labels_and_ids(columns: Columns, keys: Sequence[str], name: str) -> tuple[str, str | None]:
    if columns.labels is None:
        labels = _needed("labels", LABEL_NAMES, columns.unnamed(keys), name)
    else:
        labels = _present("labels", columns.labels, keys, name)
    if columns.ids == PLACE:
        if PLACE in keys:
            raise InvalidSetting(
                f"[data] ids = \"place\" makes a sample's place its id, but '{name}' also holds a '{PLACE}'. Rename it."
            )
        return labels, None
    if columns.ids is None:
        return labels, _usual("ids", ID_NAMES, columns.unnamed(keys), name)
    if columns.ids not in keys and not columns.ids_needed:
        return labels, None
    return labels, _present("ids", columns.ids, keys, name)


def _present(setting: str, key: str, keys: Sequence[str], name: str) -> str:
    if key not in keys:
        raise InvalidData(
            f"'{name}' has no {key!r}, which [data] {setting} names; it holds {listing(keys)}.{did_you_mean(key, keys)}"
        )
    return key


def _needed(setting: str, usual: tuple[str, ...], keys: Sequence[str], name: str) -> str:
    key = _usual(setting, usual, keys, name)
    if key is None:
        raise InvalidData(
            f"'{name}' needs its {setting} under one of {', '.join(usual)}, or under what [data] {setting} names; it "
            f"holds {listing(keys)}."
        )
    return key


def _usual(setting: str, usual: tuple[str, ...], keys: Sequence[str], name: str) -> str | None:
    matching = [key for key in keys if key.casefold() in usual]
    if len(matching) > 1:
        raise InvalidData(
            f"'{name}' holds {listing(matching)}: say in [data] {setting} which of them are the {setting}."
        )
    return matching[0] if matching else None


def places_as_ids(length: int) -> np.ndarray:
    return np.arange(length).astype(str)


def ids_of(stored: np.ndarray | Tensor, key: str, name: str) -> np.ndarray:
    """Ids as texts, shape (n,); whole numbers are written out."""
    array = _array(stored)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array.astype(str)
    texts = texts_of(array)
    if texts is None or texts.ndim != 1:
        raise InvalidData(
            f"'{name}': the ids, {key!r}, must be texts or whole numbers, one a sample, not {array.dtype} of shape "
            f"{array.shape}. Write them with dtype=str, or set [data] ids."
        )
    return texts


def _array(stored: np.ndarray | Tensor) -> np.ndarray:
    if isinstance(stored, np.ndarray):
        return stored
    return (stored.double() if stored.is_floating_point() else stored).numpy()  # numpy has no bfloat16


def texts_of(array: np.ndarray) -> np.ndarray | None:
    """An array of texts as numpy's unicode; None where it holds something else, or no characters."""
    try:
        if array.dtype.kind == "S":
            return np.char.decode(array, "utf-8")
        if array.dtype.kind == "O" and not all(isinstance(value, str) for value in array.ravel()):
            return None  # only Python itself gives such arrays; they are never read from a file
        if array.dtype.kind in "UOT":
            texts = array.astype(str)
            "".join(texts.ravel().tolist()).encode()  # half a surrogate pair would be an error when printed
            return texts
    except (ValueError, SystemError):  # numbers that are no characters
        pass
    return None


def labels_of(stored: np.ndarray | Tensor, key: str, classes: tuple[str, ...], name: str, locate: Locate) -> Tensor:
    """Labels as numbers. With `classes` every label is a name, and its place there is the number."""
    array = _array(stored)
    texts = texts_of(array)
    if not classes:
        if texts is None:
            return stored if isinstance(stored, Tensor) else tensor_of(array, key, name)
        example = f", such as {texts.flat[0]!s}" if texts.size else ""
        raise InvalidData(
            f"'{name}': the labels, {key!r}, are words{example}. Name the classes in the model's order: "
            '[data] classes = ["…", "…"].'
        )
    if texts is None and array.dtype.kind in "iu":
        texts = array.astype(str)
    if texts is None or texts.ndim != 1:
        raise InvalidData(
            f"'{name}': with [data] classes the labels, {key!r}, must be one class a sample, not {array.dtype} of "
            f"shape {array.shape}. Leave the setting out where labels are numbers."
        )
    return number_labels(classes, texts.tolist(), name, locate)


def number_labels(classes: tuple[str, ...], labels: Sequence[str], name: str, locate: Locate) -> Tensor:
    order = {word: place for place, word in enumerate(classes)}
    places = np.fromiter((order.get(label, -1) for label in labels), np.int64, len(labels))
    if (places < 0).any():
        first = int((places < 0).argmax())
        raise InvalidData(
            f"'{name}', {locate(first)}: the label {labels[first]!r} is none of [data] classes, {listing(classes)}."
            f"{did_you_mean(labels[first], classes)} Where labels are the classes' places, leave [data] classes out."
        )
    return torch.from_numpy(places)


def tensor_of(array: np.ndarray, key: str, name: str) -> Tensor:
    """The same memory as a tensor; only numbers in another machine's byte order are copied."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype != np.uint64:
        if not array.flags.writeable or any(stride < 0 for stride in array.strides):
            array = array.copy()  # torch would warn of the one and refuse the other
        return torch.from_numpy(array)
    raise InvalidData(
        f"'{name}': {key!r} must be numbers that PyTorch computes with, not {array.dtype}. Convert it, for instance to "
        "float32 or int64."
    )
