"""Models in bfloat16 and float16, wholly or partly: worked on in float32, handed back as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidData, ModelMismatch, Refused
from ssse.problem.view import ModelView
from tests.support import problems
from tests.support.refusals import fit, refused, snapshot

HALF = [torch.bfloat16, torch.float16]
PLACES = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half of the last place, relative to the number


class Adapted(nn.Module):
    """A frozen base and an adapter beside it, as people train large models: the base in half precision."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.base = nn.Linear(4, 6).to(dtype).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.base(x.to(self.base.weight.dtype)).float() + self.up(self.down(x.float()))
        return self.head(torch.tanh(h))


class Mixed(nn.Module):
    """In half precision but for its norm, as is usual; all of it trained."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6).to(dtype), nn.LayerNorm(6), nn.Linear(6, 3).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x).float()).to(self.first.weight.dtype)
        return self.last(h)


MODELS: dict[str, Callable[[torch.dtype], nn.Module]] = {
    "linear": lambda dtype: nn.Linear(4, 3).to(dtype),
    "network": lambda dtype: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype),
    "mixed": Mixed,
    "adapted": Adapted,
    "wrapped": lambda dtype: nn.DataParallel(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)),
}


def subject(name: str, dtype: torch.dtype) -> problems.Sample:
    sample = problems.mlp(dtype=torch.float32)
    torch.manual_seed(1)
    return replace(sample, model=MODELS[name](dtype).eval())


def in_float32(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).float()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("structure", ["dense", "lowrank", "matrix_free"])
def test_the_step_is_that_of_the_model_in_float32_and_the_model_handed_back_is_its_rounding(name, dtype, structure):
    sample = subject(name, dtype)
    before, wide = snapshot(sample.model), replace(sample, model=in_float32(sample.model))
    erasure = ssse.erase(sample.model, fit(sample, structure=structure), forget=sample.part(slice(0, 2)))
    wanted = ssse.erase(wide.model, fit(wide, structure=structure), forget=sample.part(slice(0, 2)))
    assert snapshot(sample.model) == before
    torch.testing.assert_close(erasure.direction, wanted.direction)
    target = dict(wanted.model.named_parameters())
    for key, value in erasure.model.state_dict().items():
        assert value.dtype == sample.model.state_dict()[key].dtype
        accuracy = PLACES.get(value.dtype, 1e-5)
        torch.testing.assert_close(value.float(), target[key].detach(), rtol=1.01 * accuracy, atol=1e-6)
    view = ModelView(erasure.model, erasure.curvature.layout.names)
    assert torch.equal(view.theta() - ModelView(sample.model, view.layout.names).theta(), erasure.step)
    change = erasure.step - wanted.step
    rounding = erasure.diagnostics.rounding
    if name == "adapted":  # its base alone is in half precision, and stays as it is
        assert rounding is None
        return
    assert rounding is not None
    assert rounding == pytest.approx(float(change.norm() / wanted.step.norm()), rel=0.05, abs=1e-5)
    assert f"{rounding:.1%} of the step" in str(erasure.diagnostics)
    assert wanted.diagnostics.rounding is None
    assert "rounding" not in str(wanted.diagnostics)


@pytest.mark.parametrize("dtype", HALF)
def test_inputs_may_be_in_any_of_the_three(dtype):
    sample = subject("network", dtype)
    steps = []
    for given in (dtype, torch.float32):  # the numbers are the same, and exact in both
        data = [(sample.x.to(dtype).to(given), sample.y)]
        erasure = ssse.erase(sample.model, fit(sample, data=data), forget=[(data[0][0][:2], sample.y[:2])])
        steps.append(erasure.step)
    torch.testing.assert_close(*steps)
    with refused(InvalidData, "inputs are torch.float64 and the parameters torch.float32", sample.model):
        fit(sample, data=[(sample.x.double(), sample.y)])
    wide = replace(sample, model=in_float32(sample.model))
    with refused(InvalidData, "cast one of them", wide.model):  # as ever: only a model in half precision takes both
        fit(wide, data=[(sample.x.to(dtype), sample.y)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_models_are_worked_on_as_they_are(dtype):
    sample = problems.mlp(dtype=dtype)
    view = ModelView(sample.model)
    assert view.model is sample.model
    assert view.working.given is sample.model
    assert not view.rounds
    theta = view.theta() / 3
    assert view.rounded(theta) is theta


def test_a_curvature_in_half_precision_and_its_model_belong_together(tmp_path):
    sample = subject("network", torch.bfloat16)
    fit(sample, damping=1.0).save(tmp_path / "curvature")
    curvature = ssse.Curvature.load(tmp_path / "curvature")
    wide = in_float32(sample.model)
    with refused(ModelMismatch, "fitted in torch.bfloat16; the model is in torch.float32", wide):
        ssse.erase(wide, curvature, forget=sample.part(slice(0, 2)))
    first = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 2)))
    second = ssse.erase(first.model, first.curvature, forget=sample.part(slice(2, 4)))
    assert next(second.model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", HALF)
def test_a_joint_stream_rounds_once_however_its_requests_are_cut(dtype):
    sample = subject("network", dtype)
    curvature, model = fit(sample, damping=1.0), sample.model
    for start in (0, 2, 4):
        erasure = ssse.erase(model, curvature, forget=sample.part(slice(start, start + 2)), policy="joint")
        model, curvature = erasure.model, erasure.curvature
    whole = ssse.erase(sample.model, fit(sample, damping=1.0), forget=sample.part(slice(0, 6)), policy="joint")
    for one, other in zip(model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=2 * PLACES[dtype], atol=1e-6
        )  # a last place, where it rounds to two


def trained(dtype: torch.dtype, decay: float = 1e-2) -> problems.Sample:
    """At its minimum, as far as the dtype can hold it."""
    sample = problems.converged(problems.linear("cross_entropy", n=200), decay)
    return replace(sample, model=sample.model.to(dtype), x=sample.x.float())


def test_a_step_that_half_precision_loses_is_refused():
    sample = trained(torch.bfloat16)
    curvature = fit(sample, weight_decay=1e-2, damping=None)
    whole = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 40)))
    tiny: dict[str, Any] = {"forget": sample.part(slice(0, 1)), "scale": 1e-5}
    with refused(Refused, "In torch.bfloat16.*not one parameter changes, and nothing would be erased", sample.model):
        ssse.erase(sample.model, curvature, **tiny)
    with refused(Refused, "not one parameter changes", sample.model):
        ssse.erase(sample.model, curvature, override=ssse.BOUNDS, **tiny)  # there is no step to take
    wide = replace(sample, model=in_float32(sample.model))
    assert ssse.erase(wide.model, fit(wide, weight_decay=1e-2, damping=None), **tiny).step.any()
    assert whole.diagnostics.rounding is not None
    assert whole.diagnostics.rounding < 0.2


def test_a_step_that_rounding_eats_a_part_of_is_one_for_caution():
    sample = trained(torch.bfloat16)
    curvature = fit(sample, weight_decay=1e-2, damping=None)
    seen = {}
    for scale in (1.0, 0.1, 0.01):
        measured = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 20)), scale=scale).diagnostics
        seen[measured.rounding or 0.0] = "rounding to it changes the step by" in " ".join(measured.reasons)
    assert min(seen) < 0.2 < max(seen)
    assert seen == {rounding: rounding > 0.2 for rounding in seen}


def test_a_model_that_would_leave_the_range_of_its_dtype():
    sample = problems.linear("mse", dtype=torch.float32)
    sample.model.to(torch.float16)
    sample.y *= 1e4
    with refused(Refused, "out of the range of torch.float16, in which the model is kept", sample.model):
        ssse.erase(
            sample.model, fit(sample, damping=1e-2), forget=sample.part(slice(0, 2)), scale=1e3, override=ssse.BOUNDS
        )


def test_everything_else_takes_them_too():
    decay = 1e-2
    sample = trained(torch.bfloat16, decay)
    curvature = fit(sample, weight_decay=decay, damping=None)
    erasure = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 20)))
    rest = sample.part(slice(20, None))
    refined = ssse.refine(erasure.model, erasure.curvature, retained=rest, progress=False)
    assert next(refined.model.parameters()).dtype == torch.bfloat16
    assert refined.objective_after <= refined.objective_before
    measured = ssse.metrics.objective(refined.model, sample.loss, rest, weight_decay=decay)
    assert measured.loss == pytest.approx(refined.objective_after, rel=1e-6)
    ssse.erase(refined.model, refined.curvature, forget=sample.part(slice(20, 40)))
    splits = {"forgotten": sample.part(slice(0, 20)), "test": rest}
    table = ssse.evaluate(
        {"original": sample.model, "erased": erasure.model}, splits, loss_fn=sample.loss, progress=False
    )
    assert set(table.models) == {"original", "erased"}
    found = ssse.calibrate(sample.model, curvature, sample.loss, splits["forgotten"], data=rest, progress=False)
    assert found.scale > 0
    updated = ssse.baselines.gradient_ascent(sample.model, None, sample.loss, splits["forgotten"], scale=1e-4)
    old, new = (ModelView(model).theta() for model in (sample.model, updated.model))
    assert torch.equal(updated.step, new - old)
