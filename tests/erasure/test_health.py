"""When a model is ruined, on numbers small enough to count."""

from __future__ import annotations

import numpy as np
import pytest

from ssse.erasure.health import Health, Seen, ruin, staying, worsening


def right(before: int, after: int, of: int) -> Health:
    """So many of the first samples are right."""
    seen = [Seen(None, (np.arange(of) < count).astype(float)) for count in (before, after)]
    return Health(seen[0], seen[1])


def losses(before: float, after: float, guessing: float | None, of: int = 100) -> Health:
    seen = [Seen(np.full(of, mean), None) for mean in (before, after)]
    return Health(seen[0], seen[1], guessing)


@pytest.mark.parametrize(
    ("health", "ruined", "worse"),
    [
        (right(91, 26, 100), True, True),
        (right(91, 80, 100), True, True),
        (right(91, 82, 100), False, True),
        (right(91, 88, 100), False, False),  # 3 of 100 may be chance, and are no more than 3 points
        (right(6, 0, 6), False, False),  # six samples say little
        (right(7, 0, 7), True, True),
        (right(26, 91, 100), False, False),
        (losses(0.5, 2.4, 2.3), True, True),
        (losses(0.5, 2.2, 2.3), False, True),
        (losses(0.5, 0.6, 2.3), False, False),
        (losses(2.5, 2.6, 2.3), False, False),  # it was no better before
        (losses(0.5, 5.1, None), True, True),
        (losses(0.5, 1.1, None), False, True),
        (losses(0.5, 0.9, None), False, False),
    ],
)
def test_ruin_and_caution(health, ruined, worse):
    assert bool(ruin(health)) == ruined
    assert bool(worsening(health)) == worse


def test_one_sample_that_goes_astray_is_no_ruin():
    before, after = np.full(100, 0.1), np.full(100, 0.1)
    after[0] = 1e6
    assert not ruin(Health(Seen(before, None), Seen(after, None), 2.3))


def test_nan_is_seen():
    assert not Health(Seen(np.ones(2), None), Seen(np.array([1, np.nan]), None)).finite


@pytest.mark.parametrize(
    ("forgotten", "counts"),
    [
        ([0] * 100, [1, 2]),  # a whole class
        ([0] * 50, [1, 2]),  # half of one
        ([0] * 10, [0, 1, 2]),
        ([0] * 30 + [1] * 30 + [2] * 30, [0, 1, 2]),  # 30 % of all
        ([0] * 100 + [1] * 100 + [2] * 90, [0, 1, 2]),
        ([7] * 5, [0, 1, 2]),  # a class that the probe does not hold
    ],
)
def test_a_class_that_leaves_need_not_keep_working(forgotten, counts):
    """Of 300 training samples, in three classes as the probe has them."""
    labels = np.repeat([0, 1, 2], 20)
    mask = staying(labels, np.array(forgotten), 300)
    assert np.unique(labels[mask]).tolist() == counts
