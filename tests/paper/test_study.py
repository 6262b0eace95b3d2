"""From requests to the summary: removals, the ε a method is judged at, means over requests, and one study whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssse.paper.cache import Cache
from ssse.paper.convex import Convex, Fits, Tabular
from ssse.paper.data.digits import digit_attributes, digit_classes
from ssse.paper.judged_scale import START, best_index, index_of
from ssse.paper.plots import common_scales, differences_on, over_requests, values_of
from ssse.paper.settings import Settings
from ssse.paper.study import (
    Curve,
    Method,
    Removal,
    Scanner,
    accuracies,
    differences,
    draw_removals,
    mean_of,
    numbers,
    spread_of,
    value_at,
)
from ssse.paper.summary import at_chosen, chosen_scales, scale_words, summary_rows

NONE = None  # what NaN is in a curve that was kept
MEMBER = torch.rand(300, 3, generator=torch.manual_seed(0)) < torch.tensor([0.4, 0.2, 0.01])
TEST_MEMBER = torch.rand(50, 3, generator=torch.manual_seed(1)) < 0.5
KINDS = {0: "hats", 2: "wigs"}
RATES = (0.25, 0.5, 1.0)


def removals(seed: int = 3, rates: tuple[float, ...] = RATES) -> list[Removal]:
    return draw_removals(KINDS, MEMBER, TEST_MEMBER, rates, seed)


def test_removals_are_of_their_kind_and_rate():
    found = removals()
    assert [(r.kind, r.place, r.rate) for r in found] == [(k, p, rate) for p, k in KINDS.items() for rate in RATES]
    assert [r.words for r in found[:2]] == ["25% of hats", "50% of hats"]
    for r in found:
        members = MEMBER[:, r.place].nonzero()[:, 0]
        assert len(r.forget) == max(1, round(r.rate * len(members)))
        assert torch.isin(r.forget, members).all()
        assert torch.equal(torch.cat([r.forget, r.keep]).sort().values, torch.arange(300))
        assert torch.equal(r.same, TEST_MEMBER[:, r.place])
    assert torch.equal(found[2].forget, MEMBER[:, 0].nonzero()[:, 0])


def test_a_larger_rate_takes_more_of_the_same():
    small, half, whole = (set(r.forget.tolist()) for r in removals()[:3])
    assert small < half < whole


def test_at_least_one_sample_goes():
    assert [len(r.forget) for r in removals(rates=(1e-9,))] == [1, 1]


def test_removals_are_drawn_by_the_seed():
    one, same, other = (removals(seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.forget, b.forget) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0].forget, other[0].forget)
    assert torch.equal(one[2].forget, other[2].forget)  # all of a kind is all of it


def curve(ratio: Sequence[float | None] | None, name: str = "γ", **more: Any) -> Curve:
    """A curve at ε = 0.1, 1, 10, …"""
    length = len(more.get("scales", ratio or [0, 0, 0]))
    flat = {"divergence": [1.0] * length, "distance": [0.5] * length, "mean_gap": [1.0] * length}
    scales = [10.0 ** (i - 1) for i in range(length)]
    accuracy = {"retained": [0.9] * length, "forgotten": [0.5] * length}
    return {"scales": scales, "ratio": ratio, "ratio_name": name, "seconds": 1.0, "accuracy": accuracy} | flat | more


@pytest.mark.parametrize(
    ("values", "name", "divergence", "whole", "place"),
    [
        ([0.5, 0.7, 0.9, 0.6], "γ", [1, 2, 3, 0], False, 2),  # the most
        ([0.5, 0.3, 0.1, 0.4], "δ", [1, 2, 3, 0], False, 2),  # the least
        ([0.5, 0.895, 0.9, 0.6], "γ", [1, 2, 3, 0], False, 1),  # nearly a tie, which the predictions break
        ([0.5, 0.895, 0.9, 0.6], "γ", [1, 2, 3, 0], True, 1),
        ([0.5, 0.885, 0.9, 0.6], "γ", [1, 2, 3, 0], False, 2),  # no tie
        ([0.1, 0.1, 0.1, 0.4], "δ", [3, 1, 2, 0], False, 1),
        ([NONE, 0.895, 0.9, 0.6], "γ", [NONE, NONE, 3, 0], False, 2),  # NaN is never chosen
        ([0.5, 0.9, 0.9, 0.6], "γ", [NONE] * 4, False, 1),  # no predictions: the first
        ([NONE] * 4, "γ", [1, 2, 3, 0], False, 0),
        ([NONE] * 4, "δ", [1, 2, 3, 0], True, 0),
        (None, "γ", [1, 2, 3, 0], False, 0),
        ([0.6, 0.04, 0.0, 0.02], "δ", [9, 9, 1, 9], True, 1),  # a whole class: where the plateau starts
        ([0.6, START + 0.01, 0.0, 0.02], "δ", [9, 9, 9, 1], True, 2),
        ([0.6, START - 0.01, 0.0, 0.4], "δ", [9, 9, 9, 1], True, 2),  # rises again: no plateau, so the least
        ([NONE, NONE, 0.04, 0.0], "δ", [9, 9, 9, 1], True, 2),
    ],
)
def test_the_best_index(values, name, divergence, whole, place):
    seen = curve(values, name, divergence=divergence)
    assert best_index(seen, whole) == place
    assert index_of(seen, "ratio", whole) == place


@pytest.mark.parametrize(
    ("chosen", "place"), [("gap", 2), ("searched", 1), (1.0, 1), (0.3, 0), (0.4, 1), (1e-9, 0), (1e9, 3)]
)
def test_other_ways_to_choose(chosen, place):
    """ε is compared by its ratio: 0.3 is nearer to 0.1 than to 1."""
    seen = curve([0.9, 0.1, 0.1, 0.1], mean_gap=[3.0, NONE, 0.5, 0.7], searched=0.8)
    assert index_of(seen, chosen, False) == place


def test_chance_is_reached_first_where_so_few_are_recognised():
    seen = curve([0.5] * 4, recognised=[0.9, NONE, 0.1, 0.0])
    assert [index_of(seen, "chance", True, chance) for chance in (0.95, 0.1, 0.05)] == [0, 2, 3]
    assert index_of(curve([0.5] * 4, recognised=[0.9, 0.8, 0.7, 0.6]), "chance", True, 0.1) == 3  # never: the last


def test_numbers_of_a_curve():
    np.testing.assert_array_equal(numbers([1.0, None]), [1.0, np.nan])
    assert len(numbers(None)) == 0
    seen = curve([0.5, None])
    assert value_at(seen, "ratio", 0) == 0.5
    assert np.isnan(value_at(seen, "ratio", 1))
    assert np.isnan(value_at(curve(None), "ratio", 0))


def test_differences_are_in_points_and_have_no_sign():
    seen = curve([0.5] * 3, accuracy={"retained": [0.9, None, 0.5]})
    np.testing.assert_allclose(differences(seen, "retained", {"retained": 0.7}), [20, np.nan, 20])


def test_means_and_spreads_leave_nan_out():
    assert (mean_of([1.0, np.nan, 4.0]), spread_of([1.0, np.nan, 4.0])) == (2.5, 1.5)
    assert np.isnan([mean_of([np.nan]), spread_of([]), mean_of([])]).all()


def answer(rate: float, curves: dict[str, Curve], original: float = 0.9, retrained: float = 0.8) -> dict[str, Any]:
    splits = ("retained", "forgotten")
    return {
        "rate": rate,
        "retrain_seconds": 10 * rate,
        "original": dict.fromkeys(splits, original),
        "retrained": dict.fromkeys(splits, retrained),
        "curves": curves,
    }


PAPER = Method("paper", "the paper's", "paper")
TUNED = Method("tuned", "tuned", "baseline", 1.0, "S and D")
SEARCHED = Method("paper", "searched", "ours", "searched")
UNKNOWN = Method("nobody has it", "unknown", "ours")
ANSWERS = [
    answer(
        0.5,
        {"paper": curve([0.2, 0.9, 0.4], mean_gap=[9, 1.0, 9], distance=[9, 0.1, 9], searched=0.1, seconds=2.0)},
        original=0.9,
    ),
    answer(
        0.5,
        {
            "paper": curve([0.2, 0.4, 0.7], mean_gap=[9, 9, 4.0], distance=[9, 9, NONE], searched=1.0, seconds=4.0),
            "tuned": curve([0.3], scales=[1.0], mean_gap=[0.5]),
        },
        original=0.6,
    ),
    answer(1.0, {"paper": curve([0.3, 0.02, 0.0], "δ", mean_gap=[9, 2.0, 9], searched=1.0)}),
]


def test_the_lines_of_the_summary():
    lines = summary_rows(ANSWERS, [PAPER, TUNED, SEARCHED, UNKNOWN], "digits", {0.5: {"gap": 0.25, "seconds": 3.0}})
    assert [(line.removed, line.method) for line in lines] == [
        ("100%", "the original model: nothing erased"),
        ("100%", "the paper's"),
        ("100%", "searched"),
        ("50%", "the original model: nothing erased"),
        ("50%", "the paper's"),
        ("50%", "tuned"),
        ("50%", "searched"),
        ("50%", "noise floor: two retrained seeds"),
    ]
    assert {line.data for line in lines} == {"digits"}
    whole, original, paper, tuned, floor = lines[1], lines[3], lines[4], lines[5], lines[7]
    # ε = 1 in the one and 10 in the other request; gaps of 1 and 4 points
    assert (paper.gap, paper.gap_spread, paper.distance) == (2.5, 1.5, 0.1)
    assert paper.ratio == pytest.approx(0.8)
    assert (paper.ratio_name, paper.scale, paper.erase_seconds, paper.retrain_seconds) == (
        "γ",
        "1–10, best ratio",
        3.0,
        5.0,
    )
    # |0.9 − 0.8| and |0.6 − 0.8|
    assert (original.gap, original.gap_spread) == (pytest.approx(15.0), pytest.approx(5.0))
    assert (original.ratio, original.scale, original.group) == (None, "–", "floor")
    assert (tuned.gap, tuned.gap_spread, tuned.scale, tuned.needs) == (0.5, 0.0, "–", "S and D")
    assert (floor.gap, floor.gap_spread, floor.retrain_seconds, floor.group) == (0.25, None, 3.0, "floor")
    assert (whole.ratio_name, whole.scale, whole.gap) == ("δ", "1, best ratio", 2.0)


def test_chance_is_for_whole_classes():
    method = Method("a", "by chance", "ours", "chance")
    seen = {"a": curve([0.5, 0.5, 0.5], "δ", recognised=[0.9, 0.1, 0.0], mean_gap=[9, 3.0, 9])}
    lines = summary_rows([answer(rate, seen) | {"chance": 0.1} for rate in (0.5, 1.0)], [method], "digits", {})
    assert [(line.removed, line.gap) for line in lines if line.method == "by chance"] == [("100%", 3.0)]


def test_the_scale_in_words():
    scales = np.array([0.4, 1.26])
    assert scale_words(PAPER, scales) == "0.4–1.3, best ratio"
    assert scale_words(SEARCHED, scales[:1]) == "0.4, search"
    assert scale_words(Method("a", "a", "baseline", "gap"), scales) == "0.4–1.3, best gap"
    assert scale_words(Method("a", "a", "ours", 1.0), scales) == "1"


def test_values_where_a_method_stands():
    assert at_chosen(ANSWERS, PAPER, 0.5, "mean_gap").tolist() == [1.0, 4.0]
    assert at_chosen(ANSWERS, TUNED, 0.5, "mean_gap").tolist() == [0.5]
    assert chosen_scales(ANSWERS, SEARCHED).tolist() == [0.1, 1.0, 1.0]
    assert chosen_scales(ANSWERS, SEARCHED, 0.5).tolist() == [0.1, 1.0]


EXTRA = [
    answer(0.5, {"a": curve([0.2, 0.9, 0.4, 0.6], scales=[0.1, 0.7, 1.0, 10.0])}),
    answer(0.5, {"a": curve([0.4, 0.8, NONE], scales=[0.1, 1.0, 10.0])}, retrained=0.6),
    answer(1.0, {"a": curve([0.0, 0.0, 0.0])}),
    answer(0.5, {"b": curve([0.0, 0.0, 0.0])}),
]


def test_scales_that_all_curves_have():
    curves = [entry["curves"]["a"] for entry in EXTRA[:3]]
    assert common_scales(curves).tolist() == common_scales(curves[::-1]).tolist() == [0.1, 1.0, 10.0]
    assert common_scales(curves[:1]).tolist() == [0.1, 0.7, 1.0, 10.0]


def test_mean_and_band_over_requests():
    seen = over_requests(EXTRA, "a", 0.5, "label", values_of("ratio"), mark=True)
    assert (seen.label, seen.scales.tolist()) == ("label", [0.1, 1.0, 10.0])
    np.testing.assert_allclose(seen.mean, [0.3, 0.6, np.nan])  # at 10 one of them overflowed: no mean of survivors
    np.testing.assert_allclose(seen.spread, [0.1, 0.2, np.nan])
    assert seen.chosen == 1.0
    assert over_requests(EXTRA, "a", 0.5, "", values_of("ratio")).chosen is None


def test_the_mark_is_at_the_least_of_what_should_be_small():
    answers = [answer(0.5, {"a": curve([0.5, 0.1, 0.9], "δ")})]
    assert over_requests(answers, "a", 0.5, "", values_of("ratio"), mark=True).chosen == 1.0


def test_differences_over_requests():
    """The accuracy on S is 0.5 throughout, the retrained models' 0.8 and 0.6."""
    seen = over_requests(EXTRA, "a", 0.5, "", differences_on("forgotten"))
    np.testing.assert_allclose([seen.mean, seen.spread], [[20.0] * 3, [10.0] * 3])


