"""The paper's four splits of a training and a test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import ssse
from ssse.errors import InvalidData
from tests.support.refusals import refused

# ── the four splits ───────────────────────────────────────────────────────────────────────────────────────────────

TRAIN = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10) % 3)
TEST = TensorDataset(torch.arange(20.0, 26.0)[:, None], torch.arange(6) % 3)


def places(loader: Any) -> list[float]:
    return [float(value) for x, _ in loader for value in x[:, 0]]


@pytest.mark.parametrize(
    ("forget", "same"),
    [
        ([1, 4], [0, 3]),
        (torch.tensor([4, 1]), np.array([3, 0])),
        (torch.arange(10) % 3 == 1, [True, False, False] * 2),
        (torch.tensor([[1], [4]]), range(0, 6, 3)),
    ],
)
def test_four_splits(forget, same):
    gone = [1.0, 4.0, 7.0] if getattr(forget, "dtype", None) == torch.bool else [1.0, 4.0]
    found = ssse.four_splits(TRAIN, forget, TEST, same, batch_size=3)
    assert list(found) == ["retained", "forgotten", "test_other", "test_same"]
    assert sorted(places(found["forgotten"])) == gone
    assert places(found["retained"]) == [float(i) for i in range(10) if i not in gone]
    assert places(found["test_other"]) == [21, 22, 24, 25]
    assert sorted(places(found["test_same"])) == [20, 23]
    assert max(len(x) for x, _ in found["retained"]) == 3


def test_four_splits_without_a_kind():
    found = ssse.four_splits(TRAIN, [0], TEST)
    assert list(found) == ["retained", "forgotten", "test"]
    assert places(found["test"]) == [20, 21, 22, 23, 24, 25]


@pytest.mark.parametrize(
    ("forget", "same", "message"),
    [
        ([], [0], r"'forgotten' \(S\) would be empty"),
        (range(10), [0], r"'retained' \(D∖S\) would be empty"),
        ([0], [], r"'test_same' \(T_a\) would be empty"),
        ([0], range(6), r"'test_other' \(T∖T_a\) would be empty"),
        ([0, 10], [0], "forget: places must be different whole numbers in 0 … 9"),
        ([-1], [0], "forget: places must be different"),
        ([2, 2], [0], "forget: places must be different"),
        ([0.5], [0], "forget: places must be different"),
        ([0], [7], "same: places must be different whole numbers in 0 … 5"),
        ([True] * 9, [0], r"forget: the mask has shape \(9,\), the data set 10 samples"),
    ],
)
def test_four_splits_refuses(forget, same, message):
    with refused(InvalidData, message):
        ssse.four_splits(TRAIN, forget, TEST, same)


def test_four_splits_needs_places():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    with refused(InvalidData, "forget: a data set that can be indexed and has a length"):
        ssse.four_splits(Stream(), [0], TEST)
