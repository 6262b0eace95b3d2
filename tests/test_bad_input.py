"""Whatever the user brings that cannot work: refused in words, with the repair, and nothing changed."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

import ssse
from ssse.curvature import planning
from ssse.errors import (
    DoesNotFit,
    InvalidData,
    InvalidModel,
    InvalidSetting,
    ModelMismatch,
    NotPositiveDefinite,
    PrecisionLost,
)
from ssse.fingerprint import bytes_of
from tests import dense, problems

NAN, INF = float("nan"), float("inf")


def fit(sample: problems.Sample, **options: Any) -> ssse.Curvature:
    loss, data = options.pop("loss", sample.loss), options.pop("data", sample.data)
    return ssse.Curvature.fit(sample.model, loss, data, **{"damping": 1e-2, "progress": False, **options})


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a module that a call must not change; NaN compares by its bits."""
    seen: dict[str, Any] = {
        name: bytes_of(value.reshape(1, -1)).tobytes() for name, value in model.state_dict().items()
    }
    for name, parameter in model.named_parameters():
        seen[f"{name}?"] = (parameter.requires_grad, parameter.grad is None)
    for name, module in model.named_modules():
        seen[f"{name}!"] = (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
    return seen


@contextmanager
def refused(error: type[Exception], match: str, *models: nn.Module) -> Iterator[pytest.ExceptionInfo]:
    """The block raises `error`, the message reads like `match`, and no model has changed."""
    before = [snapshot(model) for model in models]
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert [snapshot(model) for model in models] == before


def attempt(call: Callable[[], Any]) -> Any:
    """What the call gives, or the error of ours that it raises."""
    try:
        return call()
    except ssse.SSSEError as error:
        return error


def put(tensor: Tensor, index: Any, value: float) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


# ---------------------------------------------------------------------------------------------- data


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
    Fault("one-hot", "cross_entropy", lambda x, y: (x, F.one_hot(y, 3)), r"one integer class index.*\(.*3\)"),
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
    Fault("words", "mse", lambda x, y: (["a"] * 8, y), "holds a list, which is not a tensor"),
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
    assert ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 39))).diagnostics.k == 39


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


# ---------------------------------------------------------------------------------- not in the data

OUTLIERS = [  # structure, options, what the refusal says
    ("dense", {"blocks": "one"}, r"more curvature in 'all' .*\(largest leverage .*, must be below 1\)"),
    ("dense", {"blocks": 7}, r"more curvature in '\d+:\d+' "),
    ("lowrank", {}, "2 of the rows to forget are not among the curvature's rows"),
    ("lowrank", {"rank": 6}, "more curvature in 'directions'"),
    ("diagonal", {}, "more curvature in 'diagonal'"),
    ("matrix_free", {}, "more curvature in 'all'"),
    ("recurrence", {"blocks": "one"}, "more curvature in 'all'"),
]


@pytest.mark.parametrize(("structure", "options", "match"), OUTLIERS)
def test_samples_that_were_not_in_the_training_data(structure, options, match, tmp_path):
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical", **options)
    strangers = (torch.full((2, 5), 20.0, dtype=torch.float64), torch.tensor([0, 1]))
    with refused(ssse.Refused, match, sample.model) as caught:
        ssse.erase(sample.model, curvature, sample.loss, [strangers])
    found = caught.value.diagnostics
    assert found.verdict == "refused"
    assert (found.k, found.n) == (2, 40)
    gradient = dense.gradient(sample.model, dense.LOSSES[sample.loss], *strangers)
    assert found.forget_gradient_norm == pytest.approx(float(gradient.norm()))
    assert found.step_norm is None
    assert str(caught.value).endswith(found.reasons[0])
    if structure == "dense" and options == {"blocks": "one"}:
        rows = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
        rows_forget = dense.empirical_rows(sample.model, sample.loss, *strangers)
        kernel = rows_forget @ torch.linalg.solve(40 * dense.gram(rows, 40, 1e-2), rows_forget.T)
        assert found.leverage_max == pytest.approx(float(torch.linalg.eigvalsh(kernel).max()))
    if structure != "lowrank":
        assert found.leverage_max is not None
        assert found.leverage_max > 1


