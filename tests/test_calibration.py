"""How ε is chosen: the rules on curves made by hand, the whole on digits, the line search against the dense Hessian."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ssse
from ssse import calibration
from ssse.calibration import by_chance, by_parity, by_ratio
from ssse.curvature.dense import Dense
from ssse.demo import WEIGHT_DECAY, Digits, train
from ssse.errors import InvalidData, InvalidSetting
from ssse.figures import heat_map, scan_figure
from tests import dense, problems
from tests.refusals import NAN, refused, snapshot

DECAY = 2e-2
SCALES = np.geomspace(0.05, 20, 27)

# --------------------------------------------------------------------------------------- curves made by hand


def curve(ratio: Any = None, name: str = "δ", **fields: Any) -> ssse.Scan:
    """A scan with nothing in it but what a rule reads."""
    length = len(next(v for v in (ratio, *fields.values()) if v is not None))
    settings = {"divergence": np.full(length, 0.1), "original_divergence": 1.0, "chance": 0.1}
    arrays = {k: np.asarray(v, float) if isinstance(v, (list, np.ndarray)) else v for k, v in fields.items()}
    return ssse.Scan(
        scales=np.geomspace(0.1, 10, length),
        accuracy={"forgotten": np.full(length, 0.3)},
        counts={"forgotten": 20},
        ratio_name=name,
        ratio=None if ratio is None else np.asarray(ratio, float),
        **{**settings, **arrays},
    )


BASIN = [1.0, 0.9, 0.4, 0.2, 0.1, 0.3, 0.45, 0.48, 0.5]
PLATEAU = [1.0, 0.9, 0.6, 0.3, 0.105, 0.103, 0.1, 0.104, 0.102]


@pytest.mark.parametrize(
    ("ratio", "place"),
    [
        (BASIN, 4),
        ([1.0, 0.5, 0.1, 0.5, 0.4, 0.3, 0.2, 0.3, 0.5], 2),  # one ε wide: δ has such minima, V-shaped
        (PLATEAU, 4),
        ([1.0, 0.9, 0.099, 0.3, 0.105, 0.103, 0.1, 0.104, 0.102], 4),  # a lucky dip before it
        ([1.0, 0.9, 0.105, 0.1, 0.104, 0.103, 0.4, 0.104, 0.102], 3),  # a basin wider than what comes at the end
        ([1.0, 0.9, 0.6, 0.3, 0.2, 0.1, 0.101, NAN, NAN], 5),  # the plateau ends where the outputs overflow
        ([1.0, 0.9, 0.6, 0.3, 0.1, 0.2, 0.3, NAN, NAN], 4),
        ([NAN, 0.9, 0.4, NAN, 0.2, 0.3, 0.45, 0.5, 0.5], 4),
    ],
)
def test_the_best_ratio_or_the_start_of_its_plateau(ratio, place):
    seen = curve(ratio)
    scale, reason = by_ratio(seen)
    assert scale == seen.scales[place]
    assert f"δ = {ratio[place]:.3f}" in reason
    turned = replace(seen, ratio=1 - np.asarray(ratio), ratio_name="γ")
    assert by_ratio(turned)[0] == scale
    assert f"γ = {1 - ratio[place]:.3f}" in by_ratio(turned)[1]


def test_a_plateau_is_named_as_one():
    assert "where its plateau begins (best 0.100)" in by_ratio(curve(PLATEAU))[1]
    assert "the best of 9 values" in by_ratio(curve(BASIN))[1]
    assert "the best of 7 values" in by_ratio(curve([1.0, 0.9, 0.6, 0.3, 0.1, 0.2, 0.3, NAN, NAN]))[1]


def test_the_predictions_decide_between_equal_counts():
    ratio = [1.0, 0.5, 0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5]
    for place in range(2, 6):
        far = [0.9, 0.0, 0.5, 0.5, 0.5, 0.5, 0.4, 0.0, 0.9]  # nearer where δ is worse: does not count
        far[place] = 0.1
        seen = curve(ratio, divergence=far)
        assert by_ratio(seen)[0] == seen.scales[place]


def test_no_choice_is_worse_than_the_best_by_more_than_a_plateau():
    """Seed 0: 300 basins, with noise, in steps of a sample; a third ends in a plateau, a third in overflow."""
    generator, decided = np.random.default_rng(0), 0
    for trial in range(300):
        place, width, depth = generator.integers(1, 29), generator.uniform(1, 8), generator.uniform(0.2, 1)
        ratio = 1 - depth * np.exp(-(((np.arange(30) - place) / width) ** 2)) + 0.03 * generator.standard_normal(30)
        if trial % 3:
            ratio[place + 2 :] = NAN if trial % 3 == 1 else ratio[place] + 0.005
        ratio = np.clip(np.round(ratio * 50) / 50, 0, 1)
        seen = curve(ratio, divergence=generator.uniform(0, 2, 30))
        try:
            scale, _ = by_ratio(seen)
        except ssse.Undecided:
            continue
        decided += 1
        place = int(np.flatnonzero(seen.scales == scale)[0])
        assert ratio[place] <= np.nanmin(ratio) + calibration.PLATEAU
        assert ratio[place] < 0.5
        assert seen.divergence is not None
        assert seen.divergence[place] <= 1.0
    assert 80 < decided < 200


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (curve([0.5] * 9), r"δ is 0\.5 at every ε: on these samples the retrained model behaves as the original one"),
        (curve([1.0] * 9), r"δ is 1 at every ε: no ε .* nearer to the retrained one .* Use larger scales"),
        (curve([0.0] * 9, "γ"), r"γ is 0 at every ε: no ε .* Use larger scales"),
        (curve([0.5, NAN, 0.5, 0.5, NAN]), r"at every ε: on these samples"),
        (
            curve([1.0, 0.8, 0.6, 0.5, 0.5]),
            r"δ is 0\.5 at best, at ε = 3\.16: no ε on the grid brings the model nearer",
        ),
        (curve([NAN] * 9), r"δ is not finite at any ε .* overflow\. Use smaller scales"),
        (curve(None, "γ", recognised=[1.0, 0.5]), r"γ is not defined: each attribute is the same for all"),
        (curve([0.1, 0.2, 0.3, 0.5, 0.5]), r"δ is best at ε = 0\.1, at the edge of the scales: pass smaller ones"),
        (curve([0.1] * 9), r"δ is best at ε = 0\.1, at the edge of the scales: pass smaller ones"),
        (curve([1.0, 0.8, 0.6, 0.4, 0.2]), r"δ is best at ε = 10, at the edge of the scales: pass larger ones"),
        (curve([1.0, 0.8, 0.4, NAN, NAN]), r"δ is best at ε = 1, at the edge of the scales: pass larger ones"),
        (curve(BASIN, original_divergence=0.05), r"further from the retrained .* \(KL 0\.1, before 0\.05\): too few"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_ratio_that_decides_nothing(seen, message):
    with pytest.raises(ssse.Undecided, match=message) as caught:
        by_ratio(seen)
    assert caught.value.scan is seen


def attacked(*aucs: float, before: float = 0.7, p: float = 1e-4) -> ssse.Scan:
    return curve(attack=list(aucs), original_attack=before, original_p=p)


def test_parity_is_the_first_crossing():
    seen = attacked(0.7, 0.6, 0.5, 0.4, 0.6, NAN)
    scale, reason = by_parity(seen)
    assert scale == seen.scales[2]
    assert reason == "AUC 0.500; before erasing AUC 0.700, p = 0.0001"
    assert by_parity(attacked(0.7, NAN, 0.51, 0.49, 0.2))[0] == curve([0.0] * 5).scales[3]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            attacked(0.5, 0.4, before=0.5),
            r"not clearly tell .* before erasing \(AUC 0\.500, p = 0\.0001\): there is no",
        ),
        (attacked(0.4, 0.4, before=0.3), "there is no signal"),
        (attacked(0.6, 0.4, before=0.62, p=0.002), r"\(AUC 0\.620, p = 0\.002\): there is no signal to choose ε by"),
        (attacked(0.7, 0.6, 0.55, NAN), r"No ε up to 10 brings .* its AUC is 0\.550 at best and 0\.700 before"),
        (attacked(NAN, NAN), "its AUC is not finite at best"),
        (attacked(0.4, 0.3), r"Parity is reached at ε = 0\.1, at the edge of the scales: pass smaller ones"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_an_attack_that_decides_nothing(seen, message):
    with pytest.raises(ssse.Undecided, match=message) as caught:
        by_parity(seen)
    assert caught.value.scan is seen


def test_chance_is_the_first_time_that_nothing_is_recognised():
    seen = curve(recognised=[1.0, 0.4, 0.1, 0.0, 0.3])
    assert by_chance(seen) == (seen.scales[2], "10.0% of S recognised, chance is 10.0%")
    attributes = curve(recognised=[1.0, 0.6, 0.5, 0.0, 0.3], chance=0.5, name="γ")
    assert by_chance(attributes)[0] == seen.scales[2]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (curve([0.5] * 3), "No attribute is common to all of the forgotten samples"),
        (curve(recognised=[1.0, 0.5, 0.2]), r"No ε up to 10 .* still is recognised is 0\.200, chance is 0\.100"),
        (curve(recognised=[1.0, 0.5, NAN]), r"still is recognised is 0\.500, chance"),
        (curve(recognised=[0.0, 0.0, 0.0]), r"Chance is reached at ε = 0\.1, at the edge"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_recognition_that_decides_nothing(seen, message):
    with pytest.raises(ssse.Undecided, match=message):
        by_chance(seen)


# ------------------------------------------------------------------------------------------ a small problem


def newton(sample: problems.Sample) -> problems.Sample:
    """Train a linear model to the minimum of (1/n) Σℓ + (w/2)‖θ‖², from zero, with the dense Hessian."""
    model, loss = sample.model, dense.LOSSES[sample.loss]
    shape = model.weight.shape  # type: ignore[union-attr]

    def objective(theta: Tensor) -> Tensor:
        z = sample.x @ theta[: shape.numel()].view(shape).mT + theta[shape.numel() :]  # type: ignore[operator]
        return loss(z, sample.y) / len(sample.x) + DECAY / 2 * theta @ theta

    theta = torch.zeros_like(dense.theta(model))
    for _ in range(15):
        gradient = torch.autograd.functional.jacobian(objective, theta)
        theta = theta - torch.linalg.solve(torch.autograd.functional.hessian(objective, theta), gradient)
    assert float(torch.autograd.functional.jacobian(objective, theta).norm()) < 1e-12  # type: ignore[union-attr]
    put(model, theta)
    return sample


def put(model: nn.Module, theta: Tensor) -> nn.Module:
    with torch.no_grad():
        nn.utils.vector_to_parameters(theta, model.parameters())
    return model


@dataclass
class Small:
    """Three overlapping blobs, a linear model of them, and what it is without S: all of one blob, or half of it."""

    loss: str
    share: float = 1.0
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        kind = torch.arange(150) % 3
        x = 1.5 * torch.eye(3, dtype=torch.float64)[kind]
        x += torch.randn(x.shape, generator=generator, dtype=torch.float64)
        y = kind
        if self.loss != "cross_entropy":
            y = nn.functional.one_hot(kind, 3).double()
            y[:, 1:] = torch.where(torch.rand(150, 2, generator=generator) < 0.15, 1.0, y[:, 1:])
        self.s = (kind == 0).nonzero()[:, 0][: round(50 * self.share)]
        self.rest = torch.ones(150, dtype=torch.bool)
        self.rest[self.s] = False
        self.sample = newton(problems.Sample("blobs", nn.Linear(3, 3).double().eval(), self.loss, x, y))
        without = problems.Sample("rest", nn.Linear(3, 3).double().eval(), self.loss, x[self.rest], y[self.rest])
        self.model, self.retrained = self.sample.model, newton(without).model
        self.forget = self.sample.part(self.s)
        settings = {"weight_decay": DECAY, "rows": "expected", "structure": "dense", "blocks": "one"}
        self.settings = settings | (self.options or {})
        self.curvature = ssse.Curvature.fit(self.model, self.loss, self.sample.data, progress=False, **self.settings)

    def calibrate(self, curvature: ssse.Curvature | None = None, **options: Any) -> ssse.Calibration:
        options = {"scales": SCALES, "progress": False, "forget": self.forget, **options}
        return ssse.calibrate(self.model, curvature or self.curvature, self.loss, **options)

    def erase(self, curvature: ssse.Curvature, **options: Any) -> ssse.Erasure:
        return ssse.erase(self.model, curvature, self.loss, self.forget, **options)


@pytest.fixture(scope="module")
def whole() -> Small:
    return Small("cross_entropy")


@pytest.fixture(scope="module")
def half() -> Small:
    return Small("cross_entropy", 0.5)


@pytest.fixture(scope="module")
def attributes() -> Small:
    return Small("binary_cross_entropy", 0.5)


def test_attributes_are_judged_by_gamma(attributes):
    found = attributes.calibrate(retrained=attributes.retrained)
    assert found.scan is not None
    assert found.scan.ratio_name == "γ"
    assert found.scan.ratio is not None
    assert found.scan.ratio[found.scan.scales == found.scale] == found.scan.ratio.max()
    assert 0.7 < found.scale < 1.5


def test_the_curvature_is_solved_once_for_each_damping(half, monkeypatch):
    calls: dict[str, int] = {"leave_out": 0, "solve": 0}
    for name in calls:
        plain = getattr(Dense, name)

        def counted(self, *args, name=name, plain=plain, **kwargs):
            calls[name] += 1
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(Dense, name, counted)
    half.calibrate(retrained=half.retrained)
    assert calls == {"leave_out": 1, "solve": 0}
    half.calibrate(retrained=half.retrained, dampings=(1e-2, 2e-2, 5e-2))
    assert calls == {"leave_out": 4, "solve": 0}
    half.calibrate(retrained=half.retrained, leave_out=False)
    assert calls == {"leave_out": 4, "solve": 1}
    half.calibrate(data=half.sample.data)
    assert calls == {"leave_out": 5, "solve": 1}


def test_dampings_are_compared_as_one_would_by_hand(half):
    dampings = [1e-1, 1e-3, 2e-2]  # in no order
    held_out = iter(half.sample.part(half.rest))  # can be read once only
    found = half.calibrate(retrained=half.retrained, dampings=dampings, held_out=held_out)
    assert found.dampings == tuple(dampings)
    assert found.grid is not None
    assert found.grid.shape == (3, len(SCALES))
    alone = [half.calibrate(half.curvature.with_damping(v), retrained=half.retrained) for v in dampings]
    for row, one in zip(found.grid, alone, strict=True):
        assert one.scan is not None
        np.testing.assert_array_equal(row, one.scan.ratio)

    def rank(one: ssse.Calibration) -> tuple[float, float]:
        assert one.scan is not None
        at = int(np.flatnonzero(one.scan.scales == one.scale)[0])
        return float(one.scan.ratio[at]), float(one.scan.divergence[at])  # type: ignore[index]

    best = min(alone, key=rank)
    assert len({rank(one) for one in alone}) == 3
    assert (found.scale, found.damping) == (best.scale, best.damping)
    assert found.grid.min() == rank(best)[0]
    assert found.curvature.damping == found.damping
    assert found.curvature.scale == found.scale


def test_a_damping_that_decides_nothing_is_passed_over(half):
    found = half.calibrate(retrained=half.retrained, dampings=[1e6, 2e-2])
    assert found.damping == pytest.approx(2e-2)
    assert found.reason.endswith("; λ is at the edge of those given")
    assert "edge" not in half.calibrate(retrained=half.retrained, dampings=[1e6, 2e-2, 1e-12]).reason
    assert "edge" not in half.calibrate(retrained=half.retrained, dampings=[2e-2]).reason
    with pytest.raises(ssse.Undecided, match="δ is 1 at every ε"):
        half.calibrate(retrained=half.retrained, dampings=[1e6, 1e7])


def test_chance_and_parity_and_what_is_chosen_when_nothing_is_said(whole, half, attributes):
    chosen = whole.calibrate(whole_class=True)
    assert chosen.method == "attack_parity"
    assert chosen.scan is not None
    rate = chosen.scan.recognised
    assert rate is not None
    assert rate[chosen.scan.scales == chosen.scale] <= 1 / 3
    assert rate[chosen.scan.scales < chosen.scale].min() > 1 / 3
    assert chosen.curvature.scale_source == "by recognition at chance on 50 samples"
    common = attributes.calibrate(whole_class=True, leave_out=False)
    assert common.scan is not None
    assert common.scan.chance == 0.5
    assert common.curvature.scale_source == "by recognition at chance on 25 samples, with leave_out=False"
    evidence = {"retrained": half.retrained, "held_out": half.forget, "data": half.sample.data}
    assert half.calibrate(**evidence).method == "retrained"
    assert half.calibrate(data=half.sample.data).method == "line_search"
    line = half.calibrate(**evidence, method="line_search")
    assert line.method == "line_search"
    assert line.scan is not None
    assert line.scan.ratio is not None  # what was given is also shown
    with pytest.raises(ssse.Undecided, match=r"AUC 0\.500, p = 1\): there is no signal"):
        half.calibrate(held_out=half.forget, data=half.sample.data)


def test_parity_with_held_out_samples_that_were_not_trained_on():
    """Seed 2. More parameters than the samples can bear: S is told from others before, not after."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(600, 60, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 2 * torch.randn(600, generator=generator, dtype=torch.float64) > 0).long()
    sample = newton(problems.Sample("overfit", nn.Linear(60, 2).double().eval(), "cross_entropy", x[:200], y[:200]))
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, weight_decay=DECAY, progress=False)
    held_out = [(x[200:], y[200:])]
    found = ssse.calibrate(
        sample.model, curvature, sample.loss, sample.part(slice(0, 60)), held_out=held_out, progress=False
    )
    assert found.method == "attack_parity"
    assert found.scan is not None
    assert found.scan.attack is not None
    assert found.scan.original_p is not None
    assert found.scan.original_p < calibration.SIGNAL
    at = int(np.flatnonzero(found.scan.scales == found.scale)[0])
    assert found.scan.attack[at] <= 0.5 < found.scan.attack[:at].min()
    assert 0.5 < found.scale < 2
    assert found.curvature.scale_source == "by attack parity on 60 samples"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"none was given: retrained needs retrained=.*; attack_parity needs held_out=.*; line_search needs data="),
        ({"method": "grid"}, r"method must be 'auto' or one of retrained, attack_parity, line_search, not 'grid'"),
        ({"method": "retrained", "data": []}, r"method='retrained' needs retrained=, a model retrained without"),
        ({"method": "attack_parity"}, r"method='attack_parity' needs held_out=.* or whole_class=True"),
        ({"method": "line_search", "whole_class": True}, r"method='line_search' needs data="),
        ({"whole_class": True, "dampings": [1e-2]}, r"λ can be compared by γ or δ only, .* retrained=; attack_parity"),
        ({"data": [], "dampings": [1e-2]}, r"λ can be compared by γ or δ only"),
        ({"whole_class": True, "scales": []}, "scales must be positive, finite and rising"),
        ({"data": []}, "data for the line search is empty, or holds the forgotten samples only"),
    ],
)
def test_what_cannot_be_asked(half, options, message):
    with refused((InvalidSetting, InvalidData), message, half.model):  # type: ignore[arg-type]
        half.calibrate(**options)


