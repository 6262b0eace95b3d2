"""Models that nothing can be computed with: one sentence each, before any work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidModel
from ssse.evaluation.outputs import logits_of
from tests.support import problems
from tests.support.refusals import fit, refused


def network(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4, **options), nn.Tanh(), nn.Linear(4, 3, **options)).eval()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(5, dtype=torch.complex64))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.turn).real)


class Packed(Tensor):
    """As libraries for quantisation keep their weights: a tensor of a class of their own."""

    @staticmethod
    def __new__(cls, data: Tensor) -> Packed:
        return Tensor._make_subclass(cls, data)


class Casting(nn.Sequential):
    """Computes in half precision within, and gives float32 back."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(input).float()


class Ending(nn.Linear):
    def __init__(self, dtype: torch.dtype):
        super().__init__(5, 3)
        self.last = dtype

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(self.last)


class Stubborn(nn.Linear):
    """In half precision, whatever its weights are in."""

    def forward(self, input: Tensor) -> Tensor:
        return input.to(torch.bfloat16) @ self.weight.T + self.bias


class FullyShardedDataParallel(nn.Module):
    """By its name; the real one needs a process group."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


def half_on_meta() -> nn.Module:
    model = network()
    model[2] = nn.Linear(4, 3, device="meta")
    return model


def packed() -> nn.Module:
    model = network()
    model[0].weight = nn.Parameter(Packed(model.get_parameter("0.weight").detach()))
    return model


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this way to quantise will go one day
        return torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, dtype=torch.qint8)


def coarse_numbers() -> nn.Module:
    model = network()
    model.register_buffer("scales", torch.ones(3).to(torch.float8_e4m3fn))
    return model


def in_pieces() -> nn.Module:
    model = network()
    setattr(model.get_parameter("0.weight"), "device_mesh", "two processes")  # noqa: B010  # what a DTensor has
    return model


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (half_on_meta, r"'2.weight' is on the meta device.*Load the model with its weights, whole, on one device"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)).eval(),
        "'0.weight' belongs to a lazy layer that has not seen a batch yet",
    ),
    "DTensor": (in_pieces, "'0.weight' is a DTensor: its values are spread over processes. Gather the whole model"),
    "FSDP": (
        lambda: FullyShardedDataParallel(network()).eval(),
        "Module '' is in FullyShardedDataParallel: its values are spread .*get_model_state_dict",
    ),
    "complex": (lambda: Complex().eval(), r"'turn' is complex \(torch.complex64\).*two parameters"),
    "subclass": (packed, "'0.weight' is a Packed: quantised numbers stand for others.*before quantisation"),
    "quantised": (quantised, r"Linear '0' is quantised: .*Use the model before quantisation.*\"adapters\""),
    "float8": (coarse_numbers, "'scales' is torch.float8_e4m3fn: quantised numbers"),
    "autocast inside": (
        lambda: Casting(*network()).eval(),
        r"Linear '0' gives torch.bfloat16, and the parameters in θ are torch.float32.*autocast out of forward\(\)",
    ),
    "half at the end": (
        lambda: Ending(torch.float16).eval(),
        "Ending '' gives torch.float16, and the parameters in θ are torch.float32",
    ),
    "double at the end": (
        lambda: Ending(torch.float64).eval(),
        "The model gives torch.float64, and the parameters in θ are torch.float32",
    ),
    "half whatever": (
        lambda: Stubborn(5, 3).to(torch.bfloat16).eval(),
        r"in half precision and cannot run in float32.*Take casts to half precision out of its forward\(\)",
    ),
    "traced in half precision": (
        lambda: torch.jit.trace(nn.Linear(5, 3).to(torch.bfloat16).eval(), torch.ones(2, 5, dtype=torch.bfloat16)),
        "TorchScript in half precision.*from the model in float32",
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_used(name):
    make, match = MODELS[name]
    torch.manual_seed(0)
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    with pytest.raises(InvalidModel, match=match):
        ssse.Curvature.fit(make(), "cross_entropy", sample.data, damping=1e-2, progress=False)


def test_what_is_no_module():
    sample = problems.linear("cross_entropy")
    with pytest.raises(InvalidModel, match=r"must be a torch.nn.Module, not a function"):
        ssse.Curvature.fit(lambda x: x, sample.loss, sample.data, damping=1e-2)  # type: ignore[arg-type]


def test_a_part_without_them_can_be_used():
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    sample = replace(sample, model=Complex().eval())
    curvature = fit(sample, parameters="head")
    assert ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 2))).step.any()


def test_autocast_is_refused_where_a_model_is_run():
    sample = problems.linear("cross_entropy", dtype=torch.float32)
    curvature, part = fit(sample), sample.part(slice(0, 2))
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: fit(sample),
        "plan": lambda: ssse.plan(sample.model, sample.loss, sample.data),
        "erase": lambda: ssse.erase(sample.model, curvature, sample.loss, part),
        "evaluate": lambda: ssse.evaluate({"original": sample.model}, {"test": sample.data}, progress=False),
        "logits": lambda: logits_of(sample.model, sample.x, "model"),
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in calls.values():
            with refused(InvalidModel, r"torch.autocast is on.*torch.bfloat16.*Leave the autocast block", sample.model):
                call()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available()):
        fit(sample)  # of another device: nothing is cast here
