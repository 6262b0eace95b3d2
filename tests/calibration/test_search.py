"""The searches along the step against dense truths: the Hessian written out, and the loss itself by plain passes."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.calibration import search
from ssse.calibration.search import LossAlongStep, loss_along_step
from ssse.evaluation.step_path import StepPath
from ssse.problem.labels import label_values
from ssse.problem.problem import Problem
from tests.support import dense, problems
from tests.support.calibration_problems import DECAY, SCALES, SEARCHES, Small, along, minimiser, put, small


def poisson(z: Tensor, y: Tensor) -> Tensor:
    return (z.exp() - y.abs() * z).sum()


# ------------------------------------------------------------------------- by curvature: the quadratic model


def hessian(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    """Σ∇²ℓ, dense."""
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def total(theta: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return dense.LOSSES[loss](torch.func.functional_call(model, named, (x,)), y)

    return torch.autograd.functional.hessian(total, dense.theta(model))  # type: ignore[return-value]


def quadratic(
    sample: problems.Sample, u: Tensor, gone: Tensor | slice, seen: Tensor | slice, n: int, extra: Tensor | None = None
) -> float:
    """The minimum along u of the quadratic model of L₋S, written out: g·u / ((n−k) uᵀ(H/m + wI)u)."""
    x, y, theta = sample.x[gone], sample.y[gone], dense.theta(sample.model)
    g = dense.gradient(sample.model, dense.LOSSES[sample.loss], x, y) + len(x) * DECAY * theta
    g = g if extra is None else g - extra
    h = hessian(sample.model, sample.loss, sample.x[seen], sample.y[seen]) / len(sample.x[seen])
    h = h + DECAY * torch.eye(len(theta), dtype=theta.dtype)
    return float(g @ u / ((n - len(x)) * (u @ h @ u)))


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
def test_the_newton_step_has_scale_one(loss):
    """Exactly where λ = w, for then M₋S is (n−k)∇²L₋S and the step u = M₋S⁻¹g_S is Newton's.

    With (n−k)λ = nw the step has kw too much damping, and ε makes up for that along u: 1/(1 − kw‖u‖²/g·u).
    """
    half = small(loss)
    n, k, data = 150, 25, half.sample.data
    exact = half.calibrate(data=data, method="line_search")
    assert exact.scale == pytest.approx(1.0, abs=1e-10)
    assert exact.method == "line_search"
    more = half.curvature.with_damping(DECAY * n / (n - k))
    damped, u = half.calibrate(more, data=data, method="line_search"), half.erase(more).direction
    theta = dense.theta(half.model)
    g = dense.gradient(half.model, dense.LOSSES[loss], *half.forget[0]) + k * DECAY * theta
    assert damped.scale == pytest.approx(1 / (1 - k * DECAY * float(u @ u / (g @ u))), rel=1e-10)
    assert damped.scale > 1 + 1e-4


def test_it_is_the_minimum_of_the_leave_k_out_loss_where_that_is_quadratic():
    """Squared error at a minimum θ*: L₋S(θ* + εu) itself, minimised by golden section, without any derivative."""
    half = Small("mse", 0.5, {"rows": "empirical"})
    x, y, theta = half.sample.x[half.rest], half.sample.y[half.rest], dense.theta(half.model)
    found = half.calibrate(data=half.sample.data, method="line_search")
    u = half.erase(half.curvature).direction

    def left(scale: float) -> float:
        model = put(copy.deepcopy(half.model), theta + scale * u)
        with torch.no_grad():
            moved = theta + scale * u
            return float(dense.LOSSES["mse"](model(x), y) / len(x) + DECAY / 2 * moved @ moved)

    low, high = 0.2 * found.scale, 5 * found.scale
    for _ in range(60):
        a, b = high - 0.618 * (high - low), low + 0.618 * (high - low)
        low, high = (low, b) if left(a) < left(b) else (a, high)
    assert found.scale == pytest.approx(low, rel=1e-5)
    assert abs(found.scale - 1) > 0.1


NETWORK = problems.mlp(n=40)
OTHERS = [
    (problems.linear("cross_entropy"), {"rows": "empirical"}, {}),
    (problems.linear("binary_cross_entropy"), {"rows": "sampled"}, {"leave_out": False}),
    (problems.linear("cross_entropy"), {"rows": "expected", "blocks": "output"}, {"leave_out": False}),
    (NETWORK, {"rows": "empirical"}, {}),
    (NETWORK, {"rows": "expected", "structure": "diagonal", "blocks": "auto"}, {}),
]


@pytest.mark.parametrize(("sample", "fitting", "erasing"), OTHERS, ids=lambda value: str(getattr(value, "name", value)))
@pytest.mark.parametrize("residual", [False, True])
def test_any_step_gets_the_minimum_of_the_dense_quadratic_model(sample, fitting, erasing, residual):
    gone, rest = slice(3, 9), torch.tensor([*range(3), *range(9, 40)])
    settings = {"damping": 1e-2, "weight_decay": DECAY, "structure": "dense", "blocks": "one", "progress": False}
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, **(settings | fitting))
    options = {**erasing, "residual": residual}
    u = ssse.erase(sample.model, curvature, sample.loss, sample.part(gone), **options, override=ssse.BOUNDS).direction
    slope = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y)
    extra = slope + 40 * DECAY * dense.theta(sample.model) if residual else None
    wanted = quadratic(sample, u, gone, rest, 40, extra)

    def found(data: Any) -> ssse.Calibration:
        forget = sample.part(gone)
        given = {"data": data, "method": "line_search", "progress": False}
        return ssse.calibrate(sample.model, curvature, sample.loss, forget, **given, **options)

    whole = found(sample.data)
    assert whole.scale == pytest.approx(wanted, rel=1e-9)
    assert found(sample.part(rest)).scale == pytest.approx(whole.scale, rel=1e-12)  # S in the data or not
    cut = [(sample.x[i : i + 7], sample.y[i : i + 7]) for i in range(0, 40, 7)]
    assert found(cut).scale == pytest.approx(whole.scale, rel=1e-12)
    assert found(iter(cut)).scale == pytest.approx(whole.scale, rel=1e-12)
    some = found(sample.part(slice(0, 20)))
    seen = torch.tensor([*range(3), *range(9, 20)])
    assert some.scale == pytest.approx(quadratic(sample, u, gone, seen, 40, extra), rel=1e-9)
    assert "measured on 14 samples that stay" in some.reason
    assert whole.scan is not None
    assert whole.scale in whole.scan.scales  # the curve has the chosen ε in it
    assert whole.curvature.scale == whole.scale


def test_a_sample_is_taken_evenly_from_sorted_data(monkeypatch):
    """The first samples of sorted data are all of one class."""
    half = small()
    monkeypatch.setattr(search, "SAMPLE", 40)
    order = half.sample.y.argsort(stable=True)
    ordered = [(half.sample.x[part], half.sample.y[part]) for part in order.split(11)]
    u = half.erase(half.curvature).direction
    kept = [place for place in order[::4].tolist() if half.rest[place]]  # 150 samples, 40 wanted: every fourth
    wanted = quadratic(half.sample, u, half.s, torch.tensor(kept), 150)
    found = half.calibrate(data=ordered, method="line_search")
    assert found.scale == pytest.approx(wanted, rel=1e-9)
    assert f"measured on {len(kept)} samples" in found.reason


class Stream:
    """Batches without a length."""

    def __init__(self, batches: list[Any]):
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


@pytest.mark.parametrize("size", [1, 11, 50, 150])
@pytest.mark.parametrize("wrap", [Stream, iter])
def test_data_without_a_length_is_sampled_evenly_too(monkeypatch, size, wrap):
    """Sorted by class: the first 40 are all of one. Every other one goes, twice: every fourth stays, in any cut."""
    half = small()
    monkeypatch.setattr(search, "SAMPLE", 40)
    order = half.sample.y.argsort(stable=True)
    assert len(half.sample.y[order][:40].unique()) == 1
    ordered = [(half.sample.x[part], half.sample.y[part]) for part in order.split(size)]
    kept = torch.tensor([place for place in order[::4].tolist() if half.rest[place]])
    found = along_the_step(half, wrap(ordered))
    assert torch.equal(torch.cat([label_values(y) for _, y in found.retained]), half.sample.y[kept])
    assert torch.equal(torch.cat([x for x, _ in found.retained]), half.sample.x[kept])  # type: ignore[arg-type]
    assert found.by_loss()[0] == pytest.approx(along_the_step(half, ordered).by_loss()[0], rel=1e-9)


def test_short_data_without_a_length_is_taken_whole():
    half = small()
    assert along_the_step(half, Stream(half.sample.data)).count == 125


# ------------------------------------------------------------------------------- by the loss: the loss itself


@cache
def network() -> problems.Sample:
    """A small network, trained until its gradient vanishes."""
    sample = problems.converged(problems.mlp(n=60, seed=1), DECAY)
    g = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y) / 60
    assert float((g + DECAY * dense.theta(sample.model)).norm()) < 1e-8
    return sample


def stationary(name: str) -> tuple[problems.Sample, Tensor, Tensor]:
    """A problem at its minimum, S, and the places of D∖S."""
    if name == "network":
        return network(), torch.arange(20), torch.arange(20, 60)
    whole = small(name, 1.0)
    return whole.sample, whole.s, whole.rest.nonzero()[:, 0]


def fitted(sample: problems.Sample, loss: Any = None, **options: Any) -> ssse.Curvature:
    settings = {"weight_decay": DECAY, "structure": "dense", "blocks": "one", "progress": False, **options}
    return ssse.Curvature.fit(sample.model, loss or sample.loss, sample.data, **settings)


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("rows", ["expected", "empirical"])
@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy", "mse", "network"])
def test_it_is_the_minimum_of_the_leave_k_out_loss_itself(name, rows, leave_out):
    """At a stationary θ*, with all of D∖S looked at: L₋S(θ* + εu), minimised by plain passes over D∖S."""
    sample, gone, rest = stationary(name)
    curvature, forget = fitted(sample, rows=rows), sample.part(gone)
    u = ssse.erase(sample.model, curvature, sample.loss, forget, scale=1e-3, leave_out=leave_out).direction
    looked = loss_along_step(sample.model, curvature, sample.loss, forget, u, sample.data, residual=False)
    (scale, reason), (second_order, _) = looked.by_loss(), looked.by_curvature()
    left = along(sample.model, dense.LOSSES[sample.loss], *sample.part(rest)[0], u)
    assert scale == pytest.approx(minimiser(left, 5.0), rel=1e-6)
    assert f"to second order it would be at {second_order:.3g}" in reason
    assert f"measured on {len(rest)} samples that stay" in reason
    if name == "mse":
        assert scale == pytest.approx(second_order, rel=1e-9)
    else:
        assert abs(scale / second_order - 1) > 0.03
    if (name, rows) == ("network", "expected"):
        return  # calibrate looks first whether ε = 1 does harm
    for method, wanted in zip(SEARCHES, (scale, second_order), strict=True):
        given = {"data": sample.data, "leave_out": leave_out, "method": method, "progress": False}
        assert ssse.calibrate(sample.model, curvature, sample.loss, forget, **given).scale == pytest.approx(wanted)


@pytest.mark.parametrize(("sample", "fitting", "erasing"), OTHERS, ids=lambda value: str(getattr(value, "name", value)))
def test_with_the_residual_the_model_need_not_be_at_a_minimum(sample, fitting, erasing):
    gone, rest = slice(3, 9), torch.tensor([*range(3), *range(9, 40)])
    curvature, options = fitted(sample, damping=1e-2, **fitting), {**erasing, "residual": True}
    u = ssse.erase(sample.model, curvature, sample.loss, sample.part(gone), **options, override=ssse.BOUNDS).direction
    found = ssse.calibrate(
        sample.model, curvature, sample.loss, sample.part(gone), data=sample.data, progress=False, **options
    )
    assert found.method == "loss_search"
    left = along(sample.model, dense.LOSSES[sample.loss], sample.x[rest], sample.y[rest], u)
    assert found.scale == pytest.approx(minimiser(left, 5.0), rel=1e-6)


def along_the_step(whole: Small, data: Any, times: float = 1.0) -> LossAlongStep:
    u = whole.erase(whole.curvature).direction
    return loss_along_step(whole.model, whole.curvature, whole.loss, whole.forget, times * u, data, residual=False)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_a_part_of_the_data_bends_the_loss_and_does_not_tilt_it(loss):
    """The part's own slope at zero is noise; that of S, −g_S·u/(n−k), is exact whatever else is looked at."""
    whole = small(loss, 1.0)
    part = whole.sample.part(whole.rest.nonzero()[:, 0][::5])
    theta, u, plain = dense.theta(whole.model), whole.erase(whole.curvature).direction, dense.LOSSES[loss]
    g = dense.gradient(whole.model, plain, *whole.forget[0]) + 50 * DECAY * theta
    tilt = dense.gradient(whole.model, plain, *part[0]) / 20 + DECAY * theta
    exact = float(g @ u) / 100
    found = [along_the_step(whole, data) for data in (whole.sample.data, part)]
    assert found[0].pull == found[1].pull
    assert found[1].pull / found[1].remaining == pytest.approx(exact, rel=1e-12)
    measured = along(whole.model, plain, *part[0], u)
    wanted = minimiser(lambda scale: measured(scale) - scale * (float(tilt @ u) + exact), 5.0)
    scale, reason = found[1].by_loss()
    assert scale == pytest.approx(wanted, rel=1e-6)
    assert "measured on 20 samples that stay" in reason
    assert abs(minimiser(measured, 5.0) / wanted - 1) > 0.02
    if loss == "mse":
        assert scale == pytest.approx(found[1].by_curvature()[0], rel=1e-9)


