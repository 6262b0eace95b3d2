"""The paper's four splits: what stays and what goes, of the training data and of the test data."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from ssse.errors import InvalidData
from ssse.problem.loaders import Data, as_batches

SplitData = Mapping[str, Data]  # as users pass them
Splits = Mapping[str, Iterable[Any]]  # as batches

# By their names in code and on paper; "test" is for requests without a kind of their own.
SPLITS = {"retained": "D∖S", "forgotten": "S", "test_other": "T∖T_a", "test_same": "T_a", "test": "T"}
WHOLE_TEST = ({"test"}, {"test_other", "test_same"})
HELD_OUT = ("test_same", "test")  # where samples of the forgotten kind are found that were never trained on

Chosen = Tensor | Sequence[int] | Sequence[bool]


def check_splits(splits: SplitData) -> None:
    if not isinstance(splits, Mapping):
        raise InvalidData(f"splits is a mapping from names to batches, not a {type(splits).__name__}.")
    if not splits:
        raise InvalidData(f"There are no splits to look at; name some of {', '.join(SPLITS)}.")
    for name in splits:
        if name not in SPLITS:
            near = difflib.get_close_matches(str(name), SPLITS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InvalidData(f"Unknown split '{name}'; the splits are {', '.join(SPLITS)}.{hint}")
    if "test" in splits and {"test_other", "test_same"} & splits.keys():
        raise InvalidData("Pass either 'test' or its two parts 'test_other' and 'test_same', not both.")


def batches_of_splits(splits: SplitData, label_key: str | None = None) -> Splits:
    """Checked, each as batches."""
    check_splits(splits)
    return {name: as_batches(data, label_key) for name, data in splits.items()}


def four_splits(
    train: Dataset[Any], forget: Chosen, test: Dataset[Any], same: Chosen | None = None, *, batch_size: int = 256
) -> dict[str, DataLoader[Any]]:
    """Loaders of D∖S, S, T∖T_a and T_a, for `ssse.evaluate` and `ssse.scan`.

    Args:
        train, test: data sets that can be indexed, such as a TensorDataset.
        forget: which training samples are forgotten: their places, or a mask.
        same: which test samples are of the forgotten kind (its class, its attribute); None if there is no such kind.
            The test set then stays whole.
    """
    gone = _places(forget, train, "forget")
    parts: dict[str, Subset[Any]] = {
        "retained": Subset(train, _others(gone, train)),
        "forgotten": Subset(train, gone),
    }
    if same is None:
        parts["test"] = Subset(test, list(range(_size(test, "test"))))
    else:
        alike = _places(same, test, "same")
        parts["test_other"] = Subset(test, _others(alike, test))
        parts["test_same"] = Subset(test, alike)
    for name, part in parts.items():
        if not len(part):
            raise InvalidData(f"The split '{name}' ({SPLITS[name]}) would be empty.")
    return {name: DataLoader(part, batch_size=batch_size) for name, part in parts.items()}


def _places(chosen: Chosen, dataset: Dataset[Any], name: str) -> list[int]:
    size = _size(dataset, name)
    try:
        given = torch.as_tensor(sorted(chosen) if isinstance(chosen, (set, frozenset, range)) else chosen)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(f"{name}: places are whole numbers, or a mask; got a {type(chosen).__name__}.") from error
    if given.dtype == torch.bool:
        if given.shape != (size,):
            raise InvalidData(f"{name}: the mask has shape {tuple(given.shape)}, the data set {size} samples.")
        return given.nonzero()[:, 0].tolist()
    places = given.reshape(-1).tolist()
    if any(place != int(place) or not 0 <= place < size for place in places) or len(set(places)) != len(places):
        raise InvalidData(f"{name}: places must be different whole numbers in 0 … {size - 1}.")
    return [int(place) for place in places]


def _others(places: list[int], dataset: Dataset[Any]) -> list[int]:
    gone = set(places)
    return [place for place in range(_size(dataset, "data set")) if place not in gone]


def _size(dataset: Dataset[Any], name: str) -> int:
    if not hasattr(dataset, "__len__"):
        raise InvalidData(f"{name}: a data set that can be indexed and has a length is needed.")
    return len(dataset)  # type: ignore[arg-type]  # torch's Dataset does not declare the length that most have