@pytest.mark.parametrize("structure", ["dense", "lowrank"])
def test_a_refusal_can_be_written_down(structure):
    """JSON has no NaN."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical")
    with refused(ssse.Refused, "nothing was changed", sample.model) as caught:
        ssse.erase(sample.model, curvature, sample.loss, [(20 * sample.x[:2], sample.y[:2])])

    def no_constant(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    text = caught.value.diagnostics.to_json()
    assert json.loads(text, parse_constant=no_constant)["verdict"] == "refused"


def test_the_same_sample_many_times_over():
    sample = problems.linear("cross_entropy")
    five = [(sample.x[:1].expand(5, -1), sample.y[:1].expand(5))]
    for structure in ("dense", "lowrank"):
        curvature = fit(sample, structure=structure, rows="empirical")
        with refused(ssse.Refused, "leverage|not among", sample.model):
            ssse.erase(sample.model, curvature, sample.loss, five)


@pytest.mark.parametrize("structure", ["dense", "lowrank", "diagonal", "recurrence"])
def test_a_stranger_cannot_leave_the_stored_curvature(structure):
    """leave_out=False does not look at the rows; making the next curvature does, and must not invent one."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure=structure, rows="empirical")
    strangers = [(torch.full((2, 5), 20.0, dtype=torch.float64), torch.tensor([0, 1]))]
    if structure == "lowrank":  # knows its samples, so it notices at once
        with refused(ssse.Refused, "2 of the rows to forget are not among", sample.model):
            ssse.erase(sample.model, curvature, sample.loss, strangers, leave_out=False)
        return
    erasure = ssse.erase(sample.model, curvature, sample.loss, strangers, leave_out=False)
    with refused(ssse.SSSEError, "not positive definite|more curvature", sample.model):
        _ = erasure.curvature


# --------------------------------------------------------------------------------------------- model


class Noise(nn.Module):
    def __init__(self, size: float, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.layer, self.size = nn.Linear(5, 3).to(dtype), size

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        return z + self.size * torch.randn_like(z)


class CrossTalk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


class Pair(nn.Linear):
    def forward(self, input: Tensor) -> Any:
        z = super().forward(input)
        return z, z


def norm_net(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, **options), nn.Linear(4, 3)).double()


def in_training(model: nn.Module, *layers: int) -> nn.Module:
    """In eval mode but for some layers."""
    model.eval()
    for layer in layers:
        model[layer].train()  # type: ignore[index]
    return model


def with_value(value: float) -> nn.Module:
    model = nn.Linear(5, 3).double().eval()
    model.weight.data[1, 2] = value
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "training": (lambda: nn.Linear(5, 3).double(), r"The model \(Linear, as a whole\) is in training mode.*eval\(\)"),
    "part-training": (lambda: in_training(norm_net(), 2), r"The model \(Linear, '2'\) is in training mode"),
    "dropout": (
        lambda: in_training(nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)).double(), 1),
        r"Dropout '1' is in training mode and drops at random\. Call model\.eval\(\)",
    ),
    "batchnorm": (lambda: in_training(norm_net(), 1), r"BatchNorm1d '1' is in training mode.*model\.eval\(\)"),
    "no-statistics": (lambda: norm_net(track_running_stats=False).eval(), "BatchNorm1d '1' keeps no running"),
    "random": (lambda: Noise(0.1).eval(), r"different outputs for the same batch twice.*noise in forward\(\)"),
    "cross-talk": (lambda: CrossTalk().eval(), "depends on the other samples of its batch"),
    "nan": (lambda: with_value(NAN), "Parameter 'weight' holds NaN or infinity"),
    "inf": (lambda: with_value(INF), "Parameter 'weight' holds NaN or infinity"),
    "pair": (lambda: Pair(5, 3).double().eval(), r"must return a tensor or an object with \.logits, not a tuple"),
    "summed": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Flatten(0)).double().eval(), "32 samples gave an output of"),
    "images": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Unflatten(1, (2, 2))).double().eval(), "a loss function of"),
    "frozen": (lambda: nn.Linear(5, 3).double().eval().requires_grad_(False), "No parameter .* requires_grad=True"),
    "mixed": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).double()).eval(),
        "must share one dtype and device; found torch.float32 on cpu, torch.float64 on cpu",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_used(name):
    make, match = MODELS[name]
    torch.manual_seed(0)
    sample = replace(problems.linear("cross_entropy"), model=make())
    with refused(InvalidModel, match, sample.model):
        fit(sample)