def test_the_length_of_the_step_does_not_matter():
    whole = small(share=1.0)
    scale, _ = along_the_step(whole, whole.sample.data).by_loss()
    for times in (1e-9, 1e9):
        assert times * along_the_step(whole, whole.sample.data, times).by_loss()[0] == pytest.approx(scale, rel=1e-6)


def test_an_overflow_on_the_way_is_too_far():
    """Rare counts, in float32: at the ε of the quadratic model the rates overflow, and their gradient is NaN."""
    sample = problems.linear("mse")
    sample.x.mul_(10)
    put(sample.model, torch.cat([dense.theta(sample.model)[:15] / 10, dense.theta(sample.model)[15:] - 8]))
    found = {}
    for dtype in (torch.float64, torch.float32):
        model = copy.deepcopy(sample.model).to(dtype)
        cast = replace(sample, model=model, x=sample.x.to(dtype), y=sample.y.to(dtype))
        curvature, forget = fitted(cast, poisson, rows="empirical", damping=1e-2), cast.part(slice(0, 20))
        u = ssse.erase(cast.model, curvature, poisson, forget, scale=1e-9, residual=True, override=["share"]).direction
        found[dtype] = loss_along_step(cast.model, curvature, poisson, forget, u, cast.data, residual=True)
    single = found[torch.float32]
    assert np.isnan(single.path.derivative(single.retained[0], single.by_curvature()[0]))
    u = found[torch.float64].path.direction
    wanted = minimiser(along(sample.model, poisson, sample.x[20:], sample.y[20:], u), 5.0)
    assert found[torch.float64].by_loss()[0] == pytest.approx(wanted, rel=1e-6)
    assert single.by_loss()[0] == pytest.approx(wanted, rel=1e-3)


