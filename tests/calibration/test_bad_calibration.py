"""What calibration refuses; what becomes of an ε that it stored, and which requests that ε is not for."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ssse
from ssse.calibration.search import FURTHEST
from ssse.curvature.curvature import Calibrated
from ssse.errors import InvalidData, InvalidSetting
from ssse.system.store import _digest_manifest
from tests.calibration.test_search import along_the_step, fitted
from tests.support import dense, problems
from tests.support.calibration_problems import DECAY, SEARCHES, digits, put, small
from tests.support.refusals import refused

UPDATES = list(itertools.product([True, False], [False, True]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"none was given: retrained needs retrained=.*; attack_parity needs held_out=.*; loss_search needs data="),
        ({}, r"loss_search needs data=, training data; line_search needs data=, training data\.$"),
        (
            {"method": "grid"},
            r"method must be 'auto' or one of retrained, attack_parity, loss_search, line_search, not 'grid'",
        ),
        ({"method": "retrained", "data": []}, r"method='retrained' needs retrained=, a model retrained without"),
        ({"method": "attack_parity"}, r"method='attack_parity' needs held_out=.* or whole_class=True"),
        ({"method": "line_search", "whole_class": True}, r"method='line_search' needs data="),
        ({"method": "loss_search", "whole_class": True}, r"method='loss_search' needs data="),
        ({"whole_class": True, "dampings": [1e-2]}, r"λ can be compared by γ, δ or the KL only, .*; attack_parity"),
        ({"data": [], "dampings": 1e-2}, r"λ can be compared by γ, δ or the KL only, .* retrained=; loss_search knows"),
        ({"data": [], "dampings": [1e-2], "method": "line_search"}, r"λ can be compared by γ, δ or the KL only"),
        ({"data": [], "dampings": None}, r"dampings must be a number or several, for instance .* got None"),
        ({"data": [], "scales": "all"}, r"scales must be a number or several, for instance .* got 'all'"),
        ({"whole_class": True, "scales": []}, "scales must be positive, finite and rising"),
        ({"data": []}, "data for the line search is empty, or holds the forgotten samples only"),
        ({"data": [], "method": "line_search"}, "data for the line search is empty, or holds the forgotten"),
        ({"whole_class": True, "criterion": "delta"}, r"criterion must be one of ratio, divergence, not 'delta'"),
        ({"data": [], "criterion": ""}, r"criterion must be one of ratio, divergence, not ''"),
    ],
)
def test_what_cannot_be_asked(options, message):
    half = small()
    with refused((InvalidSetting, InvalidData), message, half.model):  # type: ignore[arg-type]
        half.calibrate(**options)


def test_more_that_is_refused():
    half = small()
    for method in SEARCHES:
        with refused(InvalidData, "line search is empty, or holds the forgotten samples only", half.model):
            half.calibrate(data=half.forget, method=method)
    with refused(InvalidSetting, "criterion must be one of ratio, divergence, not 'KL'", half.model, half.retrained):
        half.calibrate(retrained=half.retrained, criterion="KL")
    with refused(InvalidSetting, r"damping \(λ\) must be positive", half.model, half.retrained):
        half.calibrate(retrained=half.retrained, dampings=[1e-2, 0.0])
    other = put(copy.deepcopy(half.model), torch.zeros(12, dtype=torch.float64))
    with refused(ssse.SSSEError, "parameter values are not those the curvature was fitted at", other):
        ssse.calibrate(other, half.curvature, half.loss, half.forget, retrained=half.retrained, progress=False)
    dropping = DataLoader(TensorDataset(*half.forget[0]), batch_size=4, drop_last=True)
    for options in (
        {"forget": dropping, "whole_class": True},
        {"data": dropping},
        {"data": dropping, "method": "line_search"},
    ):
        with refused(InvalidData, "drop_last=True", half.model):
            half.calibrate(**options)


class Augmented(Dataset):
    """Another input every time it is read."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y, self.reads = x, y, itertools.count()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 1e-3 * next(self.reads), self.y[index]


def test_augmented_samples_cannot_be_found_again():
    half = small()
    loader = DataLoader(Augmented(half.sample.x, half.sample.y), batch_size=10)
    for options in (
        {"forget": loader, "retrained": half.retrained},
        {"data": loader},
        {"data": loader, "method": "line_search"},
    ):
        with refused(InvalidData, "random augmentation", half.model):
            half.calibrate(**options)


@pytest.mark.parametrize("method", SEARCHES)
def test_a_loss_that_bends_downwards_is_refused(method):
    sample = problems.linear("mse")

    def concave(z: Tensor, y: Tensor) -> Tensor:
        return -((z - y) ** 2).sum()

    curvature = ssse.Curvature.fit(sample.model, concave, sample.data, damping=1e-2, rows="empirical", progress=False)
    messages = {
        "line_search": r"has curvature -\d.* pull with \d.*both must be positive .* not near a minimum",
        "loss_search": rf"still falls at ε = {FURTHEST:.3g} along this step; there is no minimum to find\. Retrain",
    }
    with refused(ssse.Undecided, messages[method]):
        ssse.calibrate(
            sample.model, curvature, concave, sample.part(slice(0, 4)), data=sample.data, method=method, progress=False
        )