@pytest.mark.parametrize("name", ["training", "dropout", "batchnorm"])
def test_erase_looks_at_the_modes_as_well(name):
    make, match = MODELS[name]
    torch.manual_seed(0)
    model = make()
    sample = replace(problems.linear("cross_entropy"), model=copy.deepcopy(model).eval())
    curvature = fit(sample)
    model.load_state_dict(sample.model.state_dict())
    with refused(InvalidModel, match, model):
        ssse.erase(model, curvature, sample.loss, sample.part(slice(0, 2)))


def test_parameters_turned_nan_after_the_fit():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    sample.model.weight.data[0, 0] = NAN  # type: ignore[union-attr]
    with refused(InvalidModel, "Parameter 'weight' holds NaN", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))


@pytest.mark.parametrize("structure", ["dense", "matrix_free"])
def test_a_little_noise_is_noise_in_float32_as_well(structure):
    torch.manual_seed(0)
    sample = replace(problems.linear("cross_entropy", dtype=torch.float32), model=Noise(1e-3, torch.float32).eval())
    with refused(InvalidModel, "different outputs for the same batch twice", sample.model):
        fit(sample, structure=structure)


def test_cross_talk_is_seen_from_batches_of_one_as_well():
    sample = replace(problems.linear("cross_entropy"), model=CrossTalk().eval())
    with refused(InvalidModel, "depends on the other samples of its batch", sample.model):
        fit(sample, data=[(sample.x[i : i + 1], sample.y[i : i + 1]) for i in range(40)])


def test_output_overflow():
    sample = problems.linear("mse")
    curvature = fit(sample)
    with refused(InvalidData, "output is NaN or infinite on a sample; check the inputs' scale", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, [(torch.full_like(sample.x[:2], 1.7e308), sample.y[:2])])
    sample.model.weight.data.mul_(1e200)  # type: ignore[union-attr]
    with refused(InvalidData, "output is NaN or infinite on a sample; check the inputs' scale", sample.model):
        fit(sample, data=[(1e200 * sample.x, sample.y)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_a_curvature_in_a_dtype_without_a_cholesky_factor(dtype):
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, "dtype.*float32.*float64", sample.model):
        fit(sample, dtype=dtype)


def test_a_half_precision_model_says_so():
    sample = problems.linear("cross_entropy", dtype=torch.bfloat16)
    with refused((InvalidModel, InvalidSetting), "bfloat16.*float32", sample.model):  # type: ignore[arg-type]
        fit(sample)


# ---------------------------------------------------------------------------------------------- loss


def concave(z: Tensor, y: Tensor) -> Tensor:
    return -((z - y) ** 2).sum()


def squared(z: Tensor, y: Tensor) -> Tensor:
    return ((z - y) ** 2).sum()


def logarithm(z: Tensor, y: Tensor) -> Tensor:
    return z.sum().log()  # NaN where the sum is negative


def steep(z: Tensor, y: Tensor) -> Tensor:
    return (z - z.detach()).abs().sqrt().sum()  # finite, but its slope is not


LOSSES: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (logarithm, {}, InvalidData, "The loss custom:logarithm is NaN or infinite on a sample"),
    (steep, {"rows": "empirical"}, InvalidData, "gradient of the training loss is NaN or infinite"),
    (concave, {"rows": "expected"}, InvalidSetting, 'convex.*custom:concave.*eigenvalue -2.*rows="empirical"'),
    (squared, {"rows": "sampled"}, InvalidSetting, "draws labels from the model, and custom:squared does not say how"),
    (lambda z, y: 3.0, {}, InvalidSetting, "loss.*tensor"),
    (lambda z, y: None, {}, InvalidSetting, "loss.*tensor"),
    (7, {}, InvalidSetting, r"The loss must be a name or a function of \(model\(x\), y\), not int"),
]