def test_a_dozen_passes_are_enough(monkeypatch):
    whole, seen = small(share=1.0), []
    plain = StepPath.derivative
    monkeypatch.setattr(StepPath, "derivative", lambda self, *args: seen.append(args[1:]) or plain(self, *args))
    found = along_the_step(whole, whole.sample.data)
    assert seen == [()]  # S
    found.by_loss()
    assert len(seen) <= 1 + 12


@pytest.mark.parametrize("sample", [NETWORK, problems.linear("binary_cross_entropy")], ids=lambda sample: sample.name)
def test_the_slope_at_any_scale(sample):
    theta = dense.theta(sample.model)
    u = torch.randn(theta.shape, generator=torch.Generator().manual_seed(3), dtype=theta.dtype)
    path = StepPath(Problem(sample.model, sample.loss, "all", sample.data[0]), u)
    for scale in (0.0, 0.7, -2.0):
        moved = put(copy.deepcopy(sample.model), theta + scale * u)
        wanted = float(dense.gradient(moved, dense.LOSSES[sample.loss], sample.x, sample.y) @ u)
        assert path.derivative((sample.x, sample.y), scale) == pytest.approx(wanted, rel=1e-12)
    assert path.derivative((sample.x, sample.y)) == path.derivative((sample.x, sample.y), 0.0)


