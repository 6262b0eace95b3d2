"""Data as people have it: several inputs, names for labels, bare data sets, frames; and what cannot be data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import ssse
from ssse.baselines import gradient_ascent, influence, retrain
from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics import objective, relearn_time
from ssse.problem.batches import read_batch
from ssse.problem.loaders import as_batches
from tests.support import dense, problems
from tests.support.refusals import fit, refused

CPU = torch.device("cpu")


def same(one: Tensor | None, other: Tensor | None) -> None:
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


# ----------------------------------------------------------------------------------- several inputs


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(2, 3).double(), nn.Linear(3, 3).double()
        self.eval()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right).tanh()


SEVERAL: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "tuple": lambda a, b, y: [((a, b), y)],
    "list": lambda a, b, y: [[[a, b], y]],
    "arrays": lambda a, b, y: [((a.numpy(), b.numpy()), y.numpy())],
    "loader": lambda a, b, y: DataLoader([((a[i], b[i]), y[i]) for i in range(len(y))], batch_size=7),  # type: ignore[arg-type]
    "by name": lambda a, b, y: [({"left": a, "right": b}, y)],
    "bare": lambda a, b, y: Listed([((a[i], b[i]), y[i]) for i in range(len(y))]),
    "with weights": lambda a, b, y: [((a, b), y, torch.ones(len(y)))],
}


@pytest.mark.parametrize("rows", ["expected", "empirical", "sampled"])
def test_several_inputs_are_passed_in_order(rows):
    x, model = problems.linear("cross_entropy", n=20).x, Two()
    a, b, y = x[:, :2], x[:, 2:], problems.linear("cross_entropy", n=20).y
    fitted = {
        name: ssse.Curvature.fit(
            model, "cross_entropy", form(a, b, y), damping=0.1, rows=rows, structure="lowrank", progress=False
        )
        for name, form in SEVERAL.items()
    }
    for name, curvature in fitted.items():
        same(curvature.gradient, fitted["tuple"].gradient)
        request = [((a[:3], b[:3]), y[:3], torch.ones(3))] if name == "with weights" else [((a[:3], b[:3]), y[:3])]
        if name != "by name":  # which are other samples, by their names
            ssse.erase(model, curvature, forget=request, scale=1.0, override=ssse.BOUNDS)
    table = ssse.evaluate({"original": model}, {"forgotten": [((a, b), y)]}, progress=False)
    right = (model(a, b).argmax(1) == y).double().mean()
    assert table["original", "accuracy_forgotten"] == pytest.approx(100 * float(right))


def test_a_list_of_arrays_as_long_as_the_labels_is_one_array_a_sample():
    x = np.arange(12.0).reshape(3, 4)
    with pytest.warns(UserWarning, match="list of numpy.ndarrays"):  # torch's own, on how slow that is
        inputs, _ = read_batch(([*x], [0, 1, 2]), None)
    assert isinstance(inputs, Tensor)
    assert inputs.shape == (3, 4)


def test_inputs_that_the_model_does_not_take_are_named():
    sample = problems.linear("cross_entropy")
    more = [{"input": sample.x, "idx": torch.arange(40), "y": sample.y}]
    with refused(InvalidData, r"does not take the inputs of a batch \(input, idx\).*'idx'.*Leave out", sample.model):
        fit(sample, data=more)
    with refused(InvalidData, r"does not take the inputs of a batch \(2 in order\)", sample.model):
        fit(sample, data=[((sample.x, sample.x), sample.y)])


# ----------------------------------------------------------------------------------- names of labels


def keyed(sample: problems.Sample, part: slice = slice(None)) -> list[dict[str, Tensor]]:
    return [{"input": sample.x[part], "diagnosis": sample.y[part]}]


@pytest.mark.parametrize("loader", [False, True])
def test_label_key_is_kept_and_used_by_every_request(loader, tmp_path):
    sample = problems.converged(problems.linear("cross_entropy"), 0.1)
    items = [{"input": a, "diagnosis": b} for a, b in zip(sample.x, sample.y, strict=True)]
    data: Any = DataLoader(items, batch_size=9) if loader else keyed(sample)  # type: ignore[arg-type]
    plain = fit(sample, weight_decay=0.1, damping=None)
    assert ssse.plan(sample.model, "cross_entropy", data, label_key="diagnosis").in_words == plain.chosen
    fit(sample, data=data, label_key="diagnosis", weight_decay=0.1, damping=None).save(tmp_path / "c")
    curvature = ssse.Curvature.load(tmp_path / "c")
    assert curvature.label_key == "diagnosis"
    same(curvature.gradient, plain.gradient)
    some, rest = slice(0, 3), slice(3, None)
    found = ssse.erase(sample.model, curvature, forget=keyed(sample, some), probe=keyed(sample, rest))
    same(found.step, ssse.erase(sample.model, plain, forget=sample.part(some)).step)
    refined = ssse.refine(found.model, found.curvature, retained=keyed(sample, rest), progress=False)
    assert refined.gradient_after <= refined.gradient_before
    assert found.scan({"forgotten": keyed(sample, some)}, scales=1.0, progress=False).counts == {"forgotten": 3}
    calibrated = ssse.calibrate(
        sample.model, curvature, "cross_entropy", keyed(sample, some), data=keyed(sample), progress=False
    )
    assert calibrated.curvature.label_key == "diagnosis"
    step = gradient_ascent(sample.model, curvature, "cross_entropy", keyed(sample, some))
    same(step.step, gradient_ascent(sample.model, plain, "cross_entropy", sample.part(some)).step)


def test_label_key_where_no_curvature_says():
    sample = problems.linear("cross_entropy")
    model, loss = sample.model, "cross_entropy"
    assert objective(model, loss, keyed(sample), label_key="diagnosis") == objective(model, loss, sample.data)
    found = relearn_time(model, loss, keyed(sample), target=0.0, max_steps=2, label_key="diagnosis")
    assert found == relearn_time(model, loss, sample.data, target=0.0, max_steps=2)
    splits = {"forgotten": keyed(sample, slice(0, 9)), "retained": keyed(sample, slice(9, None))}
    table = ssse.evaluate({"original": model}, splits, loss_fn=loss, progress=False, label_key="diagnosis")
    assert table["original", "objective"] == pytest.approx(objective(model, loss, sample.part(slice(9, None))).loss)
    some = keyed(sample, slice(0, 9))
    step = influence(model, None, loss, some, data=keyed(sample), damping=0.1, label_key="diagnosis")
    same(step.step, influence(model, None, loss, sample.part(slice(0, 9)), data=sample.data, damping=0.1).step)

    def train(batches: list[Any]) -> nn.Module:
        assert sum(len(y) for _, y in batches) == 31
        return nn.Linear(5, 3).double()

    retrain(model, None, loss, some, train=train, data=keyed(sample), label_key="diagnosis")


def test_a_label_key_that_is_not_there_is_refused_with_the_keys_there_are():
    sample = problems.linear("cross_entropy")
    with refused(
        InvalidData, "label_key='klass' is none of the batch's keys, which are input, diagnosis", sample.model
    ):
        fit(sample, data=keyed(sample), label_key="klass")
    with refused(InvalidData, "its keys are input, diagnosis. Name another one with label_key=", sample.model):
        fit(sample, data=keyed(sample))
    with refused(InvalidSetting, "label_key is the name of the labels in a mapping, not 3", sample.model):
        fit(sample, data=keyed(sample), label_key=3)


# ----------------------------------------------------------------------------------- bare data sets


class Listed(Dataset[Any]):
    """Map-style, of whatever it is given."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


