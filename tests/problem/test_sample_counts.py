"""How many samples came, and how often each: what a loader gives twice, or only a part of, is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

import ssse
from ssse.errors import InvalidData
from ssse.problem.sample_counts import Counted, count_at_hand
from tests.support import problems
from tests.support.refusals import fit, refused

STRUCTURES = ["dense", "lowrank", "matrix_free", "diagonal", "recurrence"]
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


class Stream(IterableDataset):
    """Each worker reads all of it, in an order of its own, or its share."""

    def __init__(self, sample: problems.Sample, split: bool, rotate: int = 0):
        self.sample, self.split, self.rotate = sample, split, rotate

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        here, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        samples = list(zip(self.sample.x, self.sample.y, strict=True))
        if self.split:
            return iter(samples[here::step])
        cut = here * self.rotate
        return iter(samples[cut:] + samples[:cut])


def test_counting_by_hand():
    x, y = torch.tensor([[1.0], [2.0], [1.0], [1.0], [2.0], [1.0]]), torch.tensor([0, 0, 0, 1, 0, 1])
    assert count_at_hand([(x[:4], y[:4]), (x[:0], y[:0]), (x[4:], y[4:])]) == Counted(6, 3, 2)
    assert count_at_hand([(x[:4], y[:4])]) == Counted(4, 3, 1)
    assert count_at_hand([(x[:4], y[:4])]).repeats == 1
    assert count_at_hand([]) == Counted(0, 0, 1)


# ------------------------------------------------------------------------------- all of it twice


@pytest.mark.parametrize("rotate", [0, 13], ids=["seen at once", "seen at the end"])
def test_workers_that_each_read_everything(rotate):
    sample = problems.linear("cross_entropy", n=40)
    loader = DataLoader(Stream(sample, split=False, rotate=rotate), batch_size=8, num_workers=2)
    with refused(InvalidData, "2 workers.*IterableDataset that does not split .*get_worker_info", sample.model):
        fit(sample, data=loader)
    with refused(InvalidData, "n=40 training samples were expected, and the data holds 80. .*2 workers", sample.model):
        fit(sample, data=loader, n=40)
    meant = fit(sample, data=loader, n=80)
    assert (meant.n, meant.repeats) == (80, 40)


def test_workers_that_split():
    sample = problems.linear("cross_entropy", n=40)
    curvature = fit(sample, data=DataLoader(Stream(sample, split=True), batch_size=8, num_workers=2), n=40)
    assert (curvature.n, curvature.repeats, curvature.notes) == (40, 0, ())
    torch.testing.assert_close(curvature.gradient, fit(sample).gradient)


@every_structure
def test_the_same_batches_twice(structure):
    sample = problems.linear("cross_entropy", n=40)
    with refused(InvalidData, "Every sample came 2 times: 80 samples, of which 40 differ.*pass n=80", sample.model):
        fit(sample, data=sample.data * 2, structure=structure)
    twice = fit(sample, data=sample.data * 2, structure=structure, n=80)
    assert (twice.n, twice.repeats) == (80, 40)
    assert "40 of the 80 samples repeat another one" in twice.notes[0]


def test_data_with_repeats_of_its_own_given_twice():
    """Then some samples come four times and the others twice."""
    sample = problems.linear("cross_entropy", n=40)
    once = [*sample.data, *sample.part(slice(0, 5))]
    assert fit(sample, data=once).repeats == 5
    with refused(InvalidData, "Every sample came 2 times: 90 samples, of which 40 differ", sample.model):
        fit(sample, data=[*once, *once])


def test_a_data_set_joined_with_itself():
    sample = problems.linear("cross_entropy", n=40)
    data = TensorDataset(sample.x, sample.y)
    with refused(InvalidData, "a data set joined with itself", sample.model):
        fit(sample, data=DataLoader(ConcatDataset([data, data]), batch_size=16, shuffle=True))


def test_of_a_few_samples_all_may_be_there_twice():
    sample = problems.linear("cross_entropy", n=10)
    assert fit(sample, data=sample.data * 2).repeats == 10


@every_structure
def test_some_repeats_are_noted_with_their_number(structure):
    sample = problems.linear("cross_entropy", n=40)
    curvature = fit(sample, data=[*sample.data, *sample.part(slice(0, 3))], structure=structure)
    assert curvature.repeats == 3
    assert "3 of the 43 samples repeat another one" in curvature.notes[0]
    assert fit(sample, structure=structure).repeats == 0


def test_samples_that_differ_in_the_label_alone_are_two():
    sample = problems.linear("cross_entropy", n=40)
    curvature = fit(sample, data=[(sample.x.repeat(2, 1), torch.cat([sample.y, (sample.y + 1) % 3]))])
    assert (curvature.n, curvature.repeats) == (80, 0)


# -------------------------------------------------------------------------------------- n


@pytest.mark.parametrize("form", ["list", "loader", "generator"])
def test_another_number_than_expected(form):
    sample = problems.linear("cross_entropy", n=40)

    def data() -> Any:
        if form == "loader":
            return DataLoader(TensorDataset(sample.x, sample.y), batch_size=7)
        return sample.data if form == "list" else (batch for batch in sample.data)

    with refused(InvalidData, "n=41 training samples were expected, and the data holds 40", sample.model):
        fit(sample, data=data(), n=41)
    assert fit(sample, data=data(), n=40).n == 40


@pytest.mark.parametrize("n", [0, -3])
def test_n_is_a_number_of_samples(n):
    sample = problems.linear("cross_entropy")
    with refused(InvalidData, f"1 or more, not {n}", sample.model):
        fit(sample, n=n)


class Promising(Stream):
    def __len__(self) -> int:
        return 50


def test_a_stream_that_is_shorter_than_it_says():
    sample = problems.linear("cross_entropy", n=40)
    loader = DataLoader(Promising(sample, split=False), batch_size=8)
    with refused(InvalidData, "says that it has 50 samples, and 40 came.*pass n=40", sample.model):
        fit(sample, data=loader)
    assert fit(sample, data=loader, n=40).n == 40


# ------------------------------------------------------------------------------------ parts


def shares(sample: problems.Sample, processes: int) -> list[DataLoader]:
    data = TensorDataset(sample.x, sample.y)
    return [
        DataLoader(data, batch_size=8, sampler=DistributedSampler(data, processes, rank, shuffle=False))
        for rank in range(processes)
    ]


def test_a_share_of_a_distributed_sampler():
    sample = problems.linear("cross_entropy", n=40)
    one, other = shares(sample, 2)
    with refused(InvalidData, "DistributedSampler deals .* 2 processes, .*sees 20 .*Curvature.merge", sample.model):
        fit(sample, data=one)
    parts = [fit(sample, data=loader, n=20, structure="dense") for loader in (one, other)]
    assert "passed over 20 samples of a data set of 40" in parts[0].notes[0]
    merged = ssse.Curvature.merge(parts, n=40)
    assert merged.notes == ()
    torch.testing.assert_close(merged.gradient, fit(sample).gradient)
    with refused(InvalidData, "DistributedSampler deals", sample.model):
        ssse.erase(sample.model, fit(sample), sample.loss, shares(problems.linear("cross_entropy", n=8), 2)[0])


def test_a_share_in_a_batch_sampler():
    sample = problems.linear("cross_entropy", n=40)
    data = TensorDataset(sample.x, sample.y)
    sampler = BatchSampler(DistributedSampler(data, 4, 1), 5, drop_last=False)
    with refused(InvalidData, "DistributedSampler deals .* 4 processes", sample.model):
        fit(sample, data=DataLoader(data, batch_sampler=sampler))


def test_a_share_that_leaves_samples_out():
    sample = problems.linear("cross_entropy", n=41)
    data = TensorDataset(sample.x, sample.y)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, 0, drop_last=True))
    with refused(InvalidData, "DistributedSampler has drop_last=True", sample.model):
        fit(sample, data=loader, n=20)


def test_a_part_that_was_chosen_is_noted():
    sample = problems.linear("cross_entropy", n=40)
    loader = DataLoader(TensorDataset(sample.x, sample.y), batch_size=8, sampler=SubsetRandomSampler(range(30)))
    curvature = fit(sample, data=loader)
    assert curvature.n == 30
    assert "passed over 30 samples of a data set of 40" in curvature.notes[0]


# ------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("structure", ["dense", "lowrank", "diagonal"])
def test_shards_that_share_samples(structure):
    sample = problems.linear("cross_entropy", n=41)
    parts = [fit(sample, data=loader, n=21, structure=structure) for loader in shares(sample, 2)]
    with refused(InvalidData, "n=41 training samples were expected, and the 2 shards hold 42", sample.model):
        ssse.Curvature.merge(parts, n=41)
    merged = ssse.Curvature.merge(parts)  # the sampler repeated one to make the parts equal
    if structure == "lowrank":
        assert merged.repeats == 1
        assert merged.notes == ("1 of the 42 samples in all shards repeat another one.",)
    else:
        assert merged.repeats is None
        assert "Whether shards share samples is not known" in merged.notes[0]
    for doubled in ([parts[0], parts[0]], [*parts, parts[1]]):
        with refused(InvalidData, "All samples of one shard are in another one too", sample.model):
            ssse.Curvature.merge(doubled)
        n = 21 * len(doubled)
        assert ssse.Curvature.merge(doubled, n=n).n == n


def test_a_small_shard_inside_a_larger_one():
    sample = problems.linear("cross_entropy", n=40)
    whole, part = (fit(sample, data=sample.part(slice(0, n)), structure="lowrank") for n in (40, 15))
    for shards in ([whole, part], [part, whole]):
        with refused(InvalidData, "All samples of one shard", sample.model):
            ssse.Curvature.merge(shards)


# ------------------------------------------------------------------------------------ erasing


def test_copies_that_stay_are_told():
    sample = problems.linear("cross_entropy", n=40)
    data = [*sample.data, *sample.part(slice(0, 3)), *sample.part(slice(0, 1))]
    known = fit(sample, data=data, structure="lowrank")
    once = ssse.erase(sample.model, known, sample.loss, sample.part(slice(0, 5)))
    assert "4 copies of the forgotten samples were not named" in " ".join(once.diagnostics.notes)
    assert "copies" not in " ".join(
        ssse.erase(sample.model, known, sample.loss, sample.part(slice(5, 9))).diagnostics.notes
    )
    unknown = fit(sample, data=data, structure="dense")
    notes = ssse.erase(sample.model, unknown, sample.loss, sample.part(slice(0, 5))).diagnostics.notes
    assert "Up to 4 training samples repeat another one" in " ".join(notes)


@every_structure
def test_no_more_copies_are_forgotten_than_there_were(structure):
    sample = problems.linear("cross_entropy", n=40)
    curvature = fit(sample, data=[*sample.data, *sample.part(slice(0, 3))], structure=structure)
    twice = [*sample.part(slice(0, 3)), *sample.part(slice(0, 3))]
    data: Any = {"data": [*sample.data, *sample.part(slice(0, 3))]} if structure == "matrix_free" else {}
    assert ssse.erase(sample.model, curvature, sample.loss, twice, **data, override=ssse.BOUNDS).diagnostics.k == 6
    with refused(InvalidData, "4 of the 7 samples to forget repeat .*training data 3 did", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, [*twice, *sample.part(slice(0, 1))], **data)


def test_the_count_is_stored(tmp_path):
    sample = problems.linear("cross_entropy", n=40)
    fit(sample, data=[*sample.data, *sample.part(slice(0, 3))]).save(tmp_path / "curvature")
    assert ssse.Curvature.load(tmp_path / "curvature").repeats == 3