def test_an_ε_at_which_nothing_is_known_has_no_mean():
    answers = [answer(0.5, {"a": curve([0.5, NONE, 0.9])}) for _ in range(2)]
    seen = over_requests(answers, "a", 0.5, "", values_of("ratio"), mark=True)
    np.testing.assert_array_equal(seen.mean, [0.5, np.nan, 0.9])
    assert seen.chosen == 10.0


def test_a_request_without_a_ratio_is_left_out():
    answers = [answer(0.5, {"a": curve(None)}), answer(0.5, {"a": curve([0.5, 0.6, 0.7])})]
    np.testing.assert_allclose(over_requests(answers, "a", 0.5, "", values_of("ratio")).mean, [0.5, 0.6, 0.7])


def test_digits_as_classes():
    found = digit_classes()
    assert (found.x.shape, found.y.shape, found.y.dtype) == ((1797, 64), (1797,), torch.int64)
    assert (float(found.x.min()), float(found.x.max())) == (0.0, 1.0)
    assert found.names == tuple(f"digit {d}" for d in range(10))
    assert torch.bincount(found.y).min() > 170


def test_digits_as_attributes():
    found, digit = digit_attributes(), digit_classes()
    assert torch.equal(found.x, digit.x)
    assert found.y.shape == (1797, len(found.names))
    assert len(set(found.names)) == len(found.names)
    assert set(found.y.unique().tolist()) == {0.0, 1.0}
    assert found.digest != digit.digest
    share = dict(zip(found.names, found.y.mean(0).tolist(), strict=True))
    assert all(0 < rate < 0.8 for rate in share.values())
    assert sum(rate <= 0.2 for rate in share.values()) >= 5  # those that the experiment removes
    for name, digits in (("has a loop", (0, 6, 8, 9)), ("a prime", (2, 3, 5, 7)), ("even", range(0, 10, 2))):
        assert sorted(digit.y[found.y[:, found.names.index(name)] == 1].unique().tolist()) == sorted(digits)