class Stream(IterableDataset[Any]):
    def __init__(self, items: list[Any]):
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def bare(sample: problems.Sample) -> dict[str, Any]:
    pairs = list(zip(sample.x, sample.y, strict=True))
    named = [{"x": a, "label": b} for a, b in pairs]
    batches = [(sample.x[i : i + 7], sample.y[i : i + 7]) for i in range(0, 40, 7)]
    return {
        "tensors": TensorDataset(sample.x, sample.y),
        "list": Listed(pairs),
        "mappings": Listed(named),
        "stream": Stream(pairs),
        "stream of mappings": Stream(named),
        "batches": Listed(batches),
        "stream of batches": Stream(batches),
        "list of batches": batches,
        "subset": torch.utils.data.Subset(TensorDataset(sample.x, sample.y), range(40)),
    }


@pytest.mark.parametrize("form", bare(problems.linear("mse")))
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_bare_data_set_gets_a_loader_and_one_of_batches_stays(form, loss):
    sample = problems.linear(loss)
    data = bare(sample)[form]
    curvature = fit(sample, data=data)
    assert curvature.n == 40
    same(curvature.gradient, fit(sample).gradient)
    torch.manual_seed(7)
    draw = torch.rand(1)
    torch.manual_seed(7)
    list(as_batches(data))
    assert torch.equal(torch.rand(1), draw)  # no number was taken from torch


def test_bare_data_sets_everywhere():
    sample = problems.converged(problems.linear("cross_entropy"), 0.1)
    whole, some, rest = (TensorDataset(sample.x[p], sample.y[p]) for p in (slice(0, None), slice(0, 3), slice(3, None)))
    curvature = fit(sample, data=whole, weight_decay=0.1, damping=None)
    erasure = ssse.erase(sample.model, curvature, forget=some, probe=rest)
    ssse.refine(erasure.model, erasure.curvature, retained=rest, progress=False)
    splits = {"forgotten": some, "retained": rest}
    ssse.evaluate({"original": sample.model}, splits, loss_fn="cross_entropy", progress=False)
    ssse.calibrate(sample.model, curvature, "cross_entropy", some, data=whole, progress=False)
    influence(sample.model, curvature, "cross_entropy", some, data=whole)
    matrix_free = fit(sample, data=whole, structure="matrix_free", weight_decay=0.1, damping=None)
    ssse.erase(sample.model, matrix_free, forget=some, data=whole)


def test_samples_of_several_lengths_want_a_collate_function():
    ragged = Listed([(torch.zeros(length), 0) for length in (2, 3, 2)])
    with pytest.raises(InvalidData, match=r"cannot be put into one batch.*collate_fn that pads them"):
        list(as_batches(ragged))