def test_more_that_is_refused(half):
    with refused(InvalidData, "line search is empty, or holds the forgotten samples only", half.model):
        half.calibrate(data=half.forget)
    with refused(InvalidSetting, r"damping \(λ\) must be positive", half.model, half.retrained):
        half.calibrate(retrained=half.retrained, dampings=[1e-2, 0.0])
    other = put(copy.deepcopy(half.model), torch.zeros(12, dtype=torch.float64))
    with refused(ssse.SSSEError, "parameter values are not those the curvature was fitted at", other):
        ssse.calibrate(other, half.curvature, half.loss, half.forget, retrained=half.retrained, progress=False)
    dropping = DataLoader(TensorDataset(*half.forget[0]), batch_size=4, drop_last=True)
    for options in ({"forget": dropping, "whole_class": True}, {"data": dropping}):
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


def test_augmented_samples_cannot_be_found_again(half):
    loader = DataLoader(Augmented(half.sample.x, half.sample.y), batch_size=10)
    for options in ({"forget": loader, "retrained": half.retrained}, {"data": loader}):
        with refused(InvalidData, "random augmentation", half.model):
            half.calibrate(**options)


def test_nothing_is_changed_and_nothing_of_the_samples_is_kept(half):
    x, y = half.forget[0][0].clone(), half.forget[0][1].clone()
    held = weakref.ref(x)
    before, state = [snapshot(half.model), snapshot(half.retrained)], torch.get_rng_state()
    found = half.calibrate(forget=[(x, y)], retrained=half.retrained, data=half.sample.data)
    lost = half.calibrate(forget=[(x, y)], data=half.sample.data)
    with pytest.raises(ssse.Undecided) as caught:
        half.calibrate(forget=[(x, y)], retrained=half.model)
    kept = caught.value.scan
    del x, y, caught
    gc.collect()
    assert held() is None
    assert [snapshot(half.model), snapshot(half.retrained)] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert half.curvature.scale is None  # the one given is not touched
    assert found.curvature is not half.curvature
    for scan in (found.scan, lost.scan, kept):
        arrays = [v for v in vars(scan).values() if isinstance(v, np.ndarray)] + list(scan.accuracy.values())  # type: ignore[union-attr]
        assert all(a.shape == scan.scales.shape for a in arrays)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------- the line search


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
    """Exactly where nλ = (n−k)w, for then M₋S = RᵀR + nλI is (n−k)∇²L₋S and the step u = M₋S⁻¹g_S is Newton's.

    With λ = w the step has kw too much damping, and ε makes up for that along u: 1/(1 − kw‖u‖²/g·u).
    """
    small = Small(loss, 0.5)
    n, k, data = 150, 25, small.sample.data
    exact = small.calibrate(small.curvature.with_damping(DECAY * (n - k) / n), data=data)
    assert exact.scale == pytest.approx(1.0, abs=1e-10)
    assert exact.method == "line_search"
    damped, u = small.calibrate(data=data), small.erase(small.curvature).direction
    theta = dense.theta(small.model)
    g = dense.gradient(small.model, dense.LOSSES[loss], *small.forget[0]) + k * DECAY * theta
    assert damped.scale == pytest.approx(1 / (1 - k * DECAY * float(u @ u / (g @ u))), rel=1e-10)
    assert damped.scale > 1 + 1e-4