@pytest.mark.parametrize(
    ("loss", "options", "error", "match"), LOSSES, ids=["nan", "steep", "concave", "sampled", "float", "none", "int"]
)
def test_losses_that_cannot_be_used(loss, options, error, match):
    sample = problems.linear("mse")
    with refused(error, match, sample.model):
        fit(sample, loss=loss, **options)


def test_a_custom_loss_that_is_nan_on_the_forget_set():
    sample = problems.linear("mse")

    def rooted(z: Tensor, y: Tensor) -> Tensor:
        return ((z - y) ** 2).sum() + 0 * y.sum().add(1e3).sqrt()

    curvature = fit(sample, loss=rooted)
    with refused(InvalidData, "rooted is NaN or infinite on a sample", sample.model):
        ssse.erase(sample.model, curvature, rooted, [(sample.x[:2], sample.y[:2] - 1e6)])


@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, lambda weight: partial(F.cross_entropy, weight=weight)])
def test_class_weights_are_not_lost(make):
    """A weighted mean over one sample is the sample without its weight."""
    sample = problems.linear("cross_entropy")
    weight = torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64)
    summed = fit(sample, loss=partial(F.cross_entropy, weight=weight, reduction="sum"), rows="empirical")
    assert float((summed.gradient - fit(sample, rows="empirical").gradient).norm()) > 0.1  # type: ignore[operator]
    averaged = attempt(lambda: fit(sample, loss=make(weight=weight), rows="empirical"))
    if isinstance(averaged, ssse.SSSEError):
        assert "weight" in str(averaged)
    else:
        torch.testing.assert_close(averaged.gradient, summed.gradient)


# ------------------------------------------------------------------------------------------ settings