def test_a_loss_that_falls_for_ever_is_refused():
    """Without the one class, what stays is all of the other: the further away, the better, for there is no decay."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + 0.1 * torch.randn(30, 2, generator=generator, dtype=torch.float64)
    sample = problems.Sample("two", nn.Linear(2, 2).double().eval(), "cross_entropy", x, torch.arange(30) % 2)
    put(sample.model, torch.zeros(6, dtype=torch.float64))
    settings = {"damping": 1e-2, "rows": "expected", "progress": False}
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, **settings)
    forget = sample.part(sample.y == 0)
    bent = ssse.calibrate(
        sample.model, curvature, sample.loss, forget, data=sample.data, method="line_search", progress=False
    )
    message = rf"still falls at ε = {re.escape(f'{FURTHEST * bent.scale:.3g}')} along this step; there is no minimum to"
    with refused(ssse.Undecided, message, sample.model):
        ssse.calibrate(sample.model, curvature, sample.loss, forget, data=sample.data, progress=False)


def test_the_loss_need_not_bend_upwards_at_zero():
    """φ(ε) = −aε − bε² + cε⁴ along the step: quadratically there is no minimum, the loss itself has one."""
    whole = small(share=1.0)

    class Curved:
        direction = torch.zeros(1)

        def second_derivative(self, _: Any) -> float:
            return -2.0

        def derivative(self, _: Any, scale: float = 0.0) -> float:
            return -2 * scale + 4 * scale**3

    found = along_the_step(whole, whole.sample.data)
    found = replace(found, path=Curved(), retained=found.retained[:1], count=1, pull=3.0, remaining=1)  # type: ignore[arg-type]
    scale, reason = found.by_loss()
    assert 4 * scale**3 - 2 * scale - 3 == pytest.approx(0, abs=1e-5)
    assert "at θ* it does not bend upwards" in reason
    with pytest.raises(ssse.Undecided, match=r"curvature -2 and .* pull with 3; both must be positive"):
        found.by_curvature()
    with pytest.raises(ssse.Undecided, match=r"pull with -1, which must be positive") as caught:
        replace(found, pull=-1.0).by_loss()
    assert caught.value.scan is None


@pytest.mark.parametrize("method", SEARCHES)
def test_a_slope_that_s_does_not_give_alone_is_spoken_of(method):
    """The rule is that of the diagnostics; with the residual the slope is the true one."""
    sample, forget = problems.linear("cross_entropy"), slice(0, 6)
    curvature = fitted(sample, rows="expected", damping=1e-2)

    def reason(**options: Any) -> str:
        given = {"data": sample.data, "method": method, "progress": False, **options}
        return ssse.calibrate(sample.model, curvature, sample.loss, sample.part(forget), **given).reason

    gradient = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y)
    theta, part = dense.theta(sample.model), sample.part(forget)[0]
    ratio = (gradient + len(sample.x) * DECAY * theta).norm() / (
        dense.gradient(sample.model, dense.LOSSES[sample.loss], *part) + 6 * DECAY * theta
    ).norm()
    assert ratio > 0.5
    assert f"; θ* is not stationary: n‖∇L‖ is {float(ratio):.2g} times g_S" in reason()
    assert "stationary" not in reason(residual=True)
    half = small()
    assert "stationary" not in half.calibrate(data=half.sample.data, method=method).reason


@pytest.mark.parametrize("method", SEARCHES)
def test_broken_labels_are_no_regression(method):
    half = small()
    held_out = [(half.sample.x, half.sample.y + 7)]
    with refused(InvalidData, r"Labels must lie in 0 … 2.*found 7 … 9", half.model):
        half.calibrate(data=half.sample.data, held_out=held_out, method=method)


# ------------------------------------------------------------------------------------------ an ε that is stored


def test_the_stored_scale_is_used_and_spoken_of(tmp_path):
    on = digits()
    found, forget = on.calibrate("whole"), on.forget["whole"]
    calibrated = found.curvature
    source = f"by a model retrained without {len(forget[0][1])} samples"
    stored = Calibrated(found.scale, source, leave_out=True, residual=False)
    assert calibrated.calibrated == stored
    erasure = ssse.erase(on.model, calibrated, "cross_entropy", forget)
    assert torch.equal(dense.theta(erasure.model), dense.theta(on.model) + found.scale * erasure.direction)
    assert erasure.diagnostics.scale == found.scale
    assert any(f"The scale is {found.scale:.3g} ({source})" in line for line in erasure.diagnostics.reasons)
    explicit = ssse.erase(on.model, calibrated, "cross_entropy", forget, scale=0.5)
    assert explicit.diagnostics.scale == 0.5
    assert not any(source in line for line in explicit.diagnostics.reasons)
    calibrated.save(tmp_path / "calibrated")
    loaded = ssse.Curvature.load(tmp_path / "calibrated")
    assert (loaded.scale, loaded.calibrated) == (found.scale, stored)
    again = ssse.erase(on.model, loaded, "cross_entropy", forget)
    assert torch.equal(dense.theta(again.model), dense.theta(erasure.model))
    manifest = json.loads((tmp_path / "calibrated" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["calibrated"] == asdict(stored)  # and nothing of the curve


def test_what_keeps_the_scale_and_what_drops_it():
    half = small()
    calibrated = half.calibrate(retrained=half.retrained).curvature
    assert calibrated.scale is not None
    for policy in ("rebase", "joint"):
        after = half.erase(calibrated, policy=policy).curvature
        assert (after.scale, after.calibrated) == (calibrated.scale, calibrated.calibrated)
    assert calibrated.to("cpu").calibrated == calibrated.calibrated
    dropped = [calibrated.with_damping(0.1), ssse.Curvature.merge([calibrated, calibrated], n=300)]
    assert [(c.scale, c.calibrated) for c in dropped] == [(None, None)] * 2


def test_a_curvature_stored_before_scales_had_a_kind_of_update(tmp_path):
    """Its ε is not used, for the update that it was measured for is not known."""
    half = small()
    saved = half.calibrate(retrained=half.retrained, leave_out=False, residual=True).curvature
    saved.save(tmp_path / "now")
    loaded = ssse.Curvature.load(tmp_path / "now")
    assert loaded.calibrated == saved.calibrated
    assert loaded.calibrated is not None
    assert (loaded.calibrated.leave_out, loaded.calibrated.residual) == (False, True)
    manifest = json.loads((tmp_path / "now" / "manifest.json").read_text(encoding="utf-8"))
    del manifest["calibrated"]
    for name, more in (("first", {}), ("second", {"scale": 1.3, "scale_source": "by a line search on 25 samples"})):
        old = shutil.copytree(tmp_path / "now", tmp_path / name)
        body = manifest | more
        body["digest"] = _digest_manifest(body)
        (old / "manifest.json").write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")
        found = ssse.Curvature.load(old)
        assert (found.scale, found.calibrated) == (None, None)
        assert half.erase(found).diagnostics.scale == 1


@pytest.mark.parametrize(("leave_out", "residual"), UPDATES)
def test_a_stored_scale_is_of_one_kind_of_update(leave_out, residual):
    """Each of the four kinds is measured, and asked for by each of the four."""
    half = small()
    measured = half.calibrate(data=half.sample.data, leave_out=leave_out, residual=residual)
    stored, start = measured.curvature, dense.theta(half.model)
    for other in UPDATES:
        asked = dict(zip(("leave_out", "residual"), other, strict=True))
        if other == (leave_out, residual):
            assert half.erase(stored, **asked).diagnostics.scale == measured.scale
            continue
        message = (
            f"The scale {measured.scale:.3g} that is stored with this curvature was measured for leave_out={leave_out}"
            f", residual={residual}, and this request has leave_out={other[0]}, residual={other[1]}. Use the same, or "
            "pass a scale."
        )
        with refused(InvalidSetting, f"^{re.escape(message)}$", half.model):
            half.erase(stored, **asked)
        explicit = half.erase(stored, scale=0.5, **asked)
        assert explicit.diagnostics.scale == 0.5
        assert torch.equal(dense.theta(explicit.model), start + 0.5 * explicit.direction)
        again = half.calibrate(stored, data=half.sample.data, **asked)  # to measure anew is no request
        assert again.curvature.calibrated != stored.calibrated
        assert half.erase(again.curvature, **asked).diagnostics.scale == again.scale


def test_a_scale_given_by_hand_is_of_the_default_update():
    half = small()
    given = half.curvature.with_scale(0.7, "by hand")
    assert half.erase(given).diagnostics.scale == 0.7
    with refused(InvalidSetting, "was measured for leave_out=True, residual=False, and this request has", half.model):
        half.erase(given, leave_out=False)
    other = half.curvature.with_scale(0.7, "by hand", leave_out=False, residual=True)
    assert half.erase(other, leave_out=False, residual=True).diagnostics.scale == 0.7
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidSetting, match=r"scale \(ε\) must be a positive number"):
            half.curvature.with_scale(scale, "by hand")


def test_a_stored_scale_after_a_request_is_of_the_same_update():
    half = small()
    stored = half.calibrate(data=half.sample.data, leave_out=False).curvature
    one, two = (half.sample.part(places) for places in (half.s[:10], half.s[10:]))
    first = ssse.erase(half.model, stored, half.loss, one, leave_out=False)
    with refused(InvalidSetting, r"measured for leave_out=False, .* this request has leave_out=True", first.model):
        ssse.erase(first.model, first.curvature, half.loss, two)
    second = ssse.erase(first.model, first.curvature, half.loss, two, leave_out=False)
    assert second.diagnostics.scale == stored.scale