def test_γ_is_defined_for_the_attributes_that_are_removed():
    y = digit_attributes().y
    rare = y[:, y.mean(0) <= 0.2]
    assert all(y[has == 1].std(0).max() > 0 for has in rare.mT)


N, DECAY = 500, 1e-4
OUTPUT = {"structure": "dense", "blocks": "output"}


@once
def tabular(task: str) -> Tabular:
    found = digit_attributes() if task == "attributes" else digit_classes()
    x = found.x[: N + 300] / found.x.square().sum(1).mean().sqrt()
    y = found.y[: N + 300]
    return Tabular(x[:N], y[:N], x[N:], y[N:], found.names, "digits")


def convex(task: str, **settings: Any) -> Convex:
    exact = OUTPUT if task == "attributes" else {"structure": "matrix_free"}
    loss = "binary_cross_entropy" if task == "attributes" else "cross_entropy"
    return Convex(Settings(show_progress=False, **settings), tabular(task), loss, DECAY, Fits(OUTPUT, OUTPUT, exact))


def two_removals(data: Tabular) -> list[Removal]:
    return draw_removals({3: "digit 3"}, data.member, data.test_member, (0.5, 1.0), 0)


class ByHand:
    """Σ over samples of gradient and Hessian of a linear model, dense, in float64."""

    def __init__(self, study: Convex):
        self.x, self.y = study.data.x.numpy(), study.data.y.numpy()
        self.weights = study.trained["weights"].numpy()
        self.classes = self.y.ndim == 1
        z = self.x @ self.weights.T
        self.p = np.exp(z) / np.exp(z).sum(1, keepdims=True) if self.classes else 1 / (1 + np.exp(-z))
        self.target = np.eye(10)[self.y] if self.classes else self.y

    def gradient(self, part: Tensor) -> np.ndarray:
        i = part.numpy()
        return ((self.p[i] - self.target[i]).T @ self.x[i] + len(i) * DECAY * self.weights).ravel()

    def hessian(self, part: Tensor) -> np.ndarray:
        """Of the loss alone."""
        i = part.numpy()
        p, x = self.p[i], self.x[i]
        if self.classes:
            inner = np.eye(10) * p[:, :, None] - p[:, :, None] * p[:, None, :]
        else:
            inner = np.eye(p.shape[1]) * (p * (1 - p))[:, :, None]
        return np.einsum("nab,ni,nj->aibj", inner, x, x, optimize=True).reshape(2 * (self.weights.size,))

    def empirical(self, part: Tensor) -> np.ndarray:
        """Σ∇ℓ∇ℓᵀ, of which the blocks of one output each are kept."""
        i = part.numpy()
        outputs, features = self.weights.shape
        found = np.zeros((outputs, features, outputs, features))
        for a in range(outputs):
            rows = (self.p[i, a] - self.target[i, a])[:, None] * self.x[i]
            found[a, :, a] = rows.T @ rows
        return found.reshape(2 * (self.weights.size,))


