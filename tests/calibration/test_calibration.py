"""Choosing ε end to end: which evidence decides, and how, on a small problem and on digits."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import ssse
from ssse.calibration.criteria import SIGNAL
from ssse.curvature.curvature import Calibrated
from ssse.curvature.dense import DenseStructure
from ssse.demo import WEIGHT_DECAY
from ssse.errors import InvalidSetting
from tests.support import dense, problems
from tests.support.calibration_problems import DECAY, SCALES, SEARCHES, Small, digits, newton, small, vertical
from tests.support.refusals import refused, snapshot


def measured(found: ssse.Calibration, source: str, leave_out: bool = True, residual: bool = False) -> Calibrated:
    return Calibrated(found.scale, source, leave_out, residual)


def test_attributes_are_judged_by_gamma():
    attributes = small("binary_cross_entropy")
    found = attributes.calibrate(retrained=attributes.retrained)
    assert found.scan is not None
    assert found.scan.ratio_name == "γ"
    assert found.scan.ratio is not None
    assert found.scan.ratio[found.scan.scales == found.scale] == found.scan.ratio.max()
    assert 0.7 < found.scale < 1.5


def test_the_curvature_is_solved_once_for_each_damping(monkeypatch):
    """Beside that, each step solves twice for what it has to say of itself."""
    half, calls = small(), {"leave_out": 0, "solve": 0, "solve_measured": 0}
    for name in calls:
        plain = getattr(DenseStructure, name)

        def counted(self, *args, name=name, plain=plain, **kwargs):
            calls[name] += 1
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(DenseStructure, name, counted)
    half.calibrate(retrained=half.retrained)
    assert calls == {"leave_out": 1, "solve": 2, "solve_measured": 0}
    half.calibrate(retrained=half.retrained, dampings=(1e-2, 2e-2, 5e-2))
    assert calls == {"leave_out": 4, "solve": 8, "solve_measured": 0}
    half.calibrate(retrained=half.retrained, leave_out=False)
    assert calls == {"leave_out": 4, "solve": 9, "solve_measured": 1}
    for i, method in enumerate(SEARCHES):
        half.calibrate(data=half.sample.data, method=method)
        assert calls == {"leave_out": 5 + i, "solve": 11 + 2 * i, "solve_measured": 1}


def test_dampings_are_compared_as_one_would_by_hand():
    half = small()
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


def test_a_damping_that_decides_nothing_is_passed_over():
    half = small()
    found = half.calibrate(retrained=half.retrained, dampings=[1e6, 2e-2])
    assert found.damping == pytest.approx(2e-2)
    assert found.reason.endswith("; λ is at the edge of those given")
    assert "edge" not in half.calibrate(retrained=half.retrained, dampings=[1e6, 2e-2, 1e-12]).reason
    assert "edge" not in half.calibrate(retrained=half.retrained, dampings=[2e-2]).reason
    with pytest.raises(ssse.Undecided, match="δ is 1 at every ε"):
        half.calibrate(retrained=half.retrained, dampings=[1e6, 1e7])


def test_by_the_divergence_the_predictions_decide_alone():
    on = digits()
    by_ratio, found = on.calibrate("whole"), on.calibrate("whole", criterion="divergence")
    assert found.method == "retrained"
    assert found.scan is not None
    assert found.scan.divergence is not None
    assert found.scale == found.scan.scales[found.scan.divergence.argmin()]
    assert found.scale > 1.2 * by_ratio.scale
    least = found.scan.divergence.min()
    assert found.reason == f"KL = {least:.3g} on the forgotten samples, {found.scan.original_divergence:.3g} before"
    assert found.curvature.calibrated == replace(by_ratio.curvature.calibrated, scale=found.scale)  # type: ignore[type-var]
    assert vertical(found.figure().axes[0]) == [found.scale]


@pytest.mark.parametrize(
    ("loss", "share", "leave_out"), [("binary_cross_entropy", 1.0, True), ("cross_entropy", 0.5, False)]
)
def test_by_the_divergence_dampings_too(loss, share, leave_out):
    part, dampings = small(loss, share), [1e-1, 1e-3, 2e-2]
    given = {"retrained": part.retrained, "leave_out": leave_out}
    found = part.calibrate(**given, dampings=dampings, criterion="divergence")
    alone = [part.calibrate(part.curvature.with_damping(v), **given, criterion="divergence").scan for v in dampings]
    far = np.stack([scan.divergence for scan in alone if scan is not None and scan.divergence is not None])
    row, column = np.unravel_index(far.argmin(), far.shape)
    assert (found.damping, found.scale) == (pytest.approx(dampings[row]), SCALES[column])
    assert (found.curvature.damping, found.curvature.scale) == (found.damping, found.scale)
    by_ratio = part.calibrate(**given, dampings=dampings)
    assert (by_ratio.damping, by_ratio.scale) != (found.damping, found.scale)  # another choice
    np.testing.assert_array_equal(found.grid, far)  # type: ignore[arg-type]
    assert (found.grid_name, by_ratio.grid_name) == ("KL", "δ" if loss == "cross_entropy" else "γ")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["grid_name"] == "KL"
    ax, bar = found.figure().axes
    assert bar.get_ylabel().startswith("KL of the predictions on S")
    assert ax.get_title(loc="right").endswith(f"KL = {far.min():.3g}")
    assert ax.collections[0].get_cmap().name == "viridis_r"
    assert ax.collections[0].get_clim() == (far.min(), far.max())
    ratio_map = by_ratio.figure().axes[0].collections[0]
    assert ratio_map.get_cmap().name == ("viridis_r" if loss == "cross_entropy" else "viridis")
    assert ratio_map.get_clim() == (0, 1)
    (star,) = ax.lines
    assert np.array_equal(star.get_xydata(), [[found.scale, found.damping]])


def test_by_the_divergence_where_there_is_no_ratio():
    """All of S have the same attributes: γ is not defined, the predictions are."""
    half = small("binary_cross_entropy")
    alike = half.s[(half.sample.y[half.s] == torch.tensor([1.0, 0.0, 0.0])).all(1)]
    given = {"forget": half.sample.part(alike), "retrained": half.retrained, "criterion": "divergence"}
    for dampings in ([], [1e-2, 2e-2]):
        found = half.calibrate(**given, dampings=dampings)
        assert found.scan is not None
        assert found.scan.ratio is None
        assert found.scan.divergence is not None
        assert found.scale == found.scan.scales[found.scan.divergence.argmin()]
        assert (found.grid is None) == (not dampings)
        assert (json.loads(json.dumps(found.to_dict(), allow_nan=False))["grid"] is None) == (not dampings)
        assert len(found.figure().axes[0].collections) == bool(dampings)
    with pytest.raises(ssse.Undecided, match=r'γ is not defined.*criterion="divergence" works there'):
        half.calibrate(**given | {"criterion": "ratio"})


def test_chance_and_parity_and_what_is_chosen_when_nothing_is_said():
    whole, half, attributes = small(share=1.0), small(), small("binary_cross_entropy")
    chosen = whole.calibrate(whole_class=True)
    assert chosen.method == "attack_parity"
    assert chosen.scan is not None
    rate = chosen.scan.recognised
    assert rate is not None
    assert rate[chosen.scan.scales == chosen.scale] <= 1 / 3
    assert rate[chosen.scan.scales < chosen.scale].min() > 1 / 3
    assert chosen.curvature.calibrated == measured(chosen, "by recognition at chance on 50 samples")
    common = attributes.calibrate(whole_class=True, leave_out=False)
    assert common.scan is not None
    assert common.scan.chance == 0.5
    assert common.curvature.calibrated == measured(common, "by recognition at chance on 25 samples", leave_out=False)
    evidence = {"retrained": half.retrained, "held_out": half.forget, "data": half.sample.data}
    assert half.calibrate(**evidence).method == "retrained"
    unsaid = half.calibrate(data=half.sample.data)
    assert unsaid.method == "loss_search"
    sources = {"loss_search": "by the leave-k-out loss along the step for", "line_search": "by a line search for"}
    for method, source in sources.items():
        line = half.calibrate(**evidence, method=method)
        assert line.method == method
        assert (line.scale == unsaid.scale) == (method == "loss_search")
        assert line.curvature.calibrated == measured(line, f"{source} 25 samples")
        assert line.scan is not None
        assert line.scan.ratio is not None  # what was given is also shown


def test_evidence_that_decides_nothing_is_passed_over():
    half, same = small(), small().model  # a "retrained" model that is the original
    given = {"retrained": same, "data": half.sample.data}
    found = half.calibrate(**given)
    plain = half.calibrate(data=half.sample.data)
    assert (found.method, found.scale) == ("loss_search", plain.scale)
    assert found.reason == f"{plain.reason}; passed over retrained: δ is 0.5 at every ε"
    assert found.curvature.calibrated == plain.curvature.calibrated
    for named, message in (("retrained", "δ is 0.5 at every ε"), ("attack_parity", "there is no signal")):
        with pytest.raises(ssse.Undecided, match=message):
            half.calibrate(**given, held_out=half.forget, method=named)
    with pytest.raises(ssse.Undecided, match=r"δ is 0\.5 at every ε"):  # that of the first
        half.calibrate(retrained=same, held_out=half.forget)
    one = half.calibrate(**given, dampings=[5e-2])
    assert (one.damping, one.grid) == (pytest.approx(5e-2), None)
    assert half.calibrate(**given, dampings=[5e-2, 1e-1]).damping == pytest.approx(DECAY)


@pytest.mark.parametrize(("rows", "first"), [("expected", "loss_search"), ("empirical", "attack_parity")])
def test_what_comes_first_without_a_retrained_model(rows, first):
    """For a linear model with expected rows the loss, else the attack; where it has no signal, the loss after all."""
    whole = Small("cross_entropy", 1.0, {"rows": rows})
    given = {"data": whole.sample.data, "leave_out": False}
    assert whole.calibrate(**given, whole_class=True).method == first
    found = whole.calibrate(**given, held_out=whole.forget)
    assert found.method == "loss_search"
    assert ("; passed over attack_parity: Confidence does not clearly tell" in found.reason) == (rows == "empirical")
    assert "assuming that S is all of its class" in whole.calibrate(whole_class=True, leave_out=False).reason


def test_a_network_asks_the_attack_first():
    sample = problems.mlp(n=40)
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=1e-2, rows="expected", progress=False
    )
    assert curvature.linear is None
    given = {"data": sample.data, "held_out": sample.part(slice(0, 6)), "residual": True, "progress": False}
    with pytest.raises(
        ssse.Undecided, match="there is no signal to choose ε by"
    ):  # and the loss decides nothing either
        ssse.calibrate(sample.model, curvature, sample.loss, sample.part(slice(0, 6)), **given)
    curvature = ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=1e-2, rows="empirical", progress=False
    )
    found = ssse.calibrate(sample.model, curvature, sample.loss, sample.part(slice(0, 6)), **given)
    assert "passed over attack_parity" in found.reason


def test_numbers_stand_for_lists_of_one():
    half = small()
    found = half.calibrate(retrained=half.retrained, dampings=5e-2)
    wanted = half.calibrate(retrained=half.retrained, dampings=[5e-2])
    assert found.to_dict() == wanted.to_dict()
    assert found.dampings == (5e-2,)
    assert found.figure().axes[0].get_ylabel().startswith("normalised confusion distance")  # one λ: the curve
    assert vertical(found.figure().axes[0]) == [found.scale]
    searched = half.calibrate(data=half.sample.data, scales=1.0)
    assert set(searched.scan.scales) == {1.0, searched.scale}  # type: ignore[union-attr]
    assert repr(found) == str(found)


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
    assert found.scan.original_p < SIGNAL
    at = int(np.flatnonzero(found.scan.scales == found.scale)[0])
    assert found.scan.attack[at] <= 0.5 < found.scan.attack[:at].min()
    assert 0.5 < found.scale < 2
    assert found.curvature.calibrated == measured(found, "by attack parity on 60 samples")


def test_nothing_is_changed_and_nothing_of_the_samples_is_kept():
    half = small()
    x, y = half.forget[0][0].clone(), half.forget[0][1].clone()
    held = weakref.ref(x)
    before, state = [snapshot(half.model), snapshot(half.retrained)], torch.get_rng_state()
    found = half.calibrate(forget=[(x, y)], retrained=half.retrained, data=half.sample.data)
    lost, lost_too = (half.calibrate(forget=[(x, y)], data=half.sample.data, method=m) for m in SEARCHES)
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
    for scan in (found.scan, lost.scan, lost_too.scan, kept):
        arrays = [v for v in vars(scan).values() if isinstance(v, np.ndarray)] + list(scan.accuracy.values())  # type: ignore[union-attr]
        assert all(a.shape == scan.scales.shape for a in arrays)  # type: ignore[union-attr]


@pytest.mark.parametrize("method", SEARCHES)
def test_regression_has_a_line_search_and_no_curve(method):
    half = Small("mse", 0.5, {"rows": "empirical"})
    half.sample.y.add_(0.25)  # no longer 0 and 1
    half.curvature = ssse.Curvature.fit(half.model, "mse", half.sample.data, **half.settings)
    found = half.calibrate(forget=half.sample.part(half.s), data=half.sample.data, method=method)
    assert found.method == method
    assert found.scan is None
    assert found.scale > 0
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["curve"] is None
    with pytest.raises(InvalidSetting, match="no curve: these labels are neither classes nor attributes"):
        found.figure()


def test_matrix_free_brings_its_data(tmp_path):
    half = small()
    settings = half.settings | {"structure": ssse.MatrixFree(tolerance=1e-12), "blocks": "auto", "progress": False}
    free = ssse.Curvature.fit(half.model, half.loss, half.sample.data, **settings)
    wanted = half.calibrate(retrained=half.retrained)
    assert half.calibrate(free, retrained=half.retrained).scale == wanted.scale  # it still has its rows
    free.save(tmp_path / "free")
    loaded = ssse.Curvature.load(tmp_path / "free")
    found = half.calibrate(loaded, retrained=half.retrained, data=half.sample.data)
    assert found.scale == wanted.scale
    assert found.method == "retrained"
    for method in SEARCHES:
        lines = [half.calibrate(c, data=half.sample.data, method=method).scale for c in (half.curvature, loaded)]
        assert lines[0] == pytest.approx(lines[1], rel=1e-8)
    with refused(InvalidSetting, "pass the training data", half.model):
        half.calibrate(loaded, retrained=half.retrained)


def test_mini_batch_rows_stay_in_the_curvature():
    half = Small("cross_entropy", 0.5, {"rows": "empirical", "rows_per_batch": 5})
    found = half.calibrate(retrained=half.retrained, leave_out=False)
    erasure = half.erase(found.curvature, leave_out=False)
    assert erasure.diagnostics.scale == found.scale
    assert torch.equal(dense.theta(erasure.model), dense.theta(half.model) + found.scale * erasure.direction)
    assert found.curvature.calibrated == measured(found, "by a model retrained without 25 samples", leave_out=False)
    with refused(InvalidSetting, "cannot be subtracted", half.model):
        half.calibrate(retrained=half.retrained)


def test_the_residual_is_part_of_the_step_and_of_the_story():
    half = small()
    found = half.calibrate(retrained=half.retrained, residual=True)
    assert found.curvature.calibrated == measured(found, "by a model retrained without 25 samples", residual=True)


def test_some_samples_want_one_and_a_whole_class_wants_more():
    half, whole = digits().calibrate("half"), digits().calibrate("whole")
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
    searched = {m: digits().calibrate("half", retrained=None, method=m, data=digits().data).scale for m in SEARCHES}
    assert 0.95 < searched["line_search"] < 1.05
    assert 0.95 < searched["loss_search"] < 1.05


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("rows", ["expected", "empirical"])
def test_for_a_whole_class_the_loss_goes_further_than_its_quadratic_model(rows, leave_out):
    """And comes nearer to the ε at which the predictions on S are most like the retrained model's."""
    on, options = digits(rows), {"leave_out": leave_out, "scales": np.geomspace(0.01, 100, 200)}
    loss, line = (on.calibrate("whole", method=m, data=on.data, **options) for m in SEARCHES)
    assert loss.scan is not None
    assert loss.scan.divergence is not None
    best = loss.scan.scales[loss.scan.divergence.argmin()]
    assert 1.15 * line.scale < loss.scale < best
    assert np.log(best / loss.scale) < 0.8 * np.log(best / line.scale)


def test_empirical_rows_are_content_with_a_measured_scale():
    half = Small("cross_entropy", 0.5, {"rows": "empirical"})
    doubt, comfort = (
        "must be chosen by a measurement",
        "is one that was measured, by a model retrained without 25 samples.",
    )
    before = half.erase(half.curvature).diagnostics.reasons
    found = half.calibrate(retrained=half.retrained)
    after = half.erase(found.curvature).diagnostics.reasons
    assert [any(words in line for line in before) for words in (doubt, comfort)] == [True, False]
    assert [any(words in line for line in after) for words in (doubt, comfort)] == [False, True]


def test_json_holds_numbers_and_nothing_else():
    half = small()

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    scales = (*SCALES.tolist(), 1.7e308)
    for options in ({"retrained": half.retrained, "dampings": [1e-2, 2e-2]}, {"data": half.sample.data}):
        found = half.calibrate(scales=scales, **options)
        read = json.loads(json.dumps(found.to_dict()), parse_constant=refuse)
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