def test_a_mapping_is_no_list_of_batches():
    sample = problems.linear("cross_entropy")
    with refused(InvalidData, r"mapping of train, test, and must be batches: pass one of its data sets", sample.model):
        fit(sample, data={"train": sample.data, "test": sample.data})


# ----------------------------------------------------------------------------------- frames


def test_frames_of_numbers_are_tensors():
    pandas = pytest.importorskip("pandas")
    sample = problems.linear("mse")
    frame = pandas.DataFrame(sample.x.numpy(), columns=list("abcde"))
    labels = pandas.DataFrame(sample.y.numpy())
    same(fit(sample, data=[(frame, labels)]).gradient, fit(sample).gradient)
    classes = problems.linear("cross_entropy")
    frame = pandas.DataFrame(classes.x.numpy(), columns=list("abcde"))
    series = pandas.Series(classes.y.numpy(), name="class")
    same(fit(classes, data=[(frame, series)]).gradient, fit(classes).gradient)
    mixed = pandas.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]})
    inputs, _ = read_batch((mixed, [0, 1]), CPU)
    assert isinstance(inputs, Tensor)
    assert inputs.tolist() == [[1.0, 1.0, 0.5], [2.0, 0.0, 1.5]]


def test_columns_that_are_no_numbers_are_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [3.0, 4.0], "town": ["Bern", "Genf"]})
    with pytest.raises(InvalidData, match=r"The column 'town' of a frame holds .*and not numbers; encode it"):
        read_batch((frame, [0, 1]), CPU)
    with pytest.raises(InvalidData, match="The column 'town' of a frame"):
        read_batch((frame[["age"]], frame["town"]), CPU)


# ----------------------------------------------------------------------------------- what cannot be data


def test_packed_nested_and_sparse_are_refused_with_the_repair():
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    packed = pack_sequence([torch.randn(2, 1), torch.randn(1, 1), torch.randn(1, 1)])
    for batch in ((packed, y), ((packed, x), y), packed, {"x": packed, "a": x, "y": y}):
        with pytest.raises(
            InvalidData, match=r"PackedSequence mixes the samples.*\(\(x, lengths\), y\), and pack it in"
        ):
            read_batch(batch, CPU)
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged)
    with pytest.raises(InvalidData, match="x is a nested tensor; pad it"):
        read_batch((nested, y[:2]), CPU)
    with pytest.raises(InvalidData, match=r"x is a sparse tensor .*x.to_dense\(\)"):
        read_batch((x.to_sparse(), y), CPU)


def test_text_is_named_with_the_repair():
    batch = {"text": ["a", "b"], "title": ("c", "d"), "x": torch.zeros(2, 3), "label": torch.tensor([0, 1])}
    with pytest.raises(InvalidData, match=r"text under text, title, .*remove_columns\(\['text', 'title'\]\)"):
        read_batch(batch, CPU)


def test_lists_that_the_default_collate_turned_are_put_side_by_side():
    items = [
        {"input_ids": [1, 2, 3], "more": [4, 5, 6], "label": 0},
        {"input_ids": [7, 8, 9], "more": [1, 1, 2], "label": 1},
    ]
    inputs, labels = read_batch(next(iter(DataLoader(items, batch_size=2))), CPU)  # type: ignore[arg-type]
    assert isinstance(inputs, dict)
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [7, 8, 9]]
    alone, _ = read_batch({"input_ids": [torch.tensor([1, 7]), torch.tensor([2, 8])], "label": labels}, CPU)
    assert isinstance(alone, Tensor)
    assert alone.tolist() == [[1, 2], [7, 8]]
    with pytest.raises(InvalidData, match="a list of 2 tensors; join them"):
        read_batch({"a": [torch.zeros(3), torch.zeros(3)], "b": torch.zeros(2), "label": labels}, CPU)


def test_a_step_of_soft_labels_and_a_probe():
    """Fitted, erased with a probe, refined and measured with class probabilities."""
    sample = problems.linear("cross_entropy")
    soft = nn.functional.one_hot(sample.y, 3).double() * 0.9 + 0.1 / 3
    data = [(sample.x, soft)]
    curvature = fit(sample, data=data, damping=0.1)
    erasure = ssse.erase(
        sample.model, curvature, forget=[(sample.x[:3], soft[:3])], probe=[(sample.x[3:], soft[3:])],
        override=ssse.BOUNDS,
    )  # fmt: skip
    hit = (sample.model(sample.x[3:]).argmax(1) == sample.y[3:]).double().mean()
    assert erasure.diagnostics.probe_accuracy_before == pytest.approx(float(hit))
    slope = dense.gradient(sample.model, lambda z, y: nn.functional.cross_entropy(z, y), sample.x, soft)
    same(curvature.gradient, slope)
    table = ssse.evaluate({"original": sample.model}, {"forgotten": data}, progress=False)
    whole = (sample.model(sample.x).argmax(1) == sample.y).double().mean()
    assert table["original", "accuracy_forgotten"] == pytest.approx(100 * float(whole))