@pytest.fixture(params=["attributes", "classes"])
def answered(request, monkeypatch) -> tuple[Convex, list[Removal], list[dict[str, Any]], list[list[Tensor]]]:
    """A study, its removals, the answers, and the directions that were measured."""
    directions: list[list[Tensor]] = []
    curve = Scanner.curve

    def watched(self: Scanner, direction: Tensor, *args: Any, **how: Any) -> Curve:
        directions[-1].append(direction)
        return curve(self, direction, *args, **how)

    monkeypatch.setattr(Scanner, "curve", watched)
    study = convex(request.param)
    found = []
    for removal in two_removals(study.data):
        directions.append([])
        found.append(study.answer(removal))
    return study, two_removals(study.data), found, directions


def relative(found: Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.numpy().ravel() - expected) / np.linalg.norm(expected))


def test_a_study_against_the_dense_truth(answered):
    study, removals, answers, directions = answered
    by_hand, everything, n = ByHand(study), torch.arange(N), N
    assert np.linalg.norm(by_hand.gradient(everything)) / n < 1e-7  # θ* is the minimum
    for removal, found, looked in zip(removals, answers, directions, strict=True):
        k, eye = len(removal.forget), np.eye(by_hand.weights.size)
        right = by_hand.gradient(removal.forget)
        np.testing.assert_allclose(right, -by_hand.gradient(removal.keep), atol=n * 1e-7)
        steps = dict(zip(("paper", "empirical_out", "default", "hessian", "exact"), looked, strict=False))

        # One step of Newton's method on what training minimises without S, from θ*.
        newton = np.linalg.solve(by_hand.hessian(removal.keep) + (n - k) * DECAY * eye, right)
        assert relative(steps["exact"], newton) < 1e-6

        over_all = n / (n - k)
        hessian = np.linalg.solve(by_hand.hessian(everything) + n * DECAY * eye, right)
        assert relative(steps["hessian"], over_all * hessian) < 1e-6
        paper = np.linalg.solve(by_hand.empirical(everything) + n * DECAY * eye, right)
        assert relative(steps["paper"], over_all * paper) < 1e-6
        out = np.linalg.solve(by_hand.empirical(removal.keep) + (n - k) * DECAY * eye, right)
        assert relative(steps["empirical_out"], out) < 1e-6

        curves = found["curves"]
        exact = value_at(curves["exact"], "distance", index_of(curves["exact"], 1.0, removal.rate == 1.0))
        assert exact < np.nanmin(numbers(curves["paper"]["distance"]))
        moved, goal = by_hand.weights.ravel() + newton, study.retrained(removal)[0].weight.detach().numpy().ravel()  # type: ignore[union-attr]
        left, away = np.linalg.norm(moved - goal), np.linalg.norm(newton)
        assert exact == pytest.approx(left / (left + away), rel=1e-5)