def test_it_is_the_minimum_of_the_leave_k_out_loss_where_that_is_quadratic():
    """Squared error at a minimum θ*: L₋S(θ* + εu) itself, minimised by golden section, without any derivative."""
    small = Small("mse", 0.5, {"rows": "empirical"})
    x, y, theta = small.sample.x[small.rest], small.sample.y[small.rest], dense.theta(small.model)
    found, u = small.calibrate(data=small.sample.data), small.erase(small.curvature).direction

    def left(scale: float) -> float:
        model = put(copy.deepcopy(small.model), theta + scale * u)
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
    u = ssse.erase(sample.model, curvature, sample.loss, sample.part(gone), **options).direction
    slope = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y)
    extra = slope + 40 * DECAY * dense.theta(sample.model) if residual else None
    wanted = quadratic(sample, u, gone, rest, 40, extra)

    def found(data: Any) -> ssse.Calibration:
        forget = sample.part(gone)
        return ssse.calibrate(sample.model, curvature, sample.loss, forget, data=data, progress=False, **options)

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


def test_a_sample_is_taken_evenly_from_sorted_data(half, monkeypatch):
    """The first samples of sorted data are all of one class."""
    monkeypatch.setattr(calibration, "SAMPLE", 40)
    order = half.sample.y.argsort(stable=True)
    ordered = [(half.sample.x[part], half.sample.y[part]) for part in order.split(11)]
    u = half.erase(half.curvature).direction
    kept = [place for place in order[::4].tolist() if half.rest[place]]  # 150 samples, 40 wanted: every fourth
    wanted = quadratic(half.sample, u, half.s, torch.tensor(kept), 150)
    found = half.calibrate(data=ordered)
    assert found.scale == pytest.approx(wanted, rel=1e-9)
    assert f"measured on {len(kept)} samples" in found.reason
    unknown = half.calibrate(data=iter(ordered))  # an iterator has no length: the first of it
    assert "measured on 40 samples" in unknown.reason


