"""The rules that choose ε, on curves made by hand; and how curves are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ssse
from ssse.calibration import criteria as choosing
from ssse.calibration.criteria import by_chance, by_divergence, by_parity, by_ratio
from ssse.calibration.figures import heat_map
from ssse.errors import InvalidSetting
from ssse.evaluation.figures import scan_figure
from tests.support.calibration_problems import SCALES, curve, small, vertical
from tests.support.refusals import NAN

BASIN = [1.0, 0.9, 0.4, 0.2, 0.1, 0.3, 0.45, 0.48, 0.5]
PLATEAU = [1.0, 0.9, 0.6, 0.3, 0.105, 0.103, 0.1, 0.104, 0.102]


@pytest.mark.parametrize(
    ("ratio", "place"),
    [
        (BASIN, 4),
        ([1.0, 0.5, 0.1, 0.5, 0.4, 0.3, 0.2, 0.3, 0.5], 2),  # one ε wide: δ has such minima, V-shaped
        (PLATEAU, 4),
        ([1.0, 0.9, 0.099, 0.3, 0.105, 0.103, 0.1, 0.104, 0.102], 4),  # a lucky dip before it
        ([1.0, 0.9, 0.105, 0.1, 0.104, 0.103, 0.4, 0.104, 0.102], 2),  # the first of a basin wider than the end
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


def test_few_samples_that_tell_the_models_apart_are_named():
    for apart, words in ((4, "; only 4 samples of S tell the two models apart"), (1, "; only 1 sample of S tells the")):
        assert words in by_ratio(curve(BASIN, apart=apart))[1]
        assert words in by_ratio(curve(PLATEAU, apart=apart))[1]
    for apart in (10, None):
        assert "apart" not in by_ratio(curve(BASIN, apart=apart))[1]


def test_the_predictions_decide_between_equal_counts():
    ratio = [1.0, 0.5, 0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5]
    for place in range(2, 6):
        far = [0.9, 0.0, 0.5, 0.5, 0.5, 0.5, 0.4, 0.0, 0.9]  # nearer where δ is worse: does not count
        far[place] = 0.1
        seen = curve(ratio, divergence=far)
        assert by_ratio(seen)[0] == seen.scales[place]


@pytest.mark.parametrize("end", [[0.5, 0.5, 0.5], [0.4, 0.204, 0.202]], ids=["basin", "basin wider than the end"])
def test_the_predictions_decide_between_nearly_equal_ones(end):
    ratio = [1.0, 0.211, 0.205, 0.2, 0.204, 0.209, *end]
    for place in range(2, 6):
        far = [0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5]  # 0.211 is more than a hundredth from the best
        far[place] = 0.1
        seen = curve(ratio, divergence=far)
        scale, reason = by_ratio(seen)
        assert scale == seen.scales[place]
        assert f"δ = {ratio[place]:.3f}, the best of 9" in reason
        assert by_ratio(replace(seen, ratio=1 - seen.ratio, ratio_name="γ"))[0] == scale  # type: ignore[operator]
    alone = curve(ratio, divergence=None)  # no predictions: the smallest ε
    assert by_ratio(alone)[0] == alone.scales[2]


def test_the_predictions_do_not_lengthen_a_plateau():
    """Among good ε that last to the end the first one counts, and good is measured from the least δ of all."""
    far = [0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]
    seen = curve(PLATEAU, divergence=far)
    scale, reason = by_ratio(seen)
    assert scale == seen.scales[4]
    assert "δ = 0.105, where its plateau begins (best 0.100)" in reason
    ratio = [1.0, 0.9, 0.6, 0.118, 0.109, 0.1, 0.109, 0.109, 0.109]  # 0.118 is near those of the end, not to the best
    assert by_ratio(curve(ratio, divergence=far))[0] == seen.scales[4]


def test_a_tie_does_not_reach_over_a_half():
    """At ½ the model is as near to the original as to the retrained one: no choice, however near its predictions."""
    basin = curve([1.0, 0.8, 0.503, 0.496, 0.504, 0.7, 1.0], divergence=[0.9, 0.5, 0.3, 0.2, 0.1, 0.5, 0.9])
    assert by_ratio(basin)[0] == basin.scales[3]
    plateau = curve([1.0, 0.8, 0.504, 0.502, 0.498, 0.496, 0.499])
    assert by_ratio(plateau)[0] == plateau.scales[4]


@pytest.mark.parametrize("samples", [50, 400])
def test_no_choice_is_worse_than_the_best_by_more_than_a_plateau(samples):
    """Seed 0: 300 basins, with noise, in steps of a sample; a third ends in a plateau, a third in overflow."""
    generator, decided = np.random.default_rng(0), 0
    for trial in range(300):
        place, width, depth = generator.integers(1, 29), generator.uniform(1, 8), generator.uniform(0.2, 1)
        ratio = 1 - depth * np.exp(-(((np.arange(30) - place) / width) ** 2)) + 0.03 * generator.standard_normal(30)
        if trial % 3:
            ratio[place + 2 :] = NAN if trial % 3 == 1 else ratio[place] + 0.005
        ratio = np.clip(np.round(ratio * samples) / samples, 0, 1)
        seen = curve(ratio, divergence=generator.uniform(0, 2, 30))
        try:
            scale, _ = by_ratio(seen)
        except ssse.Undecided:
            continue
        decided += 1
        place = int(np.flatnonzero(seen.scales == scale)[0])
        assert ratio[place] <= np.nanmin(ratio) + choosing.PLATEAU
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
        (curve(None, "γ", recognised=[1.0, 0.5]), r'is the same for all .*\. criterion="divergence" works'),
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


def test_the_least_divergence():
    far = [0.9, 0.5, 0.3, 0.1, 0.05, 0.2, NAN]
    for ratio, name in ((None, "γ"), ([1.0, 0.0, 0.5, 0.9, 0.8, 0.7, NAN], "δ")):  # whatever γ or δ say
        seen = curve(ratio, name, divergence=far)
        assert by_divergence(seen) == (seen.scales[4], "KL = 0.05 on the forgotten samples, 1 before")
    tied = curve(divergence=[0.9, 0.1, 0.1, 0.1, 0.5])
    assert by_divergence(tied)[0] == tied.scales[1]
    gap = curve(divergence=[0.9, NAN, 0.3, 0.1, 0.2, np.inf])
    assert by_divergence(gap)[0] == gap.scales[3]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (curve([0.1] * 3, divergence=None), r"divergence is not finite at any ε on the grid: the outputs overflow"),
        (curve(divergence=[0.2, 0.1, 0.3], original_divergence=None), "divergence is not finite at any ε"),
        (curve(divergence=[NAN] * 5), "divergence is not finite at any ε"),
        (
            curve(divergence=[1.2, 1.1, 1.3]),
            r"No ε brings .* nearer to the retrained model's \(KL 1\.1 at best, 1 before\): choose others",
        ),
        (curve(divergence=[0.0] * 3, original_divergence=0.0), r"\(KL 0 at best, 0 before\)"),
        (curve(divergence=[0.1, 0.2, 0.3]), r"divergence is least at ε = 0\.1, at the edge .*: pass smaller ones"),
        (curve(divergence=[0.3, 0.2, 0.1]), r"divergence is least at ε = 10, at the edge .*: pass larger ones"),
        (curve(divergence=[0.3, 0.2, 0.1, NAN, NAN]), r"divergence is least at ε = 1, at the edge .* pass larger ones"),
        (curve(divergence=[0.3]), r"divergence is least at ε = 0\.1, at the edge"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_divergence_that_decides_nothing(seen, message):
    with pytest.raises(ssse.Undecided, match=message) as caught:
        by_divergence(seen)
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
    words = "10.0% of S recognised, chance is 10.0%, assuming that S is all of its class"
    assert by_chance(seen) == (seen.scales[2], words)
    attributes = curve(recognised=[1.0, 0.6, 0.5, 0.0, 0.3], chance=0.5, name="γ")
    assert by_chance(attributes)[0] == seen.scales[2]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (curve([0.5] * 3), r"no attribute that all of the forgotten samples have \(label 1\)"),
        (curve(recognised=[1.0, 0.5, 0.2]), r"No ε up to 10 .* still is recognised is 0\.200, chance is 0\.100"),
        (curve(recognised=[1.0, 0.5, NAN]), r"still is recognised is 0\.500, chance"),
        (curve(recognised=[0.0, 0.0, 0.0]), r"Chance is reached at ε = 0\.1, at the edge"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_recognition_that_decides_nothing(seen, message):
    with pytest.raises(ssse.Undecided, match=message):
        by_chance(seen)


# ------------------------------------------------------------------------------------------ figures


def test_the_figure_of_a_curve():
    half = small()
    found = half.calibrate(retrained=half.retrained, held_out=half.sample.part(half.rest))
    axes: list[Any] = found.figure().axes
    labels = [ax.get_ylabel() for ax in axes]
    assert [label.split("\n")[0] for label in labels] == [
        "normalised confusion distance δ",
        "KL of the predictions on S",
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
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), found.scan.divergence)
    assert axes[1].get_yscale() == "log"
    dashed = axes[1].lines[1]
    assert (dashed.get_linestyle(), set(dashed.get_ydata())) == ("--", {found.scan.original_divergence})
    np.testing.assert_array_equal(axes[2].lines[0].get_ydata(), found.scan.distance)
    assert [text.get_text() for text in axes[4].get_legend().get_texts()] == ["S", "T"]
    plain = found.scan.figure().axes
    assert [vertical(ax) for ax in plain] == [[]] * 5
    bare = replace(found.scan, ratio=None, divergence=None, distance=None, attack=None, retrained=None)
    assert [ax.get_ylabel() for ax in bare.figure().axes] == ["accuracy, %"]


def test_figures_of_little(tmp_path):
    """One ε, NaN, an ε outside of the grid, one at its end: drawn without a warning."""
    one = curve([0.3])
    short = curve([1.0, 0.4, NAN])
    blank = curve([1.0, 0.4, NAN], divergence=[NAN, 0.0, NAN], original_divergence=0.0)
    for seen, chosen in ((one, 0.1), (short, 99.0), (short, 10.0), (blank, 10.0)):
        figure = scan_figure(seen, chosen)
        figure.savefig(tmp_path / "figure.png", dpi=30)
        figure.savefig(tmp_path / "figure.svg")
        inside = seen.scales[0] <= chosen <= seen.scales[-1]
        assert vertical(figure.axes[0]) == ([chosen] if inside else [])
        assert [t.get_horizontalalignment() for t in figure.axes[0].texts] == (
            ["right" if chosen == 10 else "left"] if inside else []
        )


def test_the_heat_map(tmp_path):
    half = small()
    found = half.calibrate(retrained=half.retrained, dampings=[1e-1, 1e-3, 2e-2])
    figure = found.figure()
    axes: list[Any] = figure.axes
    ax, bar = axes
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
