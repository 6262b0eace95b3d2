"""U-LiRA: against a slow one in words, and honest intervals on models that never saw the samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ssse.metrics.ulira import u_lira
from tests.metrics.test_attacks import within
from tests.support.refusals import NAN

# ── u_lira ────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw(generator: np.random.Generator, models: int, mean: np.ndarray, spread: np.ndarray, common: float = 0.6):
    """Models whose confidences share a part, as those of one network do."""
    own = math.sqrt(1 - common**2) * generator.normal(size=(models, len(mean)))
    return mean + spread * (common * generator.normal(size=(models, 1)) + own)


def u_lira_in_words(erased: np.ndarray, retrained: np.ndarray, seed: int) -> list[float]:
    """The score of each pair of targets, for equally many models; the slow way."""
    models, samples = erased.shape
    order = np.random.default_rng(seed).permutation(models)
    targets, shadows = order[: (models + 1) // 2], order[(models + 1) // 2 :]
    fits, enough = {}, {}
    for name, side in (("e", erased), ("r", retrained)):
        residuals, degrees = 0.0, 0
        for i in range(samples):
            values = [side[j, i] for j in shadows if not np.isnan(side[j, i])]
            fits[name, i] = (np.mean(values), np.var(values, ddof=1))
            enough[name, i] = len(values) >= 16
            residuals += np.var(values) * len(values)
            degrees += len(values) - 1
        fits[name] = residuals / degrees
    scores = []
    for j in targets:
        shares = []
        for name, other, side in (("e", "r", erased), ("r", "e", retrained)):
            right = []
            for i in range(samples):
                if np.isnan(side[j, i]):
                    continue
                own = enough["e", i] and enough["r", i]
                density = {
                    n: stats.norm.logpdf(side[j, i], fits[n, i][0], math.sqrt(fits[n, i][1] if own else fits[n]))
                    for n in "er"
                }
                right.append(density[name] > density[other])
            shares.append(np.mean(right))
        scores.append(np.mean(shares))
    return scores


@pytest.mark.parametrize(("models", "gaps"), [(9, False), (40, False), (40, True)])
def test_u_lira_is_the_slow_one(models, gaps):
    generator = np.random.default_rng(models)
    mean, spread = generator.normal(2, 1, 12), np.exp(generator.normal(0, 0.5, 12))
    erased, retrained = draw(generator, models, mean + 0.5, spread), draw(generator, models, mean, 1.3 * spread)
    if gaps:  # about 17 shadows a sample, so that some have their own variance and some do not
        erased[generator.random(erased.shape) < 0.15] = NAN
        retrained[generator.random(retrained.shape) < 0.15] = NAN
    found, scores = u_lira(erased, retrained, seed=3), u_lira_in_words(erased, retrained, seed=3)
    margin = stats.t.ppf(0.975, len(scores) - 1) * np.std(scores, ddof=1) / math.sqrt(len(scores))
    assert found.accuracy == pytest.approx(np.mean(scores))
    assert (found.low, found.high) == pytest.approx((np.mean(scores) - margin, np.mean(scores) + margin))
    assert (found.shadows, found.targets) == ((models // 2, models // 2), (models + 1) // 2)
    pooled = [flag for flag in found.flags if flag.startswith("Variance pooled")]
    assert bool(pooled) == (models == 9 or gaps)
    assert not gaps or ("of 12" in pooled[0] and "for 12 of 12" not in pooled[0])


def test_u_lira_certain_attack_keeps_an_interval():
    generator = np.random.default_rng(0)
    erased, retrained = generator.normal(50, 1, (20, 5)), generator.normal(0, 1, (20, 5))
    found = u_lira(erased, retrained)
    assert (found.accuracy, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - stats.t.ppf(0.975, 9) * 0.05)  # one of ten targets wrong on one side
    assert not found.passed
    assert any("score alike" in flag for flag in found.flags)


def test_u_lira_on_identical_models_is_a_coin():
    values = np.tile(np.random.default_rng(0).normal(size=7), (8, 1))
    found = u_lira(values, values[:6])
    assert found.accuracy == 0.5
    assert found.passed
    assert any("erased and retrained are the same" in flag for flag in found.flags)
    apart = u_lira(values + 1e-3, values)
    assert apart.accuracy == 1.0
    assert any("raised to a floor" in flag for flag in apart.flags)


@pytest.mark.parametrize(("erased", "retrained"), [(8, 8), (16, 16), (40, 40), (8, 24)])
@pytest.mark.parametrize("common", [0.0, 0.9])
def test_u_lira_on_models_that_never_saw_the_samples(erased, retrained, common):
    generator = np.random.default_rng(erased + retrained)
    audits = 500
    found = []
    for seed in range(audits):
        mean, spread = generator.normal(3, 2, 30), np.exp(generator.normal(0, 0.5, 30))
        sides = [draw(generator, count, mean, spread, common) for count in (erased, retrained)]
        found.append(u_lira(sides[0], sides[1], seed=seed))
    assert within(sum(one.passed for one in found), audits)
    assert np.mean([one.accuracy for one in found]) == pytest.approx(0.5, abs=0.02)


def test_u_lira_when_each_model_has_its_own_forget_set():
    """Row j of both sides is one model: some samples erased, others never seen, the rest trained on."""
    generator = np.random.default_rng(11)
    audits, passed, caught = 400, 0, 0
    for seed in range(audits):
        mean, spread = generator.normal(3, 2, 40), np.exp(generator.normal(0, 0.5, 40))
        phi, status = draw(generator, 24, mean, spread), generator.random((24, 40))
        never = np.where(status > 0.5, phi, NAN)
        passed += u_lira(np.where(status < 0.3, phi, NAN), never, seed=seed).passed
        caught += not u_lira(np.where(status < 0.3, phi + spread, NAN), never, seed=seed).passed
    assert within(passed, audits)
    assert caught > 0.95 * audits


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.permutations(range(6)), st.integers(0, 5))
def test_u_lira_ignores_the_order_of_samples(order, seed):
    generator = np.random.default_rng(seed)
    erased, retrained = generator.normal(0.5, 1, (8, 6)), generator.normal(0, 1, (10, 6))
    one, other = u_lira(erased, retrained), u_lira(erased[:, order], retrained[:, order])
    assert (one.accuracy, one.low, one.high) == pytest.approx((other.accuracy, other.low, other.high))


def test_leaving_one_out_would_be_overconfident():
    """Why the models are halved: fits that share their shadows give intervals that cover far less than they claim."""
    generator, models, samples, rounds, covered = np.random.default_rng(0), 16, 10, 400, 0
    for _ in range(rounds):
        sides = generator.normal(size=(2, models, samples)) + 0.5 * generator.normal(size=(2, models, 1))
        rest = (models * sides.mean(1, keepdims=True) - sides) / (models - 1)  # means without each model in turn
        nearer = np.abs(sides - rest) < np.abs(sides - rest[::-1])
        scores = nearer.mean((0, 2))
        margin = stats.t.ppf(0.975, models - 1) * scores.std(ddof=1) / math.sqrt(models)
        covered += abs(scores.mean() - 0.5) <= margin
    assert covered < 0.9 * rounds
