"""Random augmentation, wherever it happens: seen before the long pass, and nothing is used up by looking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from ssse.errors import InvalidData
from ssse.problem import rereading
from ssse.problem.batches import check_repeatable
from tests.support import problems
from tests.support.refusals import fit, refused


class Flipping(Dataset):
    """Flips the features of a sample, one time in two."""

    def __init__(self, generator: torch.Generator | None = None, length: int = 40):
        self.x, self.reads, self.generator = torch.arange(5.0 * length).view(length, 5), 0, generator

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        flip = bool(torch.rand(1, generator=self.generator) < 0.5)
        return (self.x[index].flip(0) if flip else self.x[index]), index % 3


@pytest.mark.parametrize("seed", range(50))
def test_a_flip_with_probability_one_half(seed):
    data = Flipping(torch.Generator().manual_seed(seed))
    with pytest.raises(InvalidData, match=r"different values for index \d+ when it is read again .*augmentation"):
        check_repeatable(DataLoader(data, batch_size=8))


def noisy(items: list[Any]) -> Any:
    x, y = default_collate(items)
    return x + 0.01 * torch.randn_like(x), y


@pytest.mark.parametrize("seed", range(20))
def test_a_flip_of_whole_batches_in_the_collate_function(seed):
    generator = torch.Generator().manual_seed(seed)

    def collate(items: list[Any]) -> Any:
        x, y = default_collate(items)
        return (x.flip(1) if bool(torch.rand(1, generator=generator) < 0.5) else x), y

    sample = problems.linear("cross_entropy")
    loader = DataLoader(TensorDataset(sample.x, sample.y), batch_size=8, collate_fn=collate)
    with pytest.raises(InvalidData, match="collate function makes different batches of the same 8 samples"):
        check_repeatable(loader)


def test_noise_in_the_collate_function():
    sample = problems.linear("cross_entropy")
    data = TensorDataset(sample.x, sample.y)
    with refused(InvalidData, "collate function makes different batches", sample.model):
        fit(sample, data=DataLoader(data, batch_size=8, collate_fn=noisy))
    one = TensorDataset(sample.x.view(8, 5, 5), sample.y.view(8, 5))  # batches as its items, none put together
    with pytest.raises(InvalidData, match="collate function makes different batches"):
        check_repeatable(DataLoader(one, batch_size=None, collate_fn=lambda item: (item[0] + torch.rand(1), item[1])))


class Dicts(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((5,), float(index)), "y": index}

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        return [self[place] for place in places]


def test_a_collate_function_that_takes_its_items_apart():
    """It is given items of its own each time, as a loader would."""

    def collate(items: list[dict[str, Any]]) -> Any:
        y = torch.tensor([item.pop("y") for item in items])
        return torch.stack([item.pop("x") for item in items]), y

    check_repeatable(DataLoader(Dicts(), batch_size=4, collate_fn=collate))


def test_looking_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(InvalidData):
        check_repeatable(DataLoader(Flipping(), batch_size=8))
    assert torch.equal(torch.get_rng_state(), before)


def test_slow_samples_are_read_twice_and_no_more(monkeypatch):
    data = Flipping()
    data.x = torch.ones(40, 5)  # the same when flipped
    monkeypatch.setattr(rereading, "SECONDS", -1.0)
    check_repeatable(DataLoader(data, batch_size=8))
    assert data.reads == 2
    monkeypatch.setattr(rereading, "SECONDS", 60.0)
    check_repeatable(DataLoader(data, batch_size=8))
    assert data.reads == 2 + rereading.PLACES * rereading.READS


@pytest.mark.parametrize("length", [1, 2, 7, 9])
def test_any_length(length):
    data = Flipping(length=length)
    data.x = torch.ones(length, 5)
    check_repeatable(DataLoader(data, batch_size=8, collate_fn=default_collate))
    assert data.reads == min(length, rereading.PLACES) * rereading.READS