def test_a_loss_that_bends_downwards_is_refused():
    sample = problems.linear("mse")

    def concave(z: Tensor, y: Tensor) -> Tensor:
        return -((z - y) ** 2).sum()

    curvature = ssse.Curvature.fit(sample.model, concave, sample.data, damping=1e-2, rows="empirical", progress=False)
    with refused(InvalidData, r"has curvature -\d.* pull with \d.*both must be positive .* not near a minimum"):
        ssse.calibrate(sample.model, curvature, concave, sample.part(slice(0, 4)), data=sample.data, progress=False)


def test_a_step_too_long_to_take_at_scale_one():
    sample = problems.linear("mse")

    def poisson(z: Tensor, y: Tensor) -> Tensor:
        return (z.exp() - y.abs() * z).sum()

    forget = sample.part(slice(0, 30))
    curvature = ssse.Curvature.fit(sample.model, poisson, sample.data, damping=1e-4, rows="empirical", progress=False)
    with pytest.raises(ssse.Refused, match="loss on the forgotten samples is NaN or infinite"):
        ssse.erase(sample.model, curvature, poisson, forget)
    found = ssse.calibrate(sample.model, curvature, poisson, forget, data=sample.data, progress=False)
    assert 1e-5 < found.scale < 1e-2
    ssse.erase(sample.model, found.curvature, poisson, forget)