def test_requests_with_the_same_samples_stay_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(Convex, "_answer", lambda _, removal: {"rate": removal.rate, "kind": removal.kind})
    study = convex("classes", cache=Cache(tmp_path))
    small = draw_removals({3: "digit 3"}, study.data.member, study.data.test_member, (0.001, 0.002), 0)
    assert [study.answer(removal)["rate"] for removal in small] == [0.001, 0.002]


def test_what_an_answer_says(answered):
    study, removals, answers, _ = answered
    for removal, found in zip(removals, answers, strict=True):
        assert (found["kind"], found["rate"], found["k"], found["n"]) == (
            "digit 3",
            removal.rate,
            len(removal.forget),
            N,
        )
        splits = study.splits(removal)
        assert {name: sum(len(y) for _, y in batches) for name, batches in splits.items()} == {
            "retained": N - len(removal.forget),
            "forgotten": len(removal.forget),
            "test_other": int((~removal.same).sum()),
            "test_same": int(removal.same.sum()),
        }
        x, y = study.data.x[removal.keep], study.data.y[removal.keep]
        z = study.model(x)
        right = z.argmax(1) == y if y.dim() == 1 else (z > 0) == (y > 0)
        assert found["original"]["retained"] == pytest.approx(float(right.double().mean()))
        assert found["retrained"] == pytest.approx(accuracies(study.retrained(removal)[0], splits))
        exact = found["curves"]["exact"]
        assert exact["searched"] in exact["scales"]
        assert 1.0 in [pytest.approx(s) for s in exact["scales"]]
