"""However the user's data comes and is cut: the same samples, in the same order, the same curvature."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ssse
from ssse.errors import InvalidData
from ssse.problem.batches import Batch, check_repeatable, count_samples, read_batch, regroup
from ssse.problem.labels import label_values
from tests.support import problems
from tests.support.refusals import fit

CPU = torch.device("cpu")


def same_to_rounding(one: Tensor | None, other: Tensor | None) -> None:
    """The same numbers lie elsewhere in memory, and a BLAS may add them in another order there."""
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def cut(x: Tensor, y: Tensor, lengths: list[int]) -> list[Batch]:
    return [(a, b) for a, b in zip(x.split(lengths), y.split(lengths), strict=True)]


@given(lengths=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 15), mapped=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_cut_gives_the_same_samples_in_groups_of_the_size(lengths, size, mapped):
    n = sum(lengths)
    x, y = torch.arange(3.0 * n).view(n, 3), torch.arange(n)
    batches = cut(x, y, lengths)
    if mapped:
        batches = [({"a": a, "b": a[:, :1]}, b) for a, b in batches]  # type: ignore[index,call-overload]
    groups = list(regroup(batches, size))
    sizes = [len(labels) for _, labels in groups]
    assert sizes == [size] * (n // size) + ([n % size] if n % size else [])
    assert torch.equal(torch.cat([torch.empty(0, dtype=y.dtype), *(labels for _, labels in groups)]), y)
    for inputs, labels in groups:
        values = inputs["a"] if isinstance(inputs, dict) else inputs
        assert torch.equal(values, x[labels])
        if isinstance(inputs, dict):
            assert torch.equal(inputs["b"], x[labels, :1])


def test_regroup_takes_no_more_than_it_needs():
    """A data set need not fit in memory: a group is handed on before the next batch is read."""
    read = []

    def stream():
        for i in range(5):
            read.append(i)
            yield torch.full((4, 1), float(i)), torch.full((4,), i)

    groups = regroup(stream(), 4)
    for i in range(5):
        assert label_values(next(groups)[1]).tolist() == [i] * 4
        assert read == list(range(i + 1))


@given(lengths=st.lists(st.integers(0, 13), min_size=1, max_size=8).filter(lambda lengths: lengths[0] > 0))
@settings(max_examples=20, deadline=None)
def test_any_cut_of_the_data_gives_the_same_curvature_and_erasure(lengths):
    sample = problems.linear("cross_entropy", n=sum(lengths) + 3)
    batches = cut(sample.x, sample.y, [*lengths, 3])
    whole, parts = fit(sample), fit(sample, data=batches)
    same_to_rounding(whole.gradient, parts.gradient)
    one = ssse.erase(sample.model, whole, sample.loss, sample.part(slice(0, 2)), override=ssse.BOUNDS)
    pieces = cut(sample.x[:2], sample.y[:2], [0, 1, 0, 1])
    many = ssse.erase(sample.model, parts, sample.loss, pieces, override=ssse.BOUNDS)
    same_to_rounding(one.step, many.step)


# ---------------------------------------------------------------------------- the forms of a batch


@pytest.mark.parametrize("label", ["y", "label", "labels", "target", "targets"])
@pytest.mark.parametrize("kind", [dict, UserDict])
def test_mappings_with_one_input_pass_it_alone(kind, label):
    x, y = torch.randn(4, 2), torch.arange(4)
    inputs, labels = read_batch(kind({"pixels": x, label: y}), CPU)
    assert inputs is x
    assert labels is y


def test_mappings_with_several_inputs_pass_them_by_name():
    x = {"left": torch.randn(4, 2), "right": torch.randn(4, 3)}
    inputs, labels = read_batch({**x, "labels": torch.arange(4)}, CPU)
    assert isinstance(inputs, dict)
    assert inputs.keys() == x.keys()
    assert all(inputs[key] is x[key] for key in x)
    assert label_values(labels).tolist() == [0, 1, 2, 3]
    nested, _ = read_batch((x, torch.arange(4)), CPU)
    assert isinstance(nested, dict)
    assert nested.keys() == x.keys()


@pytest.mark.parametrize("pair", [tuple, list])
def test_numpy_arrays_and_lists_of_numbers_are_tensors(pair):
    sample = problems.linear("mse")
    inputs, labels = read_batch(pair([sample.x.numpy(), sample.y.tolist()]), CPU)
    assert isinstance(inputs, Tensor)
    assert torch.equal(inputs, sample.x)
    assert torch.equal(label_values(labels).double(), sample.y.float().double())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3).double(), nn.Linear(3, 3).double()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right).tanh()


FORMS = {
    "numpy": lambda x, y: [(x.numpy(), y.numpy())],
    "strided numpy": lambda x, y: [(np.asfortranarray(x.numpy()), y.numpy())],
    "lists": lambda x, y: [[x, y]],
    "tuple of batches": lambda x, y: ((x[:9], y[:9]), (x[9:], y[9:])),
    "mapping": lambda x, y: [{"x": x, "y": y}],
    "generator": lambda x, y: ((x[i : i + 7], y[i : i + 7]) for i in range(0, len(x), 7)),
    "iterator": lambda x, y: iter([(x, y)]),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
    "one by one": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=1),
    "loader of mappings": lambda x, y: DataLoader(
        [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],  # type: ignore[arg-type]
        batch_size=7,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same(form):
    sample = problems.linear("cross_entropy")
    wanted = fit(sample, structure="dense")
    curvature = fit(sample, structure="dense", data=FORMS[form](sample.x, sample.y))
    v = torch.ones(18, dtype=torch.float64)
    assert curvature.n == 40
    same_to_rounding(curvature.solve(v), wanted.solve(v))
    same_to_rounding(curvature.gradient, wanted.gradient)
    forget = FORMS[form](sample.x[:12], sample.y[:12])
    found = ssse.erase(sample.model, curvature, sample.loss, forget, override=ssse.BOUNDS)
    direct = ssse.erase(sample.model, wanted, sample.loss, sample.part(slice(0, 12)), override=ssse.BOUNDS)
    same_to_rounding(found.step, direct.step)


def test_a_shuffled_loader_gives_the_same_to_rounding():
    sample = problems.linear("cross_entropy")
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(sample.x, sample.y), batch_size=7, shuffle=True, generator=generator)
    same_to_rounding(fit(sample, data=loader).gradient, fit(sample).gradient)


def test_a_model_of_two_inputs():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (20,), generator=generator)
    model = TwoInputs().eval()
    batch = {"left": x[:, :2], "right": x[:, 2:], "labels": y}
    named = ssse.Curvature.fit(model, "cross_entropy", [batch], damping=1e-2, progress=False)
    halves = [{key: value[part] for key, value in batch.items()} for part in (slice(0, 3), slice(3, 20))]
    split = ssse.Curvature.fit(model, "cross_entropy", halves, damping=1e-2, progress=False)
    torch.testing.assert_close(named.gradient, split.gradient)
    total = sum(
        nn.functional.cross_entropy(model(a[None, :2], a[None, 2:]), b[None]) for a, b in zip(x, y, strict=True)
    )
    wanted = torch.autograd.grad(total / 20, list(model.parameters()))  # type: ignore[operator,arg-type]
    torch.testing.assert_close(named.gradient, torch.cat([g.reshape(-1) for g in wanted]))


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_one_pass_over_a_generator_is_enough(structure):
    sample, reads = problems.mlp(), []

    def stream():
        for i in range(0, 30, 4):
            reads.append(i)
            yield sample.x[i : i + 4], sample.y[i : i + 4]

    curvature = fit(sample, data=stream(), structure=structure)
    assert reads == list(range(0, 30, 4))
    assert curvature.n == 30
    v = torch.ones(curvature.layout.dim, dtype=torch.float64)
    torch.testing.assert_close(curvature.solve(v), fit(sample, structure=structure).solve(v))


# -------------------------------------------------------------------------- counting and comparing


def test_samples_are_counted_where_that_is_possible():
    sample = problems.linear("cross_entropy")
    assert count_samples(sample.data) == 40
    assert count_samples([(sample.x, sample.y), {"a": sample.x, "b": sample.x, "y": sample.y}]) == 80
    assert count_samples(DataLoader(TensorDataset(sample.x, sample.y), batch_size=7)) == 40
    assert count_samples(iter(sample.data)) is None
    assert count_samples(batch for batch in sample.data) is None
    assert count_samples([]) == 0


def test_data_sets_with_nan_that_stays_the_same_are_repeatable():
    """NaN ≠ NaN, but that is not augmentation: reading the batch then says what is wrong."""
    sample = problems.linear("cross_entropy")
    sample.x[0, 0] = float("nan")
    loader = DataLoader(TensorDataset(sample.x, sample.y), batch_size=7)
    check_repeatable(loader)
    with pytest.raises(InvalidData, match="x: sample 0 of a batch of 7 holds NaN"):
        fit(sample, data=loader)


class OneShot(IterableDataset):
    """Samples that come once: from a queue, a socket, a generator."""

    def __init__(self, sample: problems.Sample):
        self.samples = iter(zip(sample.x, sample.y, strict=True))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.samples


def test_samples_that_come_once_are_all_counted():
    sample = problems.linear("cross_entropy", n=30)
    loader = DataLoader(OneShot(sample), batch_size=10)
    assert ssse.metrics.objective(sample.model, sample.loss, loader).count == 30
    direction = torch.zeros(sum(p.numel() for p in sample.model.parameters()), dtype=torch.float64)
    splits = {"forgotten": DataLoader(OneShot(sample), batch_size=10)}
    assert ssse.scan(sample.model, direction, sample.loss, splits, scales=1.0).counts == {"forgotten": 30}