# --------------------------------------------------------------------------------- both: long steps, streams, parts


@pytest.mark.parametrize("method", SEARCHES)
def test_a_step_too_long_to_take_at_scale_one(method):
    sample = problems.linear("mse")

    forget = sample.part(slice(0, 30))
    curvature = ssse.Curvature.fit(sample.model, poisson, sample.data, damping=1e-4, rows="empirical", progress=False)
    with pytest.raises(ssse.Refused, match="loss on the forgotten samples is NaN or infinite"):
        ssse.erase(sample.model, curvature, poisson, forget)
    found = ssse.calibrate(sample.model, curvature, poisson, forget, data=sample.data, method=method, progress=False)
    assert 1e-5 < found.scale < 1e-2
    ssse.erase(sample.model, found.curvature, poisson, forget, override=["share"])


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("method", SEARCHES)
def test_joint_streams_start_from_their_first_model(leave_out, residual, method):
    sample, options = problems.linear("cross_entropy"), {"leave_out": leave_out, "residual": residual}
    settings = {"damping": 1e-2, "weight_decay": DECAY, "structure": "dense", "blocks": "one", "progress": False}
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, rows="empirical", **settings)
    one, two, both = sample.part(slice(0, 3)), sample.part(slice(3, 9)), sample.part(slice(0, 9))
    first = ssse.erase(sample.model, curvature, sample.loss, one, policy="joint", scale=0.4, **options)
    rest = sample.part(slice(9, None))

    def found(model: nn.Module, curvature: ssse.Curvature, forget: Any, **more: Any) -> ssse.Calibration:
        more |= {"data": rest, "method": method, "scales": SCALES, "progress": False}
        return ssse.calibrate(model, curvature, sample.loss, forget, **options, **more)

    stream = found(first.model, first.curvature, two)
    assert stream.method == method
    assert stream.scale == pytest.approx(found(sample.model, curvature, both).scale, rel=1e-9)
    erased = ssse.erase(
        first.model, stream.curvature, sample.loss, two, policy="joint", **options, override=ssse.BOUNDS
    )
    wanted = dense.theta(sample.model) + stream.scale * erased.direction
    assert float((dense.theta(erased.model) - wanted).norm()) < 1e-14
    together = ssse.erase(
        sample.model, curvature, sample.loss, both, scale=stream.scale, **options, override=ssse.BOUNDS
    )
    assert float((dense.theta(erased.model) - dense.theta(together.model)).norm()) < 1e-9
    seen = ssse.scan(
        sample.model, together.direction, sample.loss, {"forgotten": two}, scales=sorted({*SCALES, stream.scale})
    )
    assert stream.scan is not None
    np.testing.assert_array_equal(stream.scan.accuracy["forgotten"], seen.accuracy["forgotten"])


