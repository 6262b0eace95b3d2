"""Models and losses that cannot be used, and models that are not the curvature's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidData, InvalidModel, InvalidSetting, ModelMismatch
from tests.support import problems
from tests.support.refusals import INF, NAN, attempt, fit, refused, snapshot


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


class Warmer(nn.Linear):
    """No layer says so, and it does something else in training mode."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * (2.0 if self.training else 1.0)


class Counting(nn.Linear):
    """The same outputs, and something is different afterwards."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return super().forward(input)


class Seldom(nn.Linear):
    """Other outputs once in many times."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * (2.0 if self.training and float(torch.rand(())) < 1e-6 else 1.0)


class Pick(nn.Module):
    def forward(self, pair: tuple[Tensor, Any]) -> Tensor:
        return pair[0]


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
    "training": (lambda: Warmer(5, 3).double(), r"The model \(Warmer\) is in training mode .*other outputs.*eval\(\)"),
    "counting": (
        lambda: Counting(5, 3).double(),
        r"\(Counting\) is in training mode and changes its buffers",
    ),
    "seldom random": (
        lambda: Seldom(5, 3).double(),
        r"\(Seldom\) is in training mode and draws random numbers",
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Linear(5, 3), nn.InstanceNorm1d(3, track_running_stats=True)).double(),
        "InstanceNorm1d '1' is in training mode, where it uses a sample's own statistics",
    ),
    "recurrent": (
        lambda: nn.Sequential(nn.LSTM(5, 3, num_layers=2, dropout=0.1), Pick()).double(),
        "LSTM '0' is in training mode and drops at random",
    ),
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


@pytest.mark.parametrize(
    "model",
    [nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.Linear(4, 3))],
    ids=["linear", "network"],
)
def test_a_model_that_does_the_same_in_training_mode_may_stay_there(model):
    sample = problems.linear("cross_entropy")
    model = model.double().train()
    calm = fit(replace(sample, model=copy.deepcopy(model).eval()))
    before = snapshot(model)
    curvature = fit(replace(sample, model=model))
    erasure = ssse.erase(model, curvature, sample.loss, sample.part(slice(0, 2)))
    wanted = ssse.erase(copy.deepcopy(model).eval(), calm, sample.loss, sample.part(slice(0, 2)))
    assert torch.equal(erasure.step, wanted.step)
    assert erasure.model.training
    assert snapshot(model) == before