def test_regression_has_a_line_search_and_no_curve():
    small = Small("mse", 0.5, {"rows": "empirical"})
    small.sample.y.add_(0.25)  # no longer 0 and 1
    small.curvature = ssse.Curvature.fit(small.model, "mse", small.sample.data, **small.settings)
    found = small.calibrate(forget=small.sample.part(small.s), data=small.sample.data)
    assert found.scan is None
    assert found.scale > 0
    assert json.loads(found.to_json())["curve"] is None
    with pytest.raises(InvalidSetting, match="no curve: these labels are neither classes nor attributes"):
        found.figure()


def test_broken_labels_are_no_regression(half):
    held_out = [(half.sample.x, half.sample.y + 7)]
    with refused(InvalidData, r"Labels must lie in 0 … 2.*found 7 … 9", half.model):
        half.calibrate(data=half.sample.data, held_out=held_out, method="line_search")


# ---------------------------------------------------------------------------- streams, structures, rows, parts


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("residual", [False, True])
def test_joint_streams_start_from_their_first_model(leave_out, residual):
    sample, options = problems.linear("cross_entropy"), {"leave_out": leave_out, "residual": residual}
    settings = {"damping": 1e-2, "weight_decay": DECAY, "structure": "dense", "blocks": "one", "progress": False}
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, rows="empirical", **settings)
    one, two, both = sample.part(slice(0, 3)), sample.part(slice(3, 9)), sample.part(slice(0, 9))
    first = ssse.erase(sample.model, curvature, sample.loss, one, policy="joint", scale=0.4, **options)
    rest = sample.part(slice(9, None))

    def found(model: nn.Module, curvature: ssse.Curvature, forget: Any, **more: Any) -> ssse.Calibration:
        return ssse.calibrate(model, curvature, sample.loss, forget, scales=SCALES, progress=False, **options, **more)

    stream = found(first.model, first.curvature, two, data=rest)
    assert stream.scale == pytest.approx(found(sample.model, curvature, both, data=rest).scale, rel=1e-9)
    erased = ssse.erase(first.model, stream.curvature, sample.loss, two, policy="joint", **options)
    wanted = dense.theta(sample.model) + stream.scale * erased.direction
    assert float((dense.theta(erased.model) - wanted).norm()) < 1e-14
    together = ssse.erase(sample.model, curvature, sample.loss, both, scale=stream.scale, **options)
    assert float((dense.theta(erased.model) - dense.theta(together.model)).norm()) < 1e-9
    seen = ssse.scan(
        sample.model, together.direction, sample.loss, {"forgotten": two}, scales=sorted({*SCALES, stream.scale})
    )
    assert stream.scan is not None
    np.testing.assert_array_equal(stream.scan.accuracy["forgotten"], seen.accuracy["forgotten"])


