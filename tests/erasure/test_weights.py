"""Samples with weights, from the fit to the refit: (1/n) Σ wᵢℓᵢ + (w/2)‖θ‖²."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.baselines import fine_tuning, gradient_ascent, influence, influence_unlearning, retrain
from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics import objective, relearn_time
from tests.support import dense, problems
from tests.support.refusals import fit, refused

DECAY = 0.05


def weights_of(sample: problems.Sample) -> Tensor:
    weights = torch.rand(len(sample.x), generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 0.2
    weights[5] = 0.0
    return weights


def least_squares(x: Tensor, y: Tensor, weights: Tensor) -> nn.Linear:
    """The minimum of (1/n) Σ wᵢ ½‖zᵢ − yᵢ‖² + (w/2)‖θ‖², in closed form."""
    wide = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    system = wide.T @ (weights[:, None] * wide) + len(x) * DECAY * torch.eye(wide.shape[1], dtype=x.dtype)
    theta = torch.linalg.solve(system, wide.T @ (weights[:, None] * y))
    model = nn.Linear(x.shape[1], y.shape[1]).double().eval()
    with torch.no_grad():
        model.weight.copy_(theta[:-1].T)
        model.bias.copy_(theta[-1])
    return model


def trained() -> tuple[problems.Sample, Tensor]:
    """On data whose length gives each sample its place; least squares, trained with weights."""
    sample = problems.linear("mse")
    weights = weights_of(sample)
    return problems.Sample("trained", least_squares(sample.x, sample.y, weights), "mse", sample.x, sample.y), weights


def test_one_step_is_the_refit_with_the_same_weights_without_those_samples():
    sample, weights = trained()
    gone, kept = slice(0, 8), slice(8, None)
    curvature = fit(sample, data=[(sample.x, sample.y, weights)], damping=None, weight_decay=DECAY)
    assert curvature.weighted
    assert not curvature.notes
    assert float(curvature.gradient.norm()) < 1e-12  # type: ignore[union-attr]
    erasure = ssse.erase(
        sample.model, curvature, forget=[(sample.x[gone], sample.y[gone], weights[gone])], override=ssse.BOUNDS
    )
    wanted = least_squares(sample.x[kept], sample.y[kept], weights[kept])
    torch.testing.assert_close(dense.theta(erasure.model), dense.theta(wanted), rtol=1e-10, atol=1e-12)
    # Without their weights the same samples would go to another place.
    unweighted = fit(sample, damping=None, weight_decay=DECAY)
    other = ssse.erase(sample.model, unweighted, forget=sample.part(gone), override=ssse.BOUNDS)
    assert float((dense.theta(other.model) - dense.theta(wanted)).norm()) > 1e-3


def test_the_form_of_the_weights_does_not_matter():
    sample, weights = trained()
    forms = [
        [(sample.x, sample.y, weights)],
        [(sample.x, sample.y, weights[:, None])],
        [[sample.x[:9], sample.y[:9], weights[:9]], (sample.x[9:], sample.y[9:], weights[9:].numpy())],
        [{"x": sample.x, "y": sample.y, "weight": weights}],
        [{"x": sample.x, "y": sample.y, "sample_weight": weights}],
        [{"x": sample.x, "y": sample.y, "weights": weights}],
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(sample.x, sample.y, weights), batch_size=7),
    ]
    first = fit(sample, data=forms[0])
    for form in forms[1:]:
        again = fit(sample, data=form)
        assert again.weighted
        torch.testing.assert_close(again.gradient, first.gradient, rtol=1e-11, atol=1e-13)


BAD = {
    "negative": (lambda w: w.clone().index_fill_(0, torch.tensor([3]), -1.0), "that of sample 3 .* is -1; a weight"),
    "nan": (
        lambda w: w.clone().index_fill_(0, torch.tensor([3]), float("nan")),
        "that of sample 3 .* is nan; a weight",
    ),
    "infinite": (lambda w: w.clone().index_fill_(0, torch.tensor([3]), float("inf")), "sample 3 .* is inf; a weight"),
    "too few": (lambda w: w[:-1], r"three are \(x, y, weight\), the weight a floating number for each sample"),
    "whole numbers": (lambda w: w.long(), r"torch.int64 .*three are \(x, y, weight\).*\(\(a, b\), y\)"),
    "two a sample": (lambda w: torch.stack([w, w], 1), r"three are \(x, y, weight\)"),
}


@pytest.mark.parametrize("bad", BAD)
def test_weights_that_are_none_are_refused(bad):
    sample, weights = trained()
    change, match = BAD[bad]
    with refused(InvalidData, match, sample.model):
        fit(sample, data=[(sample.x, sample.y, change(weights))])


def test_two_kinds_of_weights_in_one_mapping_are_refused():
    sample, weights = trained()
    with refused(InvalidData, "weights under weight and sample_weight; leave one", sample.model):
        fit(sample, data=[{"x": sample.x, "y": sample.y, "weight": weights, "sample_weight": weights}])


def test_weights_at_the_fit_and_none_later_or_the_other_way_round_are_refused(tmp_path):
    sample, weights = trained()
    with_weights, without = [(sample.x, sample.y, weights)], sample.data
    weighted, plain = fit(sample, data=with_weights), fit(sample)
    weighted.save(tmp_path / "weighted")
    weighted = ssse.Curvature.load(tmp_path / "weighted")
    some, bare = [(sample.x[:3], sample.y[:3], weights[:3])], sample.part(slice(0, 3))
    with refused(InvalidData, "fitted on samples with weights, and these have none", sample.model):
        ssse.erase(sample.model, weighted, forget=bare)
    with refused(InvalidData, "fitted on samples without weights, and these have some", sample.model):
        ssse.erase(sample.model, plain, forget=some)
    with refused(InvalidData, "fitted on samples with weights, and these have none", sample.model):
        ssse.refine(sample.model, weighted, retained=without)
    with refused(InvalidData, "fitted on samples without weights, and these have some", sample.model):
        ssse.refine(sample.model, plain, retained=with_weights)
    with refused(InvalidData, "fitted on samples with weights, and these have none", sample.model):
        ssse.calibrate(sample.model, weighted, "mse", bare, data=with_weights)
    with refused(InvalidData, "had weights and these have none", sample.model):
        ssse.calibrate(sample.model, weighted, "mse", some, data=without)
    with pytest.raises(InvalidSetting, match="form of their samples: with weights or without"):
        ssse.Curvature.merge([weighted, plain], n=80)
    mixed = [(sample.x[:20], sample.y[:20]), (sample.x[20:], sample.y[20:], weights[20:])]
    with refused(InvalidData, "samples of one shape and dtype.*weights", sample.model):
        fit(sample, data=mixed)
    matrix_free = fit(sample, data=with_weights, structure="matrix_free")
    with refused(InvalidData, "had weights and these have none", sample.model):
        ssse.erase(sample.model, matrix_free, forget=some, data=without)


@pytest.mark.parametrize("structure", ["dense", "lowrank", "diagonal", "recurrence", "matrix_free"])
def test_a_sample_that_is_there_twice_weighs_twice_whatever_the_structure(structure):
    """M and Σ∇ℓ are the same; n is not, so the damping is chosen to be."""
    sample = problems.linear("cross_entropy")
    doubled = (torch.cat([sample.x, sample.x[:9]]), torch.cat([sample.y, sample.y[:9]]))
    weights = torch.ones(40, dtype=torch.float64)
    weights[:9] = 2.0
    one = fit(sample, data=[(sample.x, sample.y, weights)], structure=structure, rows="expected", damping=0.49)
    two = fit(sample, data=[doubled], structure=structure, rows="expected", damping=0.40)
    v = torch.randn(one.layout.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(one.structure.solve(v), two.structure.solve(v), rtol=1e-4, atol=1e-7)
    assert one.gradient is not None
    assert two.gradient is not None
    torch.testing.assert_close(one.gradient * 40, two.gradient * 49)


def test_other_weights_are_other_samples_where_samples_are_known():
    sample, weights = trained()
    curvature = fit(sample, data=[(sample.x, sample.y, weights)], structure="lowrank")
    with pytest.raises(ssse.Refused, match="not among the curvature's rows"):
        ssse.erase(sample.model, curvature, forget=[(sample.x[:3], sample.y[:3], weights[:3] + 0.1)])


def test_refining_ends_at_the_weighted_minimum():
    sample, weights = trained()
    curvature = fit(sample, data=[(sample.x, sample.y, weights)], damping=None, weight_decay=DECAY)
    gone, kept = slice(0, 4), slice(4, None)
    erasure = ssse.erase(
        sample.model, curvature, forget=[(sample.x[gone], sample.y[gone], weights[gone])], override=ssse.BOUNDS,
        leave_out=False,
    )  # fmt: skip
    refined = ssse.refine(
        erasure.model, erasure.curvature, retained=[(sample.x[kept], sample.y[kept], weights[kept])], progress=False
    )
    wanted = least_squares(sample.x[kept], sample.y[kept], weights[kept])
    torch.testing.assert_close(dense.theta(refined.model), dense.theta(wanted), rtol=1e-6, atol=1e-8)


def test_objective_relearning_and_evaluation_with_weights():
    sample = problems.mlp("cross_entropy")
    weights = weights_of(sample)
    data = [(sample.x, sample.y, weights)]
    found = objective(sample.model, "cross_entropy", data, weight_decay=0.1)
    each = torch.nn.functional.cross_entropy(sample.model(sample.x), sample.y, reduction="none")
    penalty = 0.05 * sum(float((p.detach() ** 2).sum()) for p in sample.model.parameters())
    assert found.loss == pytest.approx(float((weights * each).mean().detach()) + penalty)
    relearned = relearn_time(sample.model, "cross_entropy", data, target=0.0, max_steps=1)
    assert relearned.losses[0] == pytest.approx(float((weights * each).mean().detach()))
    splits = {"forgotten": [(sample.x[:9], sample.y[:9], weights[:9])], "test": sample.part(slice(9, None))}
    table = ssse.evaluate({"original": sample.model}, splits, progress=False)
    right = (sample.model(sample.x).argmax(1) == sample.y).double()
    assert table["original", "accuracy_forgotten"] == pytest.approx(100 * float(right[:9].mean()))


def test_calibration_with_weights_finds_the_exact_step():
    """Of least squares the loss along the step is least at ε = 1, if weights are in all of it."""
    sample, weights = trained()
    curvature = fit(sample, data=[(sample.x, sample.y, weights)], damping=None, weight_decay=DECAY)
    forget = [(sample.x[:6], sample.y[:6], weights[:6])]
    found = ssse.calibrate(sample.model, curvature, "mse", forget, data=[(sample.x, sample.y, weights)], progress=False)
    assert found.scale == pytest.approx(1.0, rel=1e-4)


def test_baselines_with_weights():
    sample, weights = trained()
    data, forget = [(sample.x, sample.y, weights)], [(sample.x[:6], sample.y[:6], weights[:6])]
    wanted = dense.theta(least_squares(sample.x[6:], sample.y[6:], weights[6:]))
    step = influence(sample.model, None, "mse", forget, data=data, leave_out=True, weight_decay=DECAY, tolerance=1e-12)
    torch.testing.assert_close(dense.theta(step.model), wanted, rtol=1e-8, atol=1e-10)

    def train(batches: list) -> nn.Module:
        x, y, own = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return least_squares(x, y, own)

    anew = retrain(sample.model, None, "mse", forget, train=train, data=data)
    torch.testing.assert_close(dense.theta(anew.model), wanted, rtol=1e-11, atol=1e-13)
    slope = sum(
        float(w) * dense.gradient(sample.model, dense.LOSSES["mse"], sample.x[i : i + 1], sample.y[i : i + 1])
        for i, w in enumerate(weights[:6])
    )
    up = gradient_ascent(sample.model, None, "mse", forget, scale=1.0)
    torch.testing.assert_close(up.step, slope / 6, rtol=1e-9, atol=1e-11)
    once = fine_tuning(
        sample.model, None, "mse", forget, data=data, learning_rate=0.1, momentum=0.0, batch_size=34, progress=False
    )
    rest = sum(
        float(w) * dense.gradient(sample.model, dense.LOSSES["mse"], sample.x[i : i + 1], sample.y[i : i + 1])
        for i, w in enumerate(weights.tolist()) if i >= 6
    )  # fmt: skip
    torch.testing.assert_close(once.step, -0.1 * rest / 34, rtol=1e-9, atol=1e-11)
    assert torch.isfinite(influence_unlearning(sample.model, None, "mse", forget, data=data).step).all()


def test_a_probe_counts_each_sample_once():
    sample, weights = trained()
    curvature = fit(sample, data=[(sample.x, sample.y, weights)], damping=None, weight_decay=DECAY)
    forget = [(sample.x[:3], sample.y[:3], weights[:3])]
    held_out = (sample.x[20:], sample.y[20:])
    each = 0.5 * (sample.model(held_out[0]) - held_out[1]).square().sum(1)
    for probe in ([held_out], [(*held_out, weights[20:])]):
        erasure = ssse.erase(sample.model, curvature, forget=forget, probe=probe, override=ssse.BOUNDS)
        assert erasure.diagnostics.probe_loss_before == pytest.approx(float(each.mean().detach()))


def test_classes_and_probabilities_are_not_taken_for_each_other(tmp_path):
    sample = problems.converged(problems.linear("cross_entropy"), 0.1)
    soft = torch.nn.functional.one_hot(sample.y, 3).double() * 0.9 + 0.1 / 3
    hard, probable = fit(sample), fit(sample, data=[(sample.x, soft)])
    probable.save(tmp_path / "soft")
    probable = ssse.Curvature.load(tmp_path / "soft")
    with refused(InvalidData, "class probabilities for labels, and these have class indices", sample.model):
        ssse.erase(sample.model, probable, forget=sample.part(slice(0, 3)))
    with refused(InvalidData, "class indices for labels, and these have probabilities", sample.model):
        ssse.erase(sample.model, hard, forget=[(sample.x[:3], soft[:3])])
    with refused(InvalidData, "class probabilities for labels, and these have class indices", sample.model):
        ssse.refine(sample.model, probable, retained=sample.data, progress=False)
    with pytest.raises(InvalidSetting, match="with classes or with probabilities"):
        ssse.Curvature.merge([hard, probable])
