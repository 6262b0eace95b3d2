"""Data that cannot be used: refused in words, with the repair, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

import ssse
from ssse.errors import InvalidData
from tests.support import problems
from tests.support.refusals import INF, NAN, fit, put, refused


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a batch of eight samples."""

    name: str
    loss: str
    change: Callable[[Tensor, Tensor], Any]
    match: str

    def __str__(self) -> str:
        return self.name


FAULTS = [
    Fault("nan", "cross_entropy", lambda x, y: (put(x, (3, 1), NAN), y), "x: sample 3 of a batch of 8 holds NaN"),
    Fault("inf", "mse", lambda x, y: (put(x, (0, 0), INF), y), "x: sample 0 of a batch of 8 holds NaN or infinity"),
    Fault("nan-label", "mse", lambda x, y: (x, put(y, (5, 0), NAN)), "labels: sample 5 .* NaN or infinity"),
    Fault("inf-label", "mse", lambda x, y: (x, put(y, (7, 2), -INF)), "labels: sample 7 .* NaN or infinity"),
    Fault("nan-01", "binary_cross_entropy", lambda x, y: (x, put(y, (2, 2), NAN)), "labels: sample 2 .* NaN"),
    Fault("class-3", "cross_entropy", lambda x, y: (x, put(y, 1, 3)), "Labels must lie in 0 … 2, .*found 0 … 3"),
    Fault("class−1", "cross_entropy", lambda x, y: (x, put(y, 1, -1)), "Labels must lie in 0 … 2, .*found -1 … 2"),
    Fault("float-class", "cross_entropy", lambda x, y: (x, y.double()), "integer class index.*float64"),
    Fault("one-hot", "cross_entropy", lambda x, y: (x, F.one_hot(y, 3)), r"class index.*\(.*3\).*pass y.argmax\(1\)"),
    Fault("soft-sum", "cross_entropy", lambda x, y: (x, x[:, :3].softmax(1) / 2), "sample 0 .* the sum 0.5 .*'mse'"),
    Fault("soft-sign", "cross_entropy", lambda x, y: (x, put(x[:, :3].softmax(1), (3, 1), -1.0)), "none of them neg"),
    Fault("attributes", "cross_entropy", lambda x, y: (x, (x[:, :3] > -9).double()), "use the loss 'binary_cross"),
    Fault("column", "cross_entropy", lambda x, y: (x, y[:, None]), r"one integer class index.*, 1\)"),
    Fault("two", "binary_cross_entropy", lambda x, y: (x, put(y, (0, 0), 2)), "labels 0 or 1; found values .* to 2"),
    Fault("half", "binary_cross_entropy", lambda x, y: (x, put(y, (0, 0), 0.5)), "labels 0 or 1"),
    Fault("narrow-01", "binary_cross_entropy", lambda x, y: (x, y[:, :2]), r"Each output needs its 0/1 value.*, 2\)"),
    Fault("narrow", "mse", lambda x, y: (x, y[:, 0]), r"Each output needs its number.*labels are \(8,\)"),
    Fault("short", "mse", lambda x, y: (x, y[:-1]), "differ in length: {'x': 8} inputs, 7 labels"),
    Fault("scalar", "cross_entropy", lambda x, y: (x, y[0]), "along its first dimension; found a scalar"),
    Fault("float32", "mse", lambda x, y: (x.float(), y), r"inputs are torch.float32 and the parameters torch.float64"),
    Fault("triple", "mse", lambda x, y: (x, y, y), r"must be a pair \(x, y\) or a mapping .*tuple of length 3"),
    Fault("alone", "mse", lambda x, y: x, r"must be a pair \(x, y\) or a mapping with labels, not a Tensor"),
    Fault("no-labels", "mse", lambda x, y: {"a": x, "b": y}, "labels under one of y, label, .*its keys are a, b"),
    Fault("two-labels", "mse", lambda x, y: {"x": x, "y": y, "label": y}, "labels under one of .*keys are x, y, label"),
    Fault("labels-only", "mse", lambda x, y: {"labels": y}, "inputs"),
    Fault("words", "mse", lambda x, y: (["a"] * 8, y), "holds text as x"),
]


