"""Membership inference: hand-computed values, honest error rates, and members that do get caught."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logit
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve

from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics.attacks import member_rate, reference_attack, threshold_attack
from ssse.metrics.scores import confidences
from ssse.metrics.ulira import u_lira

NAN = float("nan")
finite = st.floats(-50, 50).map(lambda value: round(value, 3))
some = st.lists(finite, min_size=1, max_size=12)


def within(count: int, trials: int, rate: float = 0.95) -> bool:
    """Is this many out of so many what the rate gives, 999 times in 1000?"""
    low, high = stats.binom.interval(0.999, trials, rate)
    return low <= count <= high


# ── threshold_attack ──────────────────────────────────────────────────────────────────────────────────────────────


def test_threshold_attack_by_hand():
    found = threshold_attack([3.0, 1.0, 2.0], [0.0, 2.0, 1.5, -1.0])
    assert found.auc == pytest.approx((4 + 2 + 3.5) / 12)
    assert found.advantage == pytest.approx(1 - 2 / 4)  # at 1: all forgotten and two held-out samples are above
    assert found.flags[0].startswith("3 forgotten against 4 held-out samples cannot fail at level 0.05")


def test_the_interval_is_delongs_on_the_logit_scale():
    found = threshold_attack([1.0, 3.0], [0.0, 2.0])
    # placements (½, 1) on both sides: variances ⅛, over two samples each; Welch's degrees of freedom are 1 + 1
    margin = stats.t.ppf(0.975, 2) * math.sqrt(1 / 8) / (0.75 * 0.25)
    assert (found.low, found.high) == pytest.approx((expit(logit(0.75) - margin), expit(logit(0.75) + margin)))


def test_the_auc_is_scikit_learns():
    generator = np.random.default_rng(2)
    forgotten, held_out = generator.normal(0.3, 1, 37).round(1), generator.normal(0, 1, 61).round(1)
    expected = roc_auc_score(np.arange(98) < 37, np.concatenate([forgotten, held_out]))
    assert threshold_attack(forgotten, held_out).auc == pytest.approx(expected)


@pytest.mark.parametrize(("k", "h"), [(10, 10), (1, 30), (5, 200)])
def test_samples_all_apart_leave_an_interval(k, h):
    found = threshold_attack(np.arange(k) + 1000.0, np.arange(h))
    theta, others = found.low, (k + h) / 2 - 1
    variance = theta * (1 - theta) * (1 + others * ((1 - theta) / (2 - theta) + theta / (1 + theta))) / (k * h)
    assert (found.auc, found.high) == (1.0, 1.0)
    assert 1 - theta == pytest.approx(stats.norm.ppf(0.975) * math.sqrt(variance))
    below = threshold_attack(np.arange(k) - 1000.0, np.arange(h))
    assert (below.auc, below.low, below.high) == pytest.approx((0.0, 0.0, 1 - found.low))


@pytest.mark.parametrize(("forgotten", "held_out"), [([3.0, 4.0], [1.0, 2.0]), ([1.0, 1.0], [0.0, 0.0])])
def test_few_samples_are_tested_exactly_with_ties_or_without(forgotten, held_out):
    found = threshold_attack(forgotten, held_out)
    assert found.p_value == pytest.approx(2 / 6)  # of six ways to pick two of four, the two extreme ones
    assert found.passed
    assert "cannot fail at level 0.05: the smallest p-value is 0.33" in found.flags[0]


def test_equal_scores_tell_nothing():
    found = threshold_attack(np.full(30, 2.5), np.full(50, 2.5))
    assert (found.auc, found.p_value, found.advantage, found.passed) == (0.5, 1.0, 0.0, True)
    assert found.low < 0.5 < found.high
    assert found.flags == ("All scores are equal, so nothing can be told from them.",)


def test_over_forgetting_fails_and_is_named():
    generator = np.random.default_rng(0)
    found = threshold_attack(generator.normal(-2, 1, 40), generator.normal(0, 1, 40))
    assert found.auc < found.high < 0.5
    assert not found.passed
    assert found.flags[0].startswith("Over-forgotten")
    assert str(found).endswith("failed")


@settings(deadline=None, max_examples=40, derandomize=True)
@given(some, some, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_sides_mirror(forgotten, held_out, random):
    found = threshold_attack(forgotten, held_out)
    assert 0 <= found.low <= found.auc <= found.high <= 1
    assert 0 <= found.p_value <= 1
    shuffled = threshold_attack(random.sample(forgotten, len(forgotten)), random.sample(held_out, len(held_out)))
    assert _numbers(shuffled) == pytest.approx(_numbers(found))
    stretched = threshold_attack(np.exp(np.array(forgotten) / 10), np.exp(np.array(held_out) / 10))
    assert _numbers(stretched) == pytest.approx(_numbers(found))
    mirrored = threshold_attack(held_out, forgotten)
    assert (mirrored.auc, mirrored.low, mirrored.high, mirrored.p_value) == pytest.approx(
        (1 - found.auc, 1 - found.high, 1 - found.low, found.p_value)
    )


def _numbers(found):
    return found.auc, found.low, found.high, found.p_value, found.advantage


@pytest.mark.parametrize(("k", "h", "digits"), [(20, 60, 9), (40, 100, 1)])
def test_a_model_that_saw_neither_passes_at_the_nominal_rate(k, h, digits):
    generator = np.random.default_rng(k)
    audits = 1000
    values = generator.gumbel(3, 2, (audits, k + h)).round(digits)  # one digit: many ties
    assert within(sum(threshold_attack(row[:k], row[k:]).passed for row in values), audits)


@pytest.mark.parametrize(
    ("k", "h", "shift", "scale"), [(20, 20, 0.0, 1.0), (40, 40, 1.0, 1.0), (15, 150, 0.5, 3.0), (150, 15, 1.0, 1.0)]
)
def test_the_interval_covers_the_true_auc(k, h, shift, scale):
    truth = stats.norm.cdf(shift / math.hypot(1, scale))
    generator = np.random.default_rng(h)
    found = [threshold_attack(generator.normal(shift, scale, k), generator.normal(0, 1, h)) for _ in range(250)]
    covered = sum(one.low <= truth <= one.high for one in found)
    assert stats.binom.sf(covered, 250, 0.95) < 0.999  # not below 95 % …
    assert covered < 250  # … nor everything


# ── member_rate ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_member_rate_by_hand():
    # 1.5 tells 2, 3, 4 from 0, 1 without an error; a sample on it is half a member
    assert member_rate([0.5, 1.5, 1.4, 5.0], [3.0, 2.0, 4.0], [1.0, 0.0]) == pytest.approx(1.5 / 4)


def test_member_rate_takes_the_middle_of_equally_good_thresholds():
    # members 1 3 5 7 and non-members 0 2 4 6: 0.5, 2.5, 4.5 and 6.5 are equally good; of an even number the lower
    members, non_members = [1.0, 3.0, 5.0, 7.0], [0.0, 2.0, 4.0, 6.0]
    assert member_rate([2.4, 2.6], members, non_members) == 0.5
    # 0.5, 2.5 and 4.5
    assert member_rate([2.4, 2.6], [1.0, 3.0, 5.0], [0.0, 2.0, 4.0]) == 0.5


def test_member_rate_without_a_signal_is_flagged():
    nothing = member_rate([1.0, 1.0], [1.0, 1.0], [1.0])
    assert nothing == 0.5
    assert "means nothing" in nothing.flags[0]
    assert member_rate([0.0], [0.0], [1.0]).flags
    assert not member_rate([0.0], [1.0], [0.0]).flags


@settings(deadline=None, max_examples=40, derandomize=True)
@given(some, some, some, st.randoms(use_true_random=False))
def test_member_rate_ignores_order(forgotten, members, non_members, random):
    shuffled = [random.sample(values, len(values)) for values in (forgotten, members, non_members)]
    assert member_rate(*shuffled) == pytest.approx(float(member_rate(forgotten, members, non_members)))


# ── reference_attack ──────────────────────────────────────────────────────────────────────────────────────────────


def test_reference_attack_takes_off_the_references_mean():
    found = reference_attack([5.0, 1.0], [9.0, 2.0], [[4.0, 0.0], [2.0, 2.0]], [[9.0, 4.0], [9.0, 2.0]])
    plain = threshold_attack([2.0, 0.0], [0.0, -1.0])
    assert found == plain


def test_references_see_what_difficulty_hides():
    """Memorisation of 1 beside difficulties with a spread of 4: invisible plainly, plain with four references."""
    generator = np.random.default_rng(5)
    plain, calibrated, never = 0, 0, 0
    for _ in range(200):
        difficulty = generator.normal(0, 4, 120)
        phi = difficulty + generator.normal(0, 1, (6, 120))
        saw, saw_not, references = phi[0] + (np.arange(120) < 40), phi[1], phi[2:]
        plain += not threshold_attack(saw[:40], saw[40:]).passed
        calibrated += not reference_attack(saw[:40], saw[40:], references[:, :40], references[:, 40:]).passed
        never += reference_attack(saw_not[:40], saw_not[40:], references[:1, :40], references[:1, 40:]).passed
    assert plain < 60
    assert calibrated > 190
    assert within(never, 200)


# ── real models ───────────────────────────────────────────────────────────────────────────────────────────────────


class Digits:
    """Softmax regression with hardly any weight decay, on digits of which half have a random label: it memorises."""

    def __init__(self) -> None:
        x, y = load_digits(return_X_y=True)
        generator = np.random.default_rng(0)
        self.x = x / 16
        self.y = np.where(generator.random(len(y)) < 0.5, generator.integers(0, 10, len(y)), y)

    def fit(self, index: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=100, tol=1e-2, max_iter=2000).fit(self.x[index], self.y[index])

    def phi(self, model: LogisticRegression, index: np.ndarray) -> np.ndarray:
        return confidences(model.decision_function(self.x[index]), self.y[index], "classes")

    def others(self, generator: np.random.Generator, index: np.ndarray, count: int) -> np.ndarray:
        """Training samples that are not among these."""
        return generator.choice(np.setdiff1d(np.arange(len(self.y)), index), count, replace=False)


@cache
def digits() -> Digits:
    return Digits()


def test_real_models_threshold_and_reference():
    """Trained without S and without the held-out samples of its class: nominal. Trained with S: caught."""
    data, draws, resplits = digits(), 100, 4
    passed, calibrated, caught, taken = 0, 0, 0, []
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        pool = generator.permutation(np.flatnonzero(data.y == 8))[:80]
        rest, rest_of_reference = data.others(generator, pool, 160), data.others(generator, pool, 160)
        retrained, reference = data.fit(rest), data.fit(rest_of_reference)
        for _ in range(resplits):  # the model saw none of the pool, so every split of it is an audit of its own
            split = generator.permutation(pool)
            forgotten, held_out = data.phi(retrained, split[:20]), data.phi(retrained, split[20:])
            passed += threshold_attack(forgotten, held_out).passed
            easy, easy_held_out = data.phi(reference, split[:20])[None], data.phi(reference, split[20:])[None]
            calibrated += reference_attack(forgotten, held_out, easy, easy_held_out).passed
        kept, forget, held_out = rest[:80], pool[:20], pool[20:]
        original = data.fit(np.concatenate([kept, forget]))
        found = threshold_attack(data.phi(original, forget), data.phi(original, held_out))
        caught += not found.passed
        rate = member_rate(data.phi(original, forget), data.phi(original, kept), data.phi(original, rest[80:]))
        taken.append(float(rate))
    assert within(passed, draws * resplits)
    assert within(calibrated, draws * resplits)
    assert caught > 0.9 * draws
    assert np.mean(taken) > 0.9


def test_real_models_u_lira():
    """Two sets of models that never saw the samples; and models that did, which nothing was erased from."""
    data, generator = digits(), np.random.default_rng(1)
    chosen = generator.choice(len(data.y), 60, replace=False)
    never = np.stack([data.phi(data.fit(data.others(generator, chosen, 130)), chosen) for _ in range(256)])
    groups = never.reshape(16, 2, 8, 3, 20)  # 16 times 8 + 8 models, by 3 times 20 samples: 48 audits
    found = [u_lira(group[0, :, i], group[1, :, i], seed=i) for group in groups for i in range(3)]
    assert sum(one.passed for one in found) >= 42  # of 48; below happens once in 1000 at 95 %
    assert np.mean([one.accuracy for one in found]) == pytest.approx(0.5, abs=0.03)
    sample = chosen[:20]
    kept = [np.concatenate([data.others(generator, sample, 110), sample]) for _ in range(16)]
    members = np.stack([data.phi(data.fit(index), sample) for index in kept])
    caught = u_lira(members, never[:16, :20])
    assert caught.accuracy > 0.7
    assert caught.low > 0.6


# ── what must be refused ──────────────────────────────────────────────────────────────────────────────────────────

ONE, TWO = np.zeros(3), np.zeros((4, 3))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: threshold_attack([], [1.0]), "forgotten: there are no samples"),
        (lambda: threshold_attack([1.0], []), "held_out: there are no samples"),
        (lambda: threshold_attack([1.0, NAN], [1.0]), "forgotten: the confidence in sample 1 is NaN or infinite"),
        (lambda: threshold_attack([1.0], [math.inf]), "held_out: the confidence in sample 0"),
        (lambda: threshold_attack(TWO, ONE), r"forgotten: one confidence a sample .* \(4, 3\)"),
        (lambda: threshold_attack(["a"], ["b"]), "numbers are needed"),
        (lambda: member_rate(ONE, [NAN], ONE), "members: the confidence in sample 0"),
        (lambda: member_rate(ONE, ONE, []), "non_members: there are no samples"),
        (lambda: reference_attack(ONE, ONE, ONE, TWO), r"reference_forgotten: .* pass reference_forgotten\[None\]"),
        (lambda: reference_attack(ONE, ONE, TWO, TWO[:, :2]), r"same samples as held_out: 3 .*\(models, 3\).*\(4, 2\)"),
        (lambda: reference_attack(ONE, ONE, TWO, TWO[:2]), "reference_forgotten has 4 and reference_held_out 2"),
        (lambda: reference_attack(ONE, ONE, TWO * NAN, TWO), "model 0 in sample 0 is nan"),
        (lambda: u_lira(TWO[:3], TWO), "at least four erased models.*there are 3"),
        (lambda: u_lira(TWO, TWO[:1]), "at least four retrained models.*there are 1"),
        (lambda: u_lira(TWO, TWO[:, :2]), "same samples, as columns; erased has 3 and retrained 2"),
        (lambda: u_lira(TWO * NAN, TWO), "at least four erased models.*there are 0"),
        (lambda: u_lira(TWO + math.inf, TWO), "model 0 in sample 0 is inf"),
        (lambda: u_lira(ONE, TWO), r"shape \(models, samples\); these have \(3,\)"),
        (lambda: u_lira(np.where(np.eye(8, 8), 1.0, NAN), np.zeros((8, 8))), "two on each, .*too many NaN"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(call, match):
    with pytest.raises(InvalidData, match=match):
        call()


def test_targets_without_a_pair_are_refused():
    """Erased rows and retrained rows of one table, each all NaN where the other is not: no pair to judge."""
    erased = np.where(np.arange(12)[:, None] < 6, np.zeros((12, 3)), NAN)
    retrained = np.where(np.arange(12)[:, None] < 6, NAN, np.zeros((12, 3)))
    with pytest.raises(InvalidData, match=r"Only 0 of 6 pairs .*leave rows out that are all NaN"):
        u_lira(erased, retrained)
    assert u_lira(erased[:6], retrained[6:]).accuracy == 0.5


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, NAN])
def test_a_level_is_a_probability(level):
    for call in (
        lambda: threshold_attack(ONE, ONE, level=level),
        lambda: reference_attack(ONE, ONE, TWO, TWO, level=level),
        lambda: u_lira(TWO, TWO, level=level),
    ):
        with pytest.raises(InvalidSetting, match="level is the chance of a false alarm"):
            call()


@pytest.mark.parametrize("ties", [False, True])
def test_the_advantage_is_that_of_the_roc_curve(ties):
    draw = np.random.default_rng(5)
    for k, h in ((1, 4), (30, 17), (5, 200)):
        forgotten, held_out = draw.normal(0.5, 1, k), draw.normal(0, 1, h)
        if ties:
            forgotten, held_out = forgotten.round(), held_out.round()
        labels = np.arange(k + h) < k
        false, true, _ = roc_curve(labels, np.concatenate([forgotten, held_out]), drop_intermediate=False)
        found = threshold_attack(forgotten, held_out).advantage
        assert found == pytest.approx((true - false).max(), abs=1e-12)
