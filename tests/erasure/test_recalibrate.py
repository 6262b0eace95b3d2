"""BatchNorm's statistics are those of the samples, to the last digit, and nothing else of a model changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidData, InvalidModel, ModelMismatch
from tests.problem.test_wrappers import every_wrapper
from tests.support import digit_networks as networks
from tests.support import problems
from tests.support.refusals import fit, refused, snapshot

QUIET: dict[str, Any] = {"progress": False}


def images(n: int = 16, seed: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def statistics(model: nn.Module) -> tuple[Tensor, Tensor]:
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def momentum(model: Any) -> float:
    return model.norm.momentum


def test_mean_and_variance_over_all_samples():
    sample, x = problems.conv(), images()
    before = snapshot(sample.model)
    found = ssse.recalibrate(sample.model, [x], **QUIET)
    inputs = sample.model.get_submodule("conv")(x)
    mean, variance = statistics(found)
    assert torch.allclose(mean, inputs.mean((0, 2, 3)), rtol=1e-12)
    assert torch.allclose(variance, inputs.var((0, 2, 3)), rtol=1e-12)
    assert snapshot(sample.model) == before
    assert not found.training
    same = {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    state = found.state_dict()
    assert all(torch.equal(state[name], value) for name, value in sample.model.state_dict().items() if name in same)
    assert momentum(found) == momentum(sample.model)


def test_averages_over_batches_of_512_each_by_its_size():
    sample, x = problems.conv(), images(512 + 188)
    found = ssse.recalibrate(sample.model, [(x[:90], torch.zeros(90)), (x[90:], torch.zeros(610))], **QUIET)
    inputs = sample.model.get_submodule("conv")(x)
    parts = [inputs[:512].var((0, 2, 3)), inputs[512:].var((0, 2, 3))]
    mean, variance = statistics(found)
    assert torch.allclose(mean, inputs.mean((0, 2, 3)), rtol=1e-9)
    assert torch.allclose(variance, (512 * parts[0] + 188 * parts[1]) / 700, rtol=1e-9)


def test_of_a_second_layer_as_training_sees_it():
    """The layer before it normalises by the batch, as in training, not by what was stored."""
    model: Any = copy.deepcopy(networks.original())
    x, _ = networks.part(networks.retained())[0]
    found = ssse.recalibrate(model, [x[:300]], **QUIET)
    h = model[0](x[:300])
    h = model[3](nn.functional.relu(nn.functional.batch_norm(h, None, None, model[1].weight, model[1].bias, True)))
    assert torch.allclose(found.get_buffer("4.running_mean"), h.mean(0), rtol=1e-9)
    assert torch.allclose(found.get_buffer("4.running_var"), h.var(0), rtol=1e-9)


def test_a_single_sample_at_the_end_joins_the_others():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    x = torch.randn(513, 3, dtype=torch.float64)
    mean, variance = statistics(ssse.recalibrate(model, [x], **QUIET))
    assert torch.allclose(mean, model[0](x).mean(0), rtol=1e-9)
    assert torch.allclose(variance, model[0](x).var(0), rtol=1e-9)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = problems.ConvNet()

    def forward(self, pixels: Tensor, extra: Tensor | None = None) -> Tensor:
        return self.net(pixels)


class Shared(nn.Module):
    """One layer of statistics, met twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(2 * x) + self.norm(x))


def test_a_layer_that_is_met_twice_has_seen_both():
    torch.manual_seed(0)
    x = torch.randn(20, 3, dtype=torch.float64)
    mean, variance = statistics(ssse.recalibrate(Shared().double().eval(), [x], **QUIET))
    assert torch.allclose(mean, 1.5 * x.mean(0), rtol=1e-9)
    assert torch.allclose(variance, 2.5 * x.var(0), rtol=1e-9)


