"""Samples matched by their digests: each occurrence counts once."""

from __future__ import annotations

from collections import Counter

from ssse.problem.sample_digests import find_places, take_due


def test_the_first_occurrences_are_taken_as_often_as_they_are_due():
    due = Counter({7: 2, 8: 1, 9: -1})
    assert take_due([7, 5, 7, 7, 9], due) == [True, False, True, False, False]
    assert take_due([8, 8, 7], due) == [True, False, False]  # what is due goes on from batch to batch
    assert +due == Counter()


def test_what_was_not_met_stays_due():
    due = Counter({1: 3})
    take_due([1, 2], due)
    assert due.total() == 2


def test_places_in_the_order_of_what_is_wanted():
    assert find_places([3, 1, 1, 1, 4], [1, 2, 1, 3]) == [3, 0, 2, None, None]
    assert find_places([], [1]) == []
    assert find_places([1], []) == [None]