FIT_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"loss": "cross-entropy"}, "Unknown loss 'cross-entropy'.*cross_entropy"),
    ({"rows": "empiricl"}, "rows must be 'auto' or one of empirical.*not 'empiricl'"),
    ({"rows": "empiricl", "structure": "dense"}, "rows must be 'auto' or one of empirical.*not 'empiricl'"),
    ({"structure": "dens"}, "structure must be 'auto' or one of dense, .*not 'dens'"),
    ({"structure": "dense", "blocks": "ouput"}, 'blocks must be .*"output".*not .ouput'),
    ({"structure": "dense", "blocks": 0}, "blocks must be .*a positive integer, not 0"),
    ({"structure": "dense", "blocks": True}, "blocks must be .*a positive integer, not True"),
    ({"structure": "lowrank", "blocks": 7}, "blocks .*lowrank"),
    ({"structure": "diagonal", "blocks": 7}, "blocks .*diagonal"),
    ({"structure": "matrix_free", "blocks": 7}, "blocks .*matrix_free"),
    ({"parameters": "heads"}, 'parameters must be "all", "head" or a list of names, not .heads'),
    ({"parameters": ["wieght"]}, "no parameter 'wieght'. Did you mean 'weight'"),
    ({"parameters": []}, "empty list; name at least one"),
    ({"damping": None}, r"damping \(λ\) must be positive.*damping=1e-4 or the weight_decay.*Got 0"),
    ({"damping": 0.0}, r"damping \(λ\) must be positive.*Got 0"),
    ({"damping": 0.0, "weight_decay": 1e-3}, r"damping \(λ\) must be positive.*Got 0"),
    ({"damping": -1e-3}, r"damping \(λ\) must be positive.*Got -0.001"),
    ({"damping": NAN}, r"damping \(λ\) must be positive.*Got nan"),
    ({"damping": INF}, r"damping \(λ\) must be positive.*Got inf"),
    ({"weight_decay": -1.0}, "weight_decay must be zero or positive, not -1"),
    ({"weight_decay": NAN}, "weight_decay must be zero or positive, not nan"),
    ({"weight_decay": INF}, "weight_decay must be .*not inf"),
    ({"rows": "expected", "rows_per_batch": 4}, "rows_per_batch .*rows='empirical'"),
    ({"rows": "sampled", "rows_per_batch": 4}, "rows_per_batch .*rows='empirical'"),
    ({"rows_per_batch": 0}, "rows_per_batch must be 1 or more"),
    ({"rows_per_batch": 2, "structure": "matrix_free"}, "use it with rows_per_batch=1"),
    ({"rank": 3}, 'rank truncates structure="lowrank"; name that structure'),
    ({"rank": 0, "structure": "lowrank"}, "rank must be at least 1, not 0"),
    ({"rank": -1, "structure": "lowrank"}, "rank must be at least 1, not -1"),
    ({"structure": "matrix_free", "preconditioner": "dens"}, 'preconditioner must be .*"dense", not .dens'),
    ({"structure": "matrix_free", "tolerance": 2.0}, "tolerance .*2.0"),
    ({"structure": "matrix_free", "tolerance": NAN}, "tolerance .*nan"),
    ({"structure": "matrix_free", "tolerance": -1e-3}, "tolerance .*-0.001"),
    ({"structure": "matrix_free", "max_iterations": 0}, "max_iterations .*0"),
    ({"memory_budget": "8 parsecs"}, 'memory_budget must be bytes or a text like "8GiB", not .8 parsecs'),
    ({"memory_budget": "GiB"}, "memory_budget must be bytes or a text"),
    ({"memory_budget": "infGiB"}, "memory_budget must be"),
    ({"memory_budget": "-8GiB"}, "memory_budget must be"),
    ({"memory_budget": 0}, "memory_budget must be positive, not 0"),
    ({"memory_budget": NAN}, "memory_budget must be"),
]


@pytest.mark.parametrize(("options", "match"), FIT_SETTINGS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_settings_of_fit_that_mean_nothing(options, match):
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, match, sample.model):
        fit(sample, **options)


def test_settings_that_mean_nothing_for_a_network():
    sample = problems.mlp()
    with refused(InvalidSetting, 'blocks="output" needs θ to be one linear layer.*parameters="head"', sample.model):
        fit(sample, structure="dense", blocks="output")
    sample.model[0].requires_grad_(False)  # type: ignore[index]
    with refused(InvalidSetting, r"Parameter '0\.weight' is frozen \(requires_grad=False\)", sample.model):
        fit(sample, parameters=["0.weight", "2.weight"])
    sample.model[2].requires_grad_(False)  # type: ignore[index]
    sample.model[0].requires_grad_(True)  # type: ignore[index]
    with refused(InvalidModel, "The last linear layer, '2', is frozen", sample.model):
        fit(sample, parameters="head")
    plain = replace(sample, model=nn.Sequential(nn.LayerNorm(4)).double().eval())
    with refused(InvalidSetting, 'parameters="head" needs a linear layer; the model has none', plain.model):
        fit(plain, parameters="head")


@pytest.mark.parametrize("structure", ["recurrence", "lowrank"])
def test_structures_that_need_to_know_n_say_so(structure):
    sample = problems.linear("cross_entropy")
    with refused(InvalidSetting, "number of samples.*DataLoader or a list", sample.model):
        fit(sample, structure=structure, data=iter(sample.data))


ERASE_SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"scale": scale}, rf"scale \(ε\) must be a positive number, not {scale}") for scale in (NAN, 0.0, -1.0, INF)),
    ({"policy": "rebaze"}, "policy must be one of rebase, joint, not 'rebaze'"),
]