def test_matrix_free_brings_its_data(half, tmp_path):
    settings = half.settings | {"structure": "matrix_free", "blocks": "auto", "tolerance": 1e-12, "progress": False}
    free = ssse.Curvature.fit(half.model, half.loss, half.sample.data, **settings)
    wanted = half.calibrate(retrained=half.retrained)
    assert half.calibrate(free, retrained=half.retrained).scale == wanted.scale  # it still has its rows
    free.save(tmp_path / "free")
    loaded = ssse.Curvature.load(tmp_path / "free")
    found = half.calibrate(loaded, retrained=half.retrained, data=half.sample.data)
    assert found.scale == wanted.scale
    assert found.method == "retrained"
    lines = [half.calibrate(c, data=half.sample.data).scale for c in (half.curvature, loaded)]
    assert lines[0] == pytest.approx(lines[1], rel=1e-8)
    with refused(InvalidSetting, "pass the training data", half.model):
        half.calibrate(loaded, retrained=half.retrained)


def test_mini_batch_rows_stay_in_the_curvature(whole):
    small = Small("cross_entropy", 0.5, {"rows": "empirical", "rows_per_batch": 5})
    found = small.calibrate(retrained=small.retrained, leave_out=False)
    erasure = small.erase(found.curvature, leave_out=False)
    assert erasure.diagnostics.scale == found.scale
    assert torch.equal(dense.theta(erasure.model), dense.theta(small.model) + found.scale * erasure.direction)
    assert found.curvature.scale_source == "by a model retrained without 25 samples, with leave_out=False"
    with refused(InvalidSetting, "cannot be subtracted", small.model):
        small.calibrate(retrained=small.retrained)