@pytest.mark.parametrize("place", ["first", "later", "forget"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_faulty_batch_is_refused_wherever_it_comes(fault, place):
    sample = problems.linear(fault.loss)
    if fault.loss == "cross_entropy":
        sample.y[:6] = torch.tensor([0, 0, 1, 2, 1, 2])  # every class, also where one label is replaced
    broken = fault.change(sample.x[:8], sample.y[:8])
    rest = (sample.x[8:], sample.y[8:])
    if place == "forget":
        curvature = fit(sample)
        with refused(InvalidData, fault.match, sample.model):
            ssse.erase(sample.model, curvature, sample.loss, [broken])
    else:
        # A later batch may be refused for what it is, or for not being like those before it.
        match = rf"{fault.match}|samples of one shape and dtype" if place == "later" else fault.match
        with refused(InvalidData, match, sample.model):
            fit(sample, data=[broken, rest] if place == "first" else [rest, broken])


def test_a_batch_of_other_features_is_refused():
    sample = problems.linear("cross_entropy")
    with refused(InvalidData, r"shape|features|size", sample.model):
        fit(sample, data=[(sample.x[:20], sample.y[:20]), (sample.x[20:, :4], sample.y[20:])])


@pytest.mark.parametrize("structure", ["lowrank", "recurrence", "diagonal", "matrix_free"])
def test_nan_in_a_later_batch_is_named_whatever_the_structure(structure):
    sample = problems.linear("cross_entropy")
    broken = put(sample.x, (25, 1), NAN)
    with refused(InvalidData, "x: sample 5 of a batch of 20 holds NaN", sample.model):
        fit(sample, data=[(sample.x[:20], sample.y[:20]), (broken[20:], sample.y[20:])], structure=structure)


def test_float64_data_with_a_float32_model():
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    with refused(InvalidData, r"inputs are torch.float64 .*torch.float32; cast.*x.to\(torch.float32\)", sample.model):
        fit(sample, data=[(sample.x.double(), sample.y)])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_class_indices_of_any_integer_type_are_the_same_classes(dtype):
    sample = problems.linear("cross_entropy")
    narrow = [(sample.x, sample.y.to(dtype))]
    for kind in ("empirical", "expected"):
        assert torch.equal(fit(sample, data=narrow, rows=kind).gradient, fit(sample, rows=kind).gradient)  # type: ignore[arg-type]
    curvature = fit(sample)
    found = ssse.erase(sample.model, curvature, sample.loss, [(sample.x[:3], sample.y[:3].to(dtype))])
    wanted = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 3)))
    assert torch.equal(found.step, wanted.step)


@pytest.mark.parametrize(("loss", "dtype"), [("cross_entropy", torch.int32), ("binary_cross_entropy", torch.int64)])
def test_rows_are_found_again_whatever_the_dtype_of_the_labels(loss, dtype):
    """The label 1 is the same label as an int, as a float and as an index."""
    sample = problems.linear(loss)
    curvature = fit(sample, structure="lowrank")
    found = ssse.erase(sample.model, curvature, sample.loss, [(sample.x[:3], sample.y[:3].to(dtype))])
    wanted = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 3)))
    torch.testing.assert_close(found.step, wanted.step)


@pytest.mark.parametrize("empty", [[], (), iter([]), "batches of none"], ids=["list", "tuple", "iterator", "none"])
def test_empty_data(empty):
    sample = problems.linear("cross_entropy")
    data = [(sample.x[:0], sample.y[:0])] * 2 if empty == "batches of none" else empty
    with refused(InvalidData, "training data is empty", sample.model):
        fit(sample, data=data)
    curvature = fit(sample)
    with refused(InvalidData, "forget set is empty; there is nothing to erase", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, data)


@pytest.mark.parametrize("count", [40, 41, 80])
def test_something_must_remain(count):
    sample = problems.linear("cross_entropy")
    curvature, index = fit(sample), torch.arange(count) % 40
    with refused(InvalidData, f"forget set has {count} samples and the curvature stands for 40", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(index))
    most = sample.part(slice(0, 39))
    assert ssse.erase(sample.model, curvature, sample.loss, most, override=ssse.BOUNDS).diagnostics.k == 39