@pytest.mark.parametrize(("options", "match"), ERASE_SETTINGS)
def test_settings_of_erase_that_mean_nothing(options, match):
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    with refused(InvalidSetting, match, sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), **options)


def test_rows_of_mini_batches_cannot_be_subtracted():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, rows="empirical", rows_per_batch=4)
    with refused(InvalidSetting, r"mini-batch of 4.*leave_out=False .*rows_per_batch=1", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), leave_out=False)
    with pytest.raises(InvalidSetting, match=r"cannot leave this curvature.*rows_per_batch=1"):
        _ = erasure.curvature


def test_streams_that_change_their_mind():
    sample = problems.linear("cross_entropy")
    curvature = fit(sample)
    rebased = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    with refused(InvalidSetting, "not known after a rebase.*policy='joint'", rebased.model):
        ssse.erase(rebased.model, rebased.curvature, sample.loss, sample.part(slice(2, 4)), residual=True)
    joint = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), policy="joint")
    with refused(InvalidSetting, "begun with leave_out=True; its requests must stay with it", joint.model):
        ssse.erase(joint.model, joint.curvature, sample.loss, sample.part(slice(2, 4)), leave_out=False)


def test_matrix_free_and_its_data():
    sample = problems.linear("cross_entropy")
    part = sample.part(slice(0, 2))
    with refused(InvalidData, "reads the training data many times; pass a DataLoader or a list", sample.model):
        fit(sample, structure="matrix_free", data=iter(sample.data))
    curvature = fit(sample, structure="matrix_free")
    erase = partial(ssse.erase, sample.model, curvature, sample.loss, part)
    with refused(InvalidData, "reads the training data many times", sample.model):
        erase(data=iter(sample.data))
    with refused(InvalidData, "holds 30 samples; this curvature stands for 40", sample.model):
        erase(data=sample.part(slice(0, 30)))
    assert torch.equal(erase(data=sample.data).step, erase().step)


def test_matrix_free_with_as_many_samples_but_others():
    """The mean loss over the data is stored, so this can be noticed."""
    sample = problems.linear("cross_entropy")
    curvature = fit(sample, structure="matrix_free")
    with refused(InvalidData, "not the data|other data", sample.model):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), data=[(sample.x.flip(1), sample.y)])


@pytest.mark.parametrize("leave_out", [True, False])
def test_conjugate_gradients_that_stopped_early_are_no_silent_answer(leave_out):
    sample = problems.converged(problems.linear("cross_entropy"), 1e-2)
    curvature = fit(sample, structure="matrix_free", max_iterations=1, preconditioner="none")
    found = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), leave_out=leave_out).diagnostics
    assert found.verdict == "caution"
    assert any("not below the tolerance" in reason for reason in found.reasons)