def test_the_head_of_a_network():
    sample = problems.mlp(n=60, seed=1)
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=DECAY, parameters="head", rows="expected", progress=False
    )
    forget = sample.part(slice(0, 10))
    found = ssse.calibrate(sample.model, curvature, sample.loss, forget, data=sample.data, progress=False)
    assert found.scan is not None
    assert found.scan.passes == 10  # linear in θ
    erasure = ssse.erase(sample.model, found.curvature, sample.loss, forget)
    before, after = dense.theta(sample.model), dense.theta(erasure.model)
    assert torch.equal(after[30:], before[30:] + found.scale * erasure.direction)
    assert torch.equal(after[:30], before[:30])


def test_the_residual_is_part_of_the_step_and_of_the_story(half):
    found = half.calibrate(retrained=half.retrained, residual=True)
    assert found.curvature.scale_source == "by a model retrained without 25 samples, with residual=True"


# ------------------------------------------------------------------------------------------ the whole on digits


@dataclass
class OnDigits:
    model: nn.Module
    data: list[tuple[Tensor, Tensor]]
    forget: dict[str, list[tuple[Tensor, Tensor]]]
    retrained: dict[str, nn.Module]
    curvature: ssse.Curvature

    def calibrate(self, part: str, **options: Any) -> ssse.Calibration:
        settings = {"retrained": self.retrained[part], "progress": False, **options}
        return ssse.calibrate(self.model, self.curvature, "cross_entropy", self.forget[part], **settings)


@pytest.fixture(scope="module")
def digits() -> OnDigits:
    """Softmax regression on half of the digits; all of the threes go, or half of them."""
    found = Digits.load()
    x, y = found.x[:700], found.y[:700]
    model, data = train(x, y), [(x, y)]
    threes = (y == 3).nonzero()[:, 0]
    forget, retrained = {}, {}
    for part, gone in (("half", threes[: len(threes) // 2]), ("whole", threes)):
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[gone] = False
        forget[part], retrained[part] = [(x[gone], y[gone])], train(x[rest], y[rest])
    curvature = ssse.Curvature.fit(
        model, "cross_entropy", data, weight_decay=WEIGHT_DECAY, rows="expected", structure="dense", progress=False
    )
    return OnDigits(model, data, forget, retrained, curvature)


def test_some_samples_want_one_and_a_whole_class_wants_more(digits):
    half, whole = digits.calibrate("half"), digits.calibrate("whole")
    for found in (half, whole):
        assert found.method == "retrained"
        assert found.damping == pytest.approx(WEIGHT_DECAY)
        assert found.curvature.scale == found.scale
        assert found.curvature.damping == pytest.approx(WEIGHT_DECAY)
        assert found.scan is not None
        assert found.scan.ratio is not None
        assert found.scan.ratio[found.scan.scales == found.scale] == found.scan.ratio.min()
        assert str(found).startswith(f"ε = {found.scale:.4g}, λ = 0.001, by retrained: δ = ")
    assert 0.8 < half.scale < 1.25
    assert 1.15 < whole.scale < 2.5
    assert 1.0 < digits.calibrate("half", retrained=None, data=digits.data).scale < 1.05


def test_the_stored_scale_is_used_and_spoken_of(digits, tmp_path):
    found, forget = digits.calibrate("whole"), digits.forget["whole"]
    calibrated = found.curvature
    source = f"by a model retrained without {len(forget[0][1])} samples"
    assert calibrated.scale_source == source
    erasure = ssse.erase(digits.model, calibrated, "cross_entropy", forget)
    assert torch.equal(dense.theta(erasure.model), dense.theta(digits.model) + found.scale * erasure.direction)
    assert erasure.diagnostics.scale == found.scale
    assert any(f"The scale is {found.scale:.3g} ({source})" in line for line in erasure.diagnostics.reasons)
    explicit = ssse.erase(digits.model, calibrated, "cross_entropy", forget, scale=0.5)
    assert explicit.diagnostics.scale == 0.5
    assert not any(source in line for line in explicit.diagnostics.reasons)
    calibrated.save(tmp_path / "calibrated")
    loaded = ssse.Curvature.load(tmp_path / "calibrated")
    assert (loaded.scale, loaded.scale_source) == (found.scale, source)
    again = ssse.erase(digits.model, loaded, "cross_entropy", forget)
    assert torch.equal(dense.theta(again.model), dense.theta(erasure.model))
    manifest = json.loads((tmp_path / "calibrated" / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["scale"], manifest["scale_source"]) == (found.scale, source)  # and nothing of the curve


def test_what_keeps_the_scale_and_what_drops_it(half):
    calibrated = half.calibrate(retrained=half.retrained).curvature
    assert calibrated.scale is not None
    for policy in ("rebase", "joint"):
        after = half.erase(calibrated, policy=policy).curvature
        assert (after.scale, after.scale_source) == (calibrated.scale, calibrated.scale_source)
    assert calibrated.to("cpu").scale == calibrated.scale
    dropped = [calibrated.with_damping(0.1), ssse.Curvature.merge([calibrated, calibrated])]
    assert [(c.scale, c.scale_source) for c in dropped] == [(None, "")] * 2


def test_empirical_rows_are_content_with_a_measured_scale():
    small = Small("cross_entropy", 0.5, {"rows": "empirical"})
    doubt, comfort = (
        "must be chosen by a measurement",
        "is one that was measured, by a model retrained without 25 samples.",
    )
    before = small.erase(small.curvature).diagnostics.reasons
    found = small.calibrate(retrained=small.retrained)
    after = small.erase(found.curvature).diagnostics.reasons
    assert [any(words in line for line in before) for words in (doubt, comfort)] == [True, False]
    assert [any(words in line for line in after) for words in (doubt, comfort)] == [False, True]


# -------------------------------------------------------------------------------------------- figures and JSON


def vertical(ax) -> list[float]:
    """Where lines stand upright over the whole height."""
    return [
        float(line.get_xdata()[0]) for line in ax.lines if len(line.get_xdata()) == 2 and len({*line.get_xdata()}) == 1
    ]


def test_the_figure_of_a_curve(half):
    found = half.calibrate(retrained=half.retrained, held_out=half.sample.part(half.rest))
    axes = found.figure().axes
    labels = [ax.get_ylabel() for ax in axes]
    assert [label.split("\n")[0] for label in labels] == [
        "normalised confusion distance δ",
        "normalised parameter distance",
        "AUC of telling S from held-out",
        "accuracy difference to",
    ]
    for ax in axes:
        assert ax.get_xscale() == "log"
        assert ax.get_xlabel() == "scale ε"
        assert vertical(ax) == [found.scale]
        assert any(text.get_text() == f"ε = {found.scale:.3g}" for text in ax.texts)
    assert found.scan is not None
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), found.scan.ratio)
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), found.scan.distance)
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["S", "T"]
    plain = found.scan.figure().axes
    assert [vertical(ax) for ax in plain] == [[]] * 4
    bare = replace(found.scan, ratio=None, distance=None, attack=None, retrained=None)
    assert [ax.get_ylabel() for ax in bare.figure().axes] == ["accuracy, %"]


