"""How far a step can be trusted: three measures against their definitions over all samples, and what they see."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import ssse
from ssse.verdict import TRUSTED_BEND, TRUSTED_LEVERAGE, TRUSTED_STRAIN, TRUSTED_STRETCH, TRUSTED_SWING, distrust
from tests.support import dense, problems

DECAY = 1e-2
LINEAR = [problems.converged(problems.linear(loss, n=60), DECAY) for loss in ("cross_entropy", "binary_cross_entropy")]
STRUCTURES = ["dense", "lowrank", "matrix_free"]


def fit(sample: problems.Sample, **options) -> ssse.Curvature:
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data, weight_decay=DECAY, progress=False, **options)


def softmax_model(x: Tensor, y: Tensor, decay: float) -> problems.Sample:
    model = nn.Linear(x.shape[1], int(y.max()) + 1).double().eval()
    for p in model.parameters():
        nn.init.zeros_(p)
    return problems.converged(problems.Sample("softmax", model, "cross_entropy", x, y), decay)


def recognised(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def wanted_measures(sample: problems.Sample, forget: slice, step: Tensor, rows: Tensor) -> tuple[float, ...]:
    """By their definitions, with all samples at hand; `rows`: of those who stay, at the θ where they were taken."""
    gram = rows.T @ rows
    stays = len(sample.x) - len(sample.x[forget])
    theta, ridge = dense.theta(sample.model), stays * DECAY
    curved = float(step @ gram @ step)
    mass = 0.0
    for z in torch.cat([sample.model(sample.x[: forget.start]), sample.model(sample.x[forget.stop :])]).detach():
        if sample.loss == "cross_entropy":
            mass += 1 - float(z.softmax(0).square().sum())
        else:
            mass += float((z.sigmoid() * (1 - z.sigmoid())).sum())
    layer = sample.model
    assert isinstance(layer, nn.Linear)
    weight = step[: layer.weight.numel()].view_as(layer.weight)
    change = sample.x[forget] @ weight.T + step[layer.weight.numel() :]
    moved = change.amax(1) - change.amin(1) if sample.loss == "cross_entropy" else change.abs().amax(1)
    along = float(theta @ gram @ theta) + ridge * float(theta @ theta)
    stretch = 0.5 * curved * float(theta.norm()) / (along * float(step.norm()))
    return float(moved.quantile(0.95)), math.sqrt(curved / mass), stretch, wanted_bend(sample, forget, step, curved)


def wanted_bend(sample: problems.Sample, forget: slice, step: Tensor, curved: float) -> float:
    moved = copy.deepcopy(sample.model)
    with torch.no_grad():
        nn.utils.vector_to_parameters(dense.theta(sample.model) + step, moved.parameters())
    x, y, loss = sample.x[forget], sample.y[forget], dense.LOSSES[sample.loss]
    rows = dense.expected_rows(sample.model, sample.loss, x, y)
    off = dense.gradient(moved, loss, x, y) - dense.gradient(sample.model, loss, x, y) - rows.T @ rows @ step
    everything = dense.expected_rows(sample.model, sample.loss, sample.x, sample.y)
    whole = everything.T @ everything + len(sample.x) * DECAY * torch.eye(len(step), dtype=step.dtype)
    share = curved / float((rows @ step).square().sum())
    return float(torch.linalg.solve(whole, off).norm() / step.norm()) * share


@pytest.mark.parametrize("sample", LINEAR, ids=lambda s: s.name)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_the_measures_are_those_of_their_definitions(sample, structure, scale):
    forget = slice(4, 13)
    erasure = ssse.erase(sample.model, fit(sample, structure=structure), forget=sample.part(forget), scale=scale)
    stays = torch.cat([torch.arange(4), torch.arange(13, 60)])
    rows = dense.expected_rows(sample.model, sample.loss, sample.x[stays], sample.y[stays])
    found = erasure.diagnostics
    measures = (found.swing, found.strain, found.stretch, found.bend)
    known = slice(3) if structure == "matrix_free" else slice(4)  # whose bend is by its preconditioner
    assert measures[known] == pytest.approx(wanted_measures(sample, forget, erasure.step, rows)[known], rel=1e-5)
    assert found.bend is not None
    assert 1 / 3 < found.bend / wanted_measures(sample, forget, erasure.step, rows)[3] < 3


@pytest.mark.parametrize("sample", LINEAR, ids=lambda s: s.name)
@pytest.mark.parametrize("policy", ["rebase", "joint"])
def test_the_sums_go_on_with_a_stream(sample, policy):
    """After a request they are those of the rows that stay: at the first θ of a joint stream, else at the new one."""
    first, rest = slice(0, 5), torch.arange(5, 60)
    erasure = ssse.erase(sample.model, fit(sample), forget=sample.part(first), policy=policy)
    rows = dense.expected_rows(sample.model, sample.loss, sample.x[rest], sample.y[rest])
    at = dense.theta(sample.model if policy == "joint" else erasure.model)
    after = erasure.curvature
    assert after.scores is not None
    assert after.scores.energy == pytest.approx(float((rows @ at).square().sum()), rel=1e-6)
    strain = erasure.diagnostics.strain
    assert strain is not None
    assert after.strain == (0.0 if policy == "joint" else strain)
    again = ssse.erase(erasure.model, after, forget=sample.part(slice(5, 8)), policy=policy)
    alone = ssse.erase(sample.model, fit(sample), forget=sample.part(slice(5, 8)))
    assert again.diagnostics.strain is not None
    assert alone.diagnostics.strain is not None
    if policy == "rebase":
        assert again.diagnostics.strain > strain + 0.5 * alone.diagnostics.strain


def test_the_sums_are_kept_on_disk_and_added_by_merging(tmp_path):
    sample = LINEAR[0]
    curvature = fit(sample, structure="dense")
    curvature.save(tmp_path / "curvature")
    assert ssse.Curvature.load(tmp_path / "curvature").scores == curvature.scores
    parts = [
        ssse.Curvature.fit(sample.model, sample.loss, sample.part(part), weight_decay=DECAY, structure="dense")
        for part in (slice(0, 25), slice(25, 60))
    ]
    merged = ssse.Curvature.merge(parts).scores
    assert merged is not None
    assert curvature.scores is not None
    assert (merged.mass, merged.energy) == pytest.approx((curvature.scores.mass, curvature.scores.energy))


def test_a_whole_class_that_is_still_recognised_is_not_ok():
    """A tenth of the digits in one step: a third of them are still recognised, and nobody retrained would know one."""
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x / 16
    sample = softmax_model(x, y, 1e-3)
    curvature = ssse.Curvature.fit(sample.model, "cross_entropy", sample.data, weight_decay=1e-3, progress=False)
    eights = y == 8
    erasure = ssse.erase(sample.model, curvature, forget=[(x[eights], y[eights])])
    assert recognised(erasure.model, x[eights], y[eights]) > 0.1
    assert erasure.diagnostics.verdict == "caution"
    assert any("times as far as one step is trusted to" in reason for reason in erasure.diagnostics.reasons)
    few = torch.arange(0, 1797, 60)
    calm = ssse.erase(sample.model, curvature, forget=[(x[few], y[few])]).diagnostics
    assert calm.verdict == "ok"


def test_mislabelled_samples_of_a_small_data_set_are_not_ok():
    x, y = (torch.tensor(part) for part in load_breast_cancer(return_X_y=True))
    x = (x - x.mean(0)) / x.std(0)
    wrong = torch.arange(0, 569, 19)
    y[wrong] = 1 - y[wrong]
    sample = softmax_model(x, y, 1e-4)
    curvature = ssse.Curvature.fit(sample.model, "cross_entropy", sample.data, weight_decay=1e-4, progress=False)
    erasure = ssse.erase(sample.model, curvature, forget=[(x[wrong], y[wrong])], override=ssse.BOUNDS)
    stays = torch.ones(569, dtype=torch.bool)
    stays[wrong] = False
    twin = softmax_model(x[stays], y[stays], 1e-4)
    gone = dense.theta(twin.model) - dense.theta(sample.model)
    left = dense.theta(twin.model) - dense.theta(erasure.model)
    assert float(left.norm() / gone.norm()) > 0.35
    assert erasure.diagnostics.verdict == "caution"


def test_least_squares_is_ok_however_much_goes():
    x, y = (torch.tensor(part) for part in load_diabetes(return_X_y=True))
    x, y = 20 * x, y[:, None] / 100
    sample = problems.converged(problems.Sample("ridge", nn.Linear(10, 1).double().eval(), "mse", x, y), 0.1)
    curvature = ssse.Curvature.fit(sample.model, "mse", sample.data, weight_decay=0.1, progress=False)
    found = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 176))).diagnostics
    assert (found.verdict, found.reasons) == ("ok", ())
    half = ssse.erase(sample.model, curvature, forget=sample.part(slice(0, 220)), override=["share"]).diagnostics
    assert [reason[:20] for reason in half.reasons] == ["Overridden (share): "]  # and nothing else


def test_what_a_loss_of_ones_own_does_to_the_curvature_is_not_known():
    sample = LINEAR[0]

    def own(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, y)

    def erased(loss) -> ssse.Diagnostics:
        curvature = ssse.Curvature.fit(sample.model, loss, sample.data, weight_decay=DECAY, progress=False)
        return ssse.erase(sample.model, curvature, loss, sample.part(slice(0, 1))).diagnostics

    found = erased(own)
    assert found.verdict == "caution"
    assert any("a function of your own" in reason for reason in found.reasons)
    assert found.swing is None
    torchs = erased(nn.CrossEntropyLoss(reduction="sum", ignore_index=0))  # a custom one to us, and logits to torch
    assert torchs.swing is not None
    assert not any("a function of your own" in reason for reason in torchs.reasons)


@dataclass(frozen=True)
class Measured:
    swing: float | None = 0.0
    strain: float | None = 0.0
    stretch: float | None = 0.0
    bend: float | None = 0.0
    leverage_max: float | None = None


def test_distrust_counts_all_measures_together():
    limits = {"swing": TRUSTED_SWING, "strain": TRUSTED_STRAIN, "stretch": TRUSTED_STRETCH, "bend": TRUSTED_BEND}

    def seen(**other: float | None) -> str:
        return " ".join(distrust(Measured(**other)))

    assert seen() == ""
    for name, limit in limits.items():
        assert seen(**{name: 0.999 * limit}) == ""
        assert "goes 2 times as far" in seen(**{name: 2 * limit})
        assert seen(**{name: math.nan})
        assert seen(**{name: math.inf})
        assert "is not known" in seen(**{name: None})
    assert seen(**{name: 0.51 * limit for name, limit in limits.items()})
    assert seen(**{name: 0.49 * limit for name, limit in limits.items()}) == ""
    assert "determine 90.0% of a direction" in seen(leverage_max=0.9)
    assert seen(leverage_max=TRUSTED_LEVERAGE) == ""


def test_a_model_that_was_not_trained_to_its_end_is_not_ok():
    """How far it still had to go counts by the step that would take it there, not by the length of a gradient."""
    sample = problems.converged(problems.linear("cross_entropy", n=200, seed=3), DECAY)
    theta = dense.theta(sample.model)
    forget = sample.part(slice(0, 2))
    step = ssse.erase(sample.model, fit(sample), forget=forget).step
    rows = dense.expected_rows(sample.model, sample.loss, sample.x, sample.y)
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    short = copy.deepcopy(sample.model)
    with torch.no_grad():  # as long as the step, in the direction that changes the gradient least
        nn.utils.vector_to_parameters(theta + step.norm() * vectors[:, 0], short.parameters())
    found = ssse.erase(short, fit(problems.Sample("early", short, sample.loss, sample.x, sample.y)), forget=forget)
    assert found.diagnostics.residual_step == pytest.approx(1, rel=0.3)
    assert found.diagnostics.verdict == "caution"
    assert any("not stationary" in reason for reason in found.diagnostics.reasons)


def test_float32_sees_the_same_bend():
    """The difference that it is made of is far below the rounding of a float32 gradient."""
    sample = problems.converged(problems.linear("cross_entropy", n=200, seed=1), 1e-3)
    single = problems.Sample("single", copy.deepcopy(sample.model).float(), sample.loss, sample.x.float(), sample.y)
    for place in range(5):
        found = [
            ssse.erase(
                one.model,
                ssse.Curvature.fit(one.model, one.loss, one.data, weight_decay=1e-3, progress=False),
                forget=one.part(slice(place, place + 1)),
            ).diagnostics.bend
            for one in (sample, single)
        ]
        assert found[0] is not None
        assert found[1] == pytest.approx(found[0], rel=0.1, abs=1e-3)


def test_a_subclass_of_a_loss_is_a_loss_of_ones_own():
    class Poisson(nn.MSELoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return (torch.exp(input) - target * input).sum()

    sample = problems.linear("mse", c=1, n=60)
    curvature = ssse.Curvature.fit(sample.model, Poisson(), [(sample.x, sample.y.abs())], damping=0.1, progress=False)
    found = ssse.erase(sample.model, curvature, Poisson(), [(sample.x[:2], sample.y[:2].abs())], override=ssse.BOUNDS)
    assert any("a function of your own" in reason for reason in found.diagnostics.reasons)


def test_a_refined_model_has_rows_of_another_place():
    """Bringing a model to its minimum does not bring its curvature along: the next step is not vouched for."""
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x, y = x[y < 3] / 16, y[y < 3]
    start = nn.Linear(64, 3).double().eval()
    nn.init.normal_(start.weight, std=1e-3)
    nn.init.zeros_(start.bias)
    curvature = ssse.Curvature.fit(start, "cross_entropy", [(x, y)], weight_decay=1e-2, progress=False)
    refined = ssse.refine(start, curvature, None, [(x, y)], steps=50, progress=False)
    assert refined.converged
    found = ssse.erase(refined.model, refined.curvature, forget=[(x[:40], y[:40])]).diagnostics
    assert found.verdict == "caution"


def test_a_decay_that_the_gradient_contradicts_stays_in_doubt():
    """Also after a rebase, where the gradient is not known any more; ten times off it is refused."""
    sample = problems.converged(problems.linear("cross_entropy", n=300), 1e-2)

    def fitted(decay: float) -> ssse.Curvature:
        with pytest.warns(ssse.DoubtfulSetting):
            return ssse.Curvature.fit(sample.model, sample.loss, sample.data, weight_decay=decay, progress=False)

    first = ssse.erase(sample.model, fitted(5e-2), forget=sample.part(slice(0, 3)))
    second = ssse.erase(first.model, first.curvature, forget=sample.part(slice(3, 6))).diagnostics
    assert any("was not trained with the weight decay" in reason for reason in second.reasons)
    with pytest.raises(ssse.Refused, match=r"trained with a weight decay of 0\.01"):
        ssse.erase(sample.model, fitted(1e-5), forget=sample.part(slice(0, 1)))
