"""The audits in the table: what they say, and that they keep their level on real models."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor

from ssse import metrics
from tests.support.evaluation_problems import CASES, Case, Plain, evaluate, family, model, near, number, seeds

# ── the audits ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_notes_of_the_audits():
    found = evaluate(family(3, 2), CASES["classes"].splits)
    plain = Plain(family(3, 2), CASES["classes"].data, "classes")
    for name, given in family(3, 2).items():
        attacks = [
            metrics.threshold_attack(plain.phi(m, "forgotten"), plain.phi(m, "test_same")).passed for m in seeds(given)
        ]
        one = "pass" if attacks[0] else "FAIL"
        expected = one if len(attacks) == 1 else f"{sum(attacks)}/{len(attacks)} pass"
        assert found.cells["attack"][name].note == expected


def test_a_model_that_gives_s_away_fails():
    """It is sure of what it was to forget, and of nothing else; all say the same class."""
    data = {split: (x, model(0)(x).argmax(1)) for split, (x, _) in CASES["classes"].data.items()}

    def told(x: Tensor) -> Tensor:
        known = (x[:, None] == data["forgotten"][0]).all(2).any(1)
        return model(0)(x).detach() * torch.where(known, 50.0, 0.01)[:, None]

    found = evaluate({**family(2), "told": told}, Case("classes", data).splits)
    assert number(found, "told", "attack") > 0.99
    assert found.cells["attack"]["told"].note == "FAIL"
    assert found.cells["calibrated_attack"]["told"].note == "FAIL"
    over = evaluate({**family(2), "over": lambda x: -told(x)}, Case("classes", data).splits)
    assert any(flag.startswith("attack of over: Over-forgotten") for flag in over.flags)


def test_retrained_models_that_fail_void_the_row():
    """S is easy and the held-out samples are hard: every model fails, and none of them for having seen S."""
    splits = dict(CASES["classes"].splits)
    x, _ = CASES["classes"].data["forgotten"]
    easy, hard = model(0)(x).argmax(1), model(0)(x).argmin(1)
    splits |= {"forgotten": [(x, easy)], "test_same": [(x, hard)]}
    found = evaluate({"original": model(0), "retrained": [near(model(0), s, 0.01) for s in (1, 2)]}, splits)
    assert any("they never saw S and fail" in flag for flag in found.flags)
    assert not any("Over-forgotten" in flag for flag in found.flags)
    assert any("mirror each other" in flag for flag in found.flags)
    detail = found.cells["attack"]["original"].detail
    assert detail["p_value"] < 0.05
    assert detail["low"] < number(found, "original", "attack") <= detail["high"]
    assert found.cells["attack"]["retrained"].detail == {"passed": 0, "of": 2}


def train_together(x: Tensor, y: Tensor, weights: Tensor, seed: int, steps: int = 80) -> Tensor:
    """Softmax regressions at once, each on the samples whose weight is 1: weights (m, n) → θ (features, m, 10)."""
    n, m = len(x), len(weights)
    theta = torch.randn(x.shape[1], m, 10, generator=torch.Generator().manual_seed(seed))
    optimiser = torch.optim.Adam([theta], lr=0.15)
    share = (weights.T / weights.sum(1))[:, :, None]
    truth = F.one_hot(y, 10)[:, None]
    for _ in range(steps):
        z = (x @ theta.view(x.shape[1], -1)).view(n, m, 10)
        theta.grad = (x.T @ ((z.softmax(2) - truth) * share).view(n, -1)).view(theta.shape)
        optimiser.step()
    return theta


def test_the_audits_keep_their_level_on_real_models():
    """Digits with a third of the labels drawn at random, which training has to memorise. In each of 100 rounds S and
    the held-out samples are drawn from the same pool; the fresh model is trained without S and is not a reference.
    """
    rounds, size, held, level = 100, 60, 80, 0.2
    generator = np.random.default_rng(0)
    images, digits = load_digits(return_X_y=True)
    pool = generator.permutation(len(images))[:300]
    x = F.pad(torch.tensor(images[pool] / 16, dtype=torch.float32), (0, 1), value=1.0)
    y = torch.tensor(np.where(generator.random(300) < 0.33, generator.integers(0, 10, 300), digits[pool]))
    orders = [torch.tensor(generator.permutation(300)) for _ in range(rounds)]
    weights = torch.zeros(rounds, 3, 300)
    for trained, order in zip(weights, orders, strict=True):
        trained[:, order[size + held :]] = 1
        trained[0, order[:size]] = 1
    theta = train_together(x, y, weights.view(-1, 300), seed=1)
    passed = {(name, key): 0 for name in ("original", "fresh") for key in ("attack", "calibrated_attack")}
    for i, order in enumerate(orders):
        splits = {"forgotten": order[:size], "test": order[size : size + held]}
        three = [lambda x, own=theta[:, 3 * i + j]: x @ own for j in range(3)]
        found = evaluate(
            dict(zip(("original", "fresh", "retrained"), three, strict=True)),
            {split: [(x[index], y[index])] for split, index in splits.items()},
            level=level,
        )
        for name, key in passed:
            passed[name, key] += found.cells[key][name].note == "pass"
    low, high = stats.binom.interval(0.999, rounds, 1 - level)
    for key in ("attack", "calibrated_attack"):
        assert low <= passed["fresh", key] <= high, passed
        assert passed["original", key] <= 0.1 * rounds, passed