def test_figures_of_little(tmp_path):
    """One ε, NaN, an ε outside of the grid, one at its end: drawn without a warning."""
    one = curve([0.3])
    short = curve([1.0, 0.4, NAN])
    for seen, chosen in ((one, 0.1), (short, 99.0), (short, 10.0)):
        figure = scan_figure(seen, chosen)
        figure.savefig(tmp_path / "figure.png", dpi=30)
        figure.savefig(tmp_path / "figure.svg")
        inside = seen.scales[0] <= chosen <= seen.scales[-1]
        assert vertical(figure.axes[0]) == ([chosen] if inside else [])
        assert [t.get_horizontalalignment() for t in figure.axes[0].texts] == (
            ["right" if chosen == 10 else "left"] if inside else []
        )


def test_the_heat_map(half, tmp_path):
    found = half.calibrate(retrained=half.retrained, dampings=[1e-1, 1e-3, 2e-2])
    figure = found.figure()
    ax, bar = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("scale ε", "damping λ")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert bar.get_ylabel().startswith("normalised confusion distance δ")
    (star,) = ax.lines
    where = float(star.get_xdata()[0]), float(star.get_ydata()[0])
    assert where == (found.scale, found.damping)
    mesh = ax.collections[0].get_coordinates()  # corners of the cells, shape (λ + 1, ε + 1, 2)
    column = int(np.searchsorted(mesh[0, :, 0], where[0])) - 1
    row = int(np.searchsorted(mesh[:, 0, 1], where[1])) - 1
    values = np.asarray(ax.collections[0].get_array()).reshape(3, len(SCALES))
    assert found.grid is not None
    np.testing.assert_array_equal(values, found.grid[[1, 2, 0]])  # λ rising
    assert values[row, column] == found.grid.min()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0.001", "0.02", "0.1"]
    assert f"δ = {found.grid.min():.3f}" in ax.get_title(loc="right")
    figure.savefig(tmp_path / "map.png", dpi=30)
    with pytest.raises(InvalidSetting, match="no grid over λ: pass dampings="):
        heat_map(half.calibrate(retrained=half.retrained))


def test_json_holds_numbers_and_nothing_else(half):
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    scales = (*SCALES.tolist(), 1.7e308)
    for options in ({"retrained": half.retrained, "dampings": [1e-2, 2e-2]}, {"data": half.sample.data}):
        found = half.calibrate(scales=scales, **options)
        read = json.loads(found.to_json(), parse_constant=refuse)
        assert read["scale"] == found.scale
        assert read["damping"] == found.damping
        assert read["method"] == found.method
        assert read["reason"] == found.reason
        assert read["curve"]["accuracy"]["forgotten"][-1] is None
        assert len(read["curve"]["scales"]) == len(scales) + ("data" in options)
        assert read["dampings"] == list(found.dampings)
        assert (read["grid"] is None) == ("data" in options)
        if read["grid"] is not None:
            assert [row[-1] for row in read["grid"]] == [None, None]
            assert read["grid"][0][0] == found.grid[0, 0]  # type: ignore[index]