def test_vectors_of_another_shape():
    curvature = fit(problems.linear("cross_entropy"))
    for shape in ((17,), (18, 1), ()):
        with pytest.raises(InvalidSetting, match=r"v must have shape \(18,\), .*got " + re.escape(str(shape))):
            curvature.solve(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(InvalidSetting, match="damping"):
        curvature.with_damping(0.0)


SHARDS = [{"blocks": 6}, {"blocks": "one"}, {"blocks": "parameter"}, {"blocks": "output", "damping": 0.5}]


@pytest.mark.parametrize("options", SHARDS, ids=str)
def test_shards_that_do_not_belong_together(options):
    """Blocks of six parameters each are not the same as the six of each output."""
    sample = problems.linear("cross_entropy")
    one = fit(sample, data=sample.part(slice(0, 20)), structure="dense", blocks="output")
    other = fit(sample, data=sample.part(slice(20, 40)), structure="dense", **options)
    with pytest.raises(InvalidSetting, match="Shards must share"):
        ssse.Curvature.merge([one, other])


def test_no_shards_at_all():
    with pytest.raises(InvalidSetting, match="shard"):
        ssse.Curvature.merge([])


# ---------------------------------------------------------------------------------- memory, precision


def test_what_does_not_fit_names_what_does():
    sample = problems.mlp()
    budget = 50_000  # one dense block wants 65 KiB; the rows and their kernel 34 KiB
    with refused(DoesNotFit, "curvature of 51 parameters does not fit the memory budget of", sample.model) as caught:
        fit(sample, structure="dense", blocks="one", memory_budget=budget)
    asked, fits = str(caught.value).split("This would fit:")
    assert planning.human_bytes(budget) in asked
    assert "expected rows, dense, 1 block, float64" in asked.split("Asked for:")[1]
    assert "empirical rows, lowrank, float64" in fits
    assert "dense, 1 block" not in fits
    assert fit(sample, structure="lowrank", rows="empirical", memory_budget=budget).n == 30  # as promised


def test_where_nothing_held_fits_there_is_still_matrix_free():
    sample = problems.mlp()
    with refused(DoesNotFit, r"This would fit:\n.*matrix_free", sample.model):
        fit(sample, memory_budget=12_000)
    fit(sample, structure="matrix_free", memory_budget=12_000)


def test_the_estimate_of_a_small_data_set_is_small():
    """Ten samples are never 4096, however wide they are."""
    sample = problems.linear("mse", n=10, p=2000, c=1)
    plan = ssse.plan(sample.model, sample.loss, sample.data, structure="lowrank")
    assert plan.fit_bytes < 20 * sample.x.numel() * 8


def test_planning_leaves_the_random_numbers_alone(monkeypatch):
    monkeypatch.setattr(planning, "_SPEEDS", {})
    sample = problems.linear("cross_entropy")
    before = torch.get_rng_state()
    fit(sample)
    assert torch.equal(torch.get_rng_state(), before)


def badly_scaled(seed: int, span: int) -> problems.Sample:
    """Features from 10⁻ˢ to 10ˢ, in float32."""
    generator = torch.Generator().manual_seed(seed)
    sample = problems.linear("cross_entropy", n=60, p=6, seed=seed, dtype=torch.float32)
    sample.x = torch.randn(60, 6, generator=generator) * torch.logspace(-span, span, 6)
    sample.model.weight.data.mul_(10.0 ** -(span + 1))  # type: ignore[union-attr]
    return sample


def test_float32_with_tiny_damping_is_accurate_or_raises():
    raised = []
    for seed, span in ((seed, span) for seed in range(5) for span in (2, 3, 4)):
        sample = badly_scaled(seed, span)
        exact = replace(sample, model=copy.deepcopy(sample.model).double(), x=sample.x.double())
        rows = dense.expected_rows(exact.model, exact.loss, exact.x, exact.y)
        g = dense.gradient(exact.model, dense.LOSSES[exact.loss], exact.x[:5], exact.y[:5])
        for damping in (1e-2, 1e-4, 1e-6, 1e-8):
            before = snapshot(sample.model)
            options = {"structure": "dense", "blocks": "one", "rows": "expected", "damping": damping}
            found = attempt(lambda sample=sample, options=options: fit(sample, **options))
            if isinstance(found, NotPositiveDefinite):
                assert re.search(r"Block 'all' \(21 parameters, nλ = .*float32\).*pivot \d+.*float64", str(found))
            elif isinstance(found, PrecisionLost):
                assert re.search(r"block 'all'.*relative error of \S+, above 1e-03.*dtype=torch.float64", str(found))
                raised.append((seed, span, damping))
            else:
                truth = torch.linalg.solve(dense.gram(rows, 60, damping), g)
                assert float((found.solve(g.float()).double() - truth).norm() / truth.norm()) < 1e-2
            assert snapshot(sample.model) == before
    assert raised
    seed, span, damping = raised[0]
    fit(badly_scaled(seed, span), structure="dense", blocks="one", damping=1e4 * damping, dtype=torch.float64)


def test_the_dtype_asked_for_is_the_dtype_used():
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    for structure in ("dense", "lowrank", "diagonal"):
        curvature = fit(sample, structure=structure, dtype=torch.float64)
        numbers = [t for t in curvature.structure.state().values() if t.is_floating_point()]
        assert {t.dtype for t in numbers} == {torch.float64}, structure


def test_a_singular_curvature_names_its_block():
    sample = problems.linear("mse")
    two = [(1e6 * sample.x[:2], sample.y[:2])]
    with refused(NotPositiveDefinite, r"Block 'all' \(18 parameters, nλ = 2e-14, .*larger damping", sample.model):
        fit(sample, data=two, damping=1e-14, structure="dense", blocks="one")
    with refused(NotPositiveDefinite, r"Block 'output 0' \(6 parameters", sample.model):
        fit(sample, data=two, damping=1e-14, structure="dense", blocks="output")


def test_data_too_large_to_square_says_that_and_not_something_about_damping():
    sample = problems.linear("mse")
    with refused(ssse.SSSEError, "infinit|overflow|scale", sample.model) as caught:
        fit(sample, data=[(1e170 * sample.x, sample.y)], rows="expected")
    assert "larger damping" not in str(caught.value)


# ------------------------------------------------------------------------------------- another model


def other(change: Callable[[nn.Module], Any]) -> Callable[[problems.Sample], nn.Module]:
    def make(sample: problems.Sample) -> nn.Module:
        model = copy.deepcopy(sample.model)
        with torch.no_grad():
            change(model)
        return model

    return make


MISMATCHES: dict[str, tuple[Callable[[problems.Sample], nn.Module], str]] = {
    "names": (lambda s: nn.Sequential(copy.deepcopy(s.model)).eval(), "no parameter 'conv.weight', .*the curvature"),
    "shapes": (
        lambda s: problems.ConvNet(classes=5).double().eval(),
        r"head\.weight: \(4, 12\) in the curvature, \(5, 12\) in the model",
    ),
    "dtype": (other(lambda m: m.float()), "fitted in torch.float64; the model is in torch.float32"),
    "values": (
        other(lambda m: m.get_parameter("head.bias").add_(1e-12)),
        "parameter values are not those.*erasure.curvature",
    ),
    "buffers": (
        other(lambda m: m.get_buffer("norm.running_mean").add_(1e-3)),
        "frozen parameters or buffers .*BatchNorm stat",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_curvature_of_another_model(name):
    sample = problems.conv()
    curvature = fit(sample)
    make, match = MISMATCHES[name]
    model = make(sample)
    with refused(ModelMismatch, match, model, sample.model):
        ssse.erase(model, curvature, sample.loss, sample.part(slice(0, 2)))


def test_a_curvature_of_another_loss_or_of_other_frozen_parameters():
    sample = problems.mlp("binary_cross_entropy")
    with refused(ModelMismatch, "of the loss 'binary_cross_entropy', not of 'mse'", sample.model):
        ssse.erase(sample.model, fit(sample), "mse", sample.part(slice(0, 2)))
    head = fit(sample, parameters="head")
    sample.model[0].weight.data[0, 0] += 1  # type: ignore[index]
    with refused(ModelMismatch, "frozen parameters or buffers", sample.model):
        ssse.erase(sample.model, head, sample.loss, sample.part(slice(0, 2)))


def test_an_erasure_that_works_changes_nothing_that_was_passed_in():
    sample = problems.conv()
    sample.model.conv.requires_grad_(False)  # type: ignore[union-attr]
    curvature, before, x = fit(sample), snapshot(sample.model), sample.x.clone()
    solved = curvature.solve(torch.ones(curvature.layout.dim, dtype=torch.float64))
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    assert snapshot(sample.model) == before
    assert torch.equal(sample.x, x)
    assert torch.equal(curvature.solve(torch.ones(curvature.layout.dim, dtype=torch.float64)), solved)
    after = snapshot(erasure.model)
    assert {k: v for k, v in after.items() if k[-1] in "?!"} == {k: v for k, v in before.items() if k[-1] in "?!"}
    assert {k for k in before if after[k] != before[k]} == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert math.isfinite(erasure.diagnostics.step_norm or NAN)