class Augmented(Dataset):
    def __init__(self, sample: problems.Sample, count: int):
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.sample.x[index]
        return x + 0.01 * torch.randn(x.shape, dtype=x.dtype), self.sample.y[index]


def test_loaders_that_drop_or_change_samples():
    sample = problems.linear("cross_entropy")
    with refused(InvalidData, "drop_last=True, .*Use drop_last=False", sample.model):
        fit(sample, data=DataLoader(TensorDataset(sample.x, sample.y), batch_size=7, drop_last=True))
    with refused(InvalidData, r"different values for index 0 .*augmentation", sample.model):
        fit(sample, data=DataLoader(Augmented(sample, 40), batch_size=8))


def test_a_batch_sampler_that_drops_samples():
    """The loader itself then says drop_last=False."""
    sample = problems.linear("cross_entropy")
    sampler = BatchSampler(range(40), 7, drop_last=True)
    with refused(InvalidData, "drop_last=True", sample.model):
        fit(sample, data=DataLoader(TensorDataset(sample.x, sample.y), batch_sampler=sampler))


def test_a_forget_loader_may_not_drop_samples():
    """Ten samples asked for and eight forgotten would be a promise broken."""
    sample = problems.linear("cross_entropy")
    curvature, ten = fit(sample), TensorDataset(sample.x[:10], sample.y[:10])
    with refused(InvalidData, "drop_last=True", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, DataLoader(ten, batch_size=4, drop_last=True))


def test_a_forget_loader_may_not_change_samples():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    with refused(InvalidData, "different values for index 0", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, DataLoader(Augmented(sample, 6), batch_size=3))


class Words(Dataset):
    """Items that only the collate function can turn into tensors."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[str, int]:
        return f"text {index}", index


class Streamed(IterableDataset):
    def __init__(self, sample: problems.Sample):
        self.sample = sample

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.sample.x, self.sample.y, strict=True))


@pytest.mark.parametrize("way", ["words", "streamed"])
def test_the_look_for_augmentation_does_not_stumble_over_data_sets_it_cannot_compare(way):
    sample = problems.linear("cross_entropy")

    def collate(items: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        index = torch.tensor([int(text.split()[1]) for text, _ in items])
        return sample.x[index], sample.y[index]

    words = DataLoader(Words(), batch_size=8, collate_fn=collate)
    loader = words if way == "words" else DataLoader(Streamed(sample), batch_size=8)
    torch.testing.assert_close(fit(sample, data=loader).gradient, fit(sample).gradient)


@pytest.mark.parametrize("rows", ["empirical", "expected"])
def test_soft_labels_with_the_loss_that_is_advised(rows):
    """Against plain autograd: the advice works, also with expected rows, whose Hessian is that of hard labels."""
    sample = problems.linear("cross_entropy")
    soft = sample.x[:, :3].softmax(1)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y)

    curvature = fit(sample, loss=loss, data=[(sample.x, soft)], rows=rows)
    total = F.cross_entropy(sample.model(sample.x), soft)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(sample.model.parameters()))])
    torch.testing.assert_close(curvature.gradient, wanted)
    if rows == "expected":
        v = torch.ones(18, dtype=torch.float64)
        torch.testing.assert_close(curvature.solve(v), fit(sample, rows=rows).solve(v))


@pytest.mark.parametrize(("loss", "named"), [("BCEWithLogitsLoss", "binary_cross_entropy"), ("MSELoss", "mse")])
def test_one_label_a_sample_for_one_output(loss, named):
    sample = problems.linear(named, c=1)
    flat = [(sample.x, sample.y[:, 0])]
    match = rf"{loss} needs labels of the outputs' shape \(32, 1\); got \(32,\). Pass y\[:, None\].*'{named}'"
    with refused(InvalidData, match, sample.model):
        fit(sample, loss=getattr(torch.nn, loss)(), data=flat)
    fit(sample, loss=getattr(torch.nn, loss)())
    fit(sample, data=flat)