FORMS = {
    "x": lambda x: [x],
    "(x,)": lambda x: [(x,)],
    "several x": lambda x: [x[:8], x[8:]],
    "(x, y)": lambda x: [(x, torch.zeros(len(x)))],
    "mapping": lambda x: [{"pixels": x, "label": torch.zeros(len(x))}],
    "mapping without labels": lambda x: [{"pixels": x}],
    "several inputs": lambda x: [{"pixels": x, "extra": x}],
    "data set": lambda x: torch.utils.data.TensorDataset(x),
    "iterator": lambda x: iter([x]),
    "array": lambda x: [x.numpy()],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_batches_with_labels_and_without(form):
    torch.manual_seed(0)
    model, x = Named().double().eval(), images()
    mean, _ = statistics(ssse.recalibrate(model, form(x), **QUIET))
    assert torch.allclose(mean, model.net.conv(x).mean((0, 2, 3)), rtol=1e-9)


@every_wrapper
def test_wrapped(wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    x = torch.randn(20, 3, dtype=torch.float64)
    wanted = ssse.recalibrate(model, [x], **QUIET)
    found = ssse.recalibrate(wrap(copy.deepcopy(model)), [x], **QUIET)
    assert type(found) is type(wrap(copy.deepcopy(model)))
    assert torch.equal(statistics(found)[1], statistics(wanted)[1])


def test_in_half_precision_to_the_last_place_it_has():
    sample = problems.conv(dtype=torch.float32)
    half = copy.deepcopy(sample.model).bfloat16()
    x = images(dtype=torch.float32)
    mean, _ = statistics(ssse.recalibrate(half, [x], **QUIET))
    wanted, _ = statistics(ssse.recalibrate(copy.deepcopy(half).float(), [x], **QUIET))
    assert mean.dtype == torch.bfloat16
    assert torch.equal(mean, wanted.bfloat16())


def test_interrupted_it_leaves_the_model_as_it_was():
    sample = problems.conv()
    before = snapshot(sample.model)

    def batches() -> Iterator[Tensor]:
        yield images()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ssse.recalibrate(sample.model, batches(), **QUIET)
    assert snapshot(sample.model) == before


def test_a_curvature_of_the_model_before_does_not_belong_to_it():
    sample = problems.conv()
    found = ssse.recalibrate(sample.model, [images()], **QUIET)
    with pytest.raises(ModelMismatch, match="BatchNorm statistics"):
        ssse.erase(found, fit(sample), sample.loss, sample.part(slice(0, 2)))


def test_what_cannot_be():
    sample = problems.conv()
    with refused(InvalidModel, "has no BatchNorm statistics", problems.mlp().model):
        ssse.recalibrate(problems.mlp().model, [images()])
    with refused(InvalidData, "There are no samples", sample.model):
        ssse.recalibrate(sample.model, [])
    with refused(InvalidData, "A batch holds no inputs", sample.model):
        ssse.recalibrate(sample.model, [{}])
    with refused(InvalidData, "NaN or infinity", sample.model):
        ssse.recalibrate(sample.model, [images() * float("nan")])
    with refused(InvalidData, "The model fails on the first samples", sample.model):
        ssse.recalibrate(sample.model, [torch.randn(4, 3, dtype=torch.float64)])
    with refused(InvalidData, "pass \\[\\(x, y\\)\\]", sample.model):
        ssse.recalibrate(sample.model, (images(), torch.zeros(16)))


def large_step(scale: float) -> ssse.Erasure:
    model, data = networks.original(), networks.part(torch.arange(networks.TRAINED))
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", data, rows="margin", weight_decay=networks.DECAY, damping=networks.DECAY, **QUIET
    )
    forget = networks.part(networks.forgotten())
    return ssse.erase(model, curvature, forget=forget, scale=scale, override=ssse.BOUNDS, **QUIET)


def test_a_large_step_says_that_statistics_come_first():
    large, small = large_step(20.0), large_step(0.01)
    assert large.diagnostics.relative_step is not None
    assert large.diagnostics.relative_step > 0.1
    assert any("ssse.recalibrate" in reason for reason in large.diagnostics.reasons)
    assert not any("ssse.recalibrate" in reason for reason in small.diagnostics.reasons)


def test_a_step_of_the_layer_after_all_statistics_does_not():
    model, data = networks.original(), networks.part(torch.arange(networks.TRAINED))
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", data, parameters="head", weight_decay=networks.DECAY, damping=networks.DECAY, **QUIET
    )
    found = ssse.erase(
        model, curvature, forget=networks.part(networks.forgotten()), scale=20.0, override=ssse.BOUNDS, **QUIET
    )
    assert (found.diagnostics.relative_step or 0) > 0.1
    assert not any("ssse.recalibrate" in reason for reason in found.diagnostics.reasons)
