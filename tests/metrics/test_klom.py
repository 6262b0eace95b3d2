"""KLoM: hand-computed histograms, the floor, and many samples at once."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssse.errors import InvalidData, InvalidSetting
from ssse.metrics.klom import Klom, klom

NAN = float("nan")


def in_words(first: np.ndarray, second: np.ndarray, bins: int, clip: float) -> float:
    """One sample's divergence, by numpy's own histogram."""
    first, second = np.clip(first, -clip, clip), np.clip(second, -clip, clip)
    edges = np.histogram_bin_edges(np.concatenate([first, second]), bins)
    p, q = (np.histogram(values, edges)[0] / len(values) for values in (first, second))
    return sum(a * math.log(a / (b or 1e-5)) for a, b in zip(p, q, strict=True) if a)


def halves(erased: np.ndarray, retrained: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count, generator = min(len(retrained) // 2, len(erased)), np.random.default_rng(seed)
    chosen, order = generator.permutation(len(erased))[:count], generator.permutation(len(retrained))
    return erased[chosen], retrained[order[:count]], retrained[order[count : 2 * count]]


def test_by_hand():
    """Two bins from 0 to 8. Every retrained model of sample 0 is in the lower one, every erased model in the upper."""
    erased = np.array([[8.0, 1.0, 3.0], [8.0, 1.0, 3.0]])
    retrained = np.array([[0.0, 1.0, 3.0]] * 4)
    found = klom(erased, retrained, bins=2)
    assert found.values == pytest.approx([math.log(1 / 1e-5), 0.0, 0.0])
    assert found.floor_values == pytest.approx([0.0, 0.0, 0.0])
    assert found.models == 2
    assert found.mean == pytest.approx(math.log(1e5) / 3)
    assert found.percentile95 == pytest.approx(0.9 * math.log(1e5))


def test_shares_by_hand():
    """Erased ¾ low ¼ high, retrained half and half: ¾ log(¾ / ½) + ¼ log(¼ / ½)."""
    erased, retrained = np.array([[0.0], [0.1], [0.2], [1.0]]), np.array([[0.0], [0.3], [0.7], [1.0]] * 2)
    reference = halves(erased, retrained)[1]
    found = klom(erased, retrained, bins=2)
    q = np.mean(reference < 0.5)
    assert found.values == pytest.approx([0.75 * math.log(0.75 / q) + 0.25 * math.log(0.25 / (1 - q))])


def test_margins_beyond_the_clip_are_all_alike():
    generator = np.random.default_rng(0)
    erased, retrained = generator.uniform(200, 900, (4, 5)), generator.uniform(200, 900, (8, 5))
    assert klom(erased, retrained).values == pytest.approx(np.zeros(5))
    assert klom(erased, retrained, clip=1000.0).mean > 1


@pytest.mark.parametrize(("m", "other", "bins"), [(30, 61, 20), (7, 40, 5), (80, 20, 20)])
@pytest.mark.parametrize("chunk", [2**22, 200])
def test_all_samples_at_once_are_one_at_a_time(m, other, bins, chunk, monkeypatch):
    # by its name among the modules: as an attribute of the package it is the function
    monkeypatch.setattr(sys.modules["ssse.metrics.klom"], "CHUNK", chunk)
    generator = np.random.default_rng(m)
    erased, retrained = generator.normal(1, 2, (m, 50)), generator.normal(0, 1, (other, 50))
    found = klom(erased, retrained, bins=bins, clip=3.0, seed=4)
    chosen, reference, rest = halves(erased, retrained, seed=4)
    assert found.models == len(chosen) == len(reference) == len(rest) == min(m, other // 2)
    columns = range(50)
    assert found.values == pytest.approx([in_words(chosen[:, i], reference[:, i], bins, 3.0) for i in columns])
    assert found.floor_values == pytest.approx([in_words(rest[:, i], reference[:, i], bins, 3.0) for i in columns])


def test_retrained_models_are_at_the_floor_and_others_above():
    """The floor depends on how many models there are, and so does the value: at one size they agree."""
    generator = np.random.default_rng(7)
    seen = {}
    for models in (20, 80):
        retrained = generator.normal(3, 1, (models, 4000))
        alike, apart = generator.normal(3, 1, (models, 4000)), generator.normal(4, 1, (models, 4000))
        found = klom(alike, retrained)
        error = math.hypot(found.values.std(), found.floor_values.std()) / math.sqrt(4000)
        assert found.mean == pytest.approx(found.floor_mean, abs=4 * error)
        assert found.percentile95 == pytest.approx(found.floor_percentile95, rel=0.1)
        assert klom(apart, retrained).mean > found.floor_mean + 0.5
        seen[models] = found.floor_mean
    assert seen[20] > 1.5 * seen[80]


def test_all_of_cifar_at_once():
    generator = np.random.default_rng(0)
    found = klom(generator.normal(size=(10, 45_000)), generator.normal(size=(20, 45_000)))
    assert found.values.shape == found.floor_values.shape == (45_000,)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.permutations(range(5)), st.integers(0, 10), st.floats(-20, 20), st.floats(0.125, 8))
def test_order_of_samples_shift_and_scale_do_not_matter(order, seed, shift, scale):
    generator = np.random.default_rng(seed)
    erased, retrained = generator.normal(0, 1, (6, 5)), generator.normal(0.5, 1, (9, 5))
    found = klom(erased, retrained)
    assert klom(erased[:, order], retrained[:, order]).values == pytest.approx(found.values[order])
    moved = klom(shift + scale * erased, shift + scale * retrained)
    assert moved.values == pytest.approx(found.values)
    assert (found.values >= 0).all()


def test_prints_beside_its_floor():
    assert str(Klom(np.array([0.30, 0.32]), np.array([0.2, 0.24]), 8)) == "0.31 (floor 0.22)"


THREE = np.zeros((4, 3))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: klom(THREE[:1], THREE), InvalidData, "at least 2 erased and 4 retrained .* 1 and 4"),
        (lambda: klom(THREE, THREE[:3]), InvalidData, "halves that give the floor; there are 4 and 3"),
        (lambda: klom(THREE, THREE[:, :2]), InvalidData, "erased has 3 and retrained 2"),
        (lambda: klom(THREE[0], THREE), InvalidData, r"shape \(models, samples\); these have \(3,\)"),
        (lambda: klom(np.zeros((4, 0)), np.zeros((4, 0))), InvalidData, "there are no samples"),
        (lambda: klom(THREE + NAN, THREE), InvalidData, "erased: the confidence of model 0 in sample 0 is nan"),
        (lambda: klom(THREE, THREE - math.inf), InvalidData, "retrained: .*is -inf"),
        (lambda: klom(THREE, THREE, bins=1), InvalidSetting, "bins must be a whole number, 2 or more"),
        (lambda: klom(THREE, THREE, bins=2.5), InvalidSetting, "not 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda: klom(THREE, THREE, clip=0.0), InvalidSetting, "clip is the largest margin"),
        (lambda: klom(THREE, THREE, clip=NAN), InvalidSetting, "clip is the largest margin"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(call, error, match):
    with pytest.raises(error, match=match):
        call()