@pytest.mark.parametrize("method", SEARCHES)
def test_the_head_of_a_network(method):
    sample = problems.mlp(n=60, seed=1)
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=DECAY, parameters="head", rows="expected", progress=False
    )
    forget = sample.part(slice(0, 10))
    found = ssse.calibrate(
        sample.model, curvature, sample.loss, forget, data=sample.data, method=method, progress=False
    )
    assert found.scan is not None
    assert found.scan.passes == 10  # linear in θ
    erasure = ssse.erase(sample.model, found.curvature, sample.loss, forget, override=ssse.BOUNDS)
    before, after = dense.theta(sample.model), dense.theta(erasure.model)
    assert torch.equal(after[30:], before[30:] + found.scale * erasure.direction)
    assert torch.equal(after[:30], before[:30])


# ------------------------------------------------------------------------------- rows whose own scale is 1


def rises(model: nn.Module, loss: str, u: Tensor, x: Tensor, y: Tensor) -> float:
    """Of the mean loss at ε = 1, by plain passes."""
    moved = put(copy.deepcopy(model), dense.theta(model) + u)
    with torch.no_grad():
        return float(dense.LOSSES[loss](moved(x), y) - dense.LOSSES[loss](model(x), y)) / len(y)


@cache
def separated() -> problems.Sample:
    """A network that tells three clouds apart, trained until its gradient vanishes."""
    sample = problems.mlp(n=90, seed=2)
    sample.y = torch.arange(90) % 3
    sample.x = sample.x + 2 * torch.eye(4, dtype=torch.float64)[sample.y]
    return problems.converged(sample, DECAY)


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("rows", ["expected", "margin"])
def test_a_network_stays_with_the_scale_of_its_rows_where_that_does_no_harm(rows, method):
    sample, gone = separated(), torch.arange(3)
    curvature, forget = fitted(sample, rows=rows), sample.part(gone)
    u = ssse.erase(sample.model, curvature, sample.loss, forget).direction
    on_s, stays = (rises(sample.model, sample.loss, u, *sample.part(part)[0]) for part in (gone, torch.arange(3, 90)))
    assert stays < search.HARM * on_s
    given = {"data": sample.data, "method": method, "progress": False}
    with pytest.raises(ssse.Undecided, match=f"With {rows} rows ε = 1 is the step's own scale") as caught:
        ssse.calibrate(sample.model, curvature, sample.loss, forget, **given)
    assert f"rises by {stays:.2g} on what stays and by {on_s:.2g} on S" in str(caught.value)
    for free in (fitted(sample, rows="empirical"), fitted(sample, rows=rows, structure="diagonal", blocks="auto")):
        assert ssse.calibrate(sample.model, free, sample.loss, forget, **given).method == method


@pytest.mark.parametrize("rows", ["expected", "margin"])
def test_a_step_that_ruins_the_rest_is_shortened(monkeypatch, rows):
    """A model that is not at its minimum, and hardly any damping: at ε = 1 what stays is lost with S."""
    sample, gone = problems.mlp(n=60), torch.arange(3)
    curvature, forget = fitted(sample, rows=rows, weight_decay=0.0, damping=1e-7), sample.part(gone)
    u = ssse.erase(sample.model, curvature, sample.loss, forget, override=ssse.BOUNDS).direction
    on_s, stays = (rises(sample.model, sample.loss, u, *sample.part(part)[0]) for part in (gone, torch.arange(3, 60)))
    assert stays > 2 * search.HARM * on_s
    given = {"data": sample.data, "method": "loss_search", "progress": False}
    found = ssse.calibrate(sample.model, curvature, sample.loss, forget, **given)
    assert found.scale < 1
    assert f"at ε = 1 the mean loss rises by {stays:.2g} on what stays" in found.reason
    monkeypatch.setattr(search, "ERRORS", 1e6)  # as if that were noise
    with pytest.raises(ssse.Undecided, match="it does no harm here"):
        ssse.calibrate(sample.model, curvature, sample.loss, forget, **given)
