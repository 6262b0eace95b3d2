"""The rule that a length is chosen by: which are tried, and what a model is looked at on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from ssse.calibration.lengths import Seen, Splits, Trial, _told, losses_of, shortfall, walk, walk_in_turn
from ssse.errors import InvalidData
from ssse.problem.short_training import Trainee
from tests.support.known_networks import by_hand, samples
from tests.support.refusals import refused


def walked(way: str, shortfalls: Sequence[float], start: float) -> tuple[list[float], float, list[float]]:
    """Over lengths 1, 2, … way: whether S stands out by more than the model suffers (>), by less (<), or as much (=).

    Returns: the lengths in the order that they were tried, the one that was chosen, all trials.
    """
    lengths, visited = [float(i + 1) for i in range(len(way))], []

    def attempt(length: float) -> tuple[Trial, str]:
        visited.append(length)
        place = int(length) - 1
        seen = Seen({">": 0.75, "<": 0.25, "=": 0.625}[way[place]], 0.5, 1.0, 1.0)
        return Trial(1.0, length, length / 10, seen, seen, shortfalls[place], worn=0.125), f"model {length:g}"

    (best, model), trials = walk(attempt, lengths, start)
    assert model == f"model {best.length:g}"
    return visited, best.length, [trial.length for trial in trials]


def test_one_way_after_the_other_from_the_best_length_on():
    """The second is looked along from where the first was best; a tie is the first's."""

    def at(damping: float, shortfalls: Sequence[float]):
        def attempt(length: float) -> tuple[Trial, str]:
            seen = Seen(0.75, 0.5, 1.0, 1.0)
            return Trial(damping, length, 1.0, seen, seen, shortfalls[int(length) - 1], worn=0.0), f"{damping:g}"

        return attempt

    ways = [at(1.0, [9, 3, 2, 4]), at(4.0, [1, 9, 5, 1.5]), at(8.0, [9, 9, 9, 1.5])]
    (best, model), trials = walk_in_turn(ways, [1.0, 2.0, 3.0, 4.0], 2.0)
    tried = [(trial.damping, trial.length) for trial in trials]
    assert tried == [(1, 2), (1, 3), (1, 4), (4, 3), (4, 4), (8, 3), (8, 4)]
    assert (best.damping, best.length, best.shortfall, model) == (4.0, 4.0, 1.5, "4")
    ways = [at(1.0, [9, 0, 2, 4]), at(4.0, [0, 0, 0, 0])]
    (best, _), trials = walk_in_turn(ways, [1.0, 2.0, 3.0, 4.0], 2.0)
    assert [(trial.damping, trial.length) for trial in trials] == [(1, 2)]  # nothing is better than no shortfall


@pytest.mark.parametrize(
    ("way", "shortfalls", "start", "visited", "chosen"),
    [
        (">>>>>", [9, 9, 3, 2, 1], 3, [3, 4, 5], 5),  # longer where S is remembered, to the end of the list
        ("<<<<<", [1, 2, 3, 9, 9], 3, [3, 2, 1], 1),  # shorter where it is not, to the other
        (">>>>>", [9, 9, 3, 2, 4], 3, [3, 4, 5], 4),  # until it no longer falls
        (">>>>>", [9, 4, 3, 3, 1], 3, [3, 4, 2], 3),  # as much is not less; then the other way
        (">>>>>", [1, 2, 3, 5, 0], 3, [3, 4, 2, 1], 1),
        ("<<<<<", [0, 5, 3, 2, 1], 3, [3, 2, 4, 5], 5),
        ("<<<<<", [5, 2, 3, 0, 0], 3, [3, 2, 1], 2),  # better the first way: the other is left
        (">><<<", [9, 9, 3, 2, 1], 3, [3, 2, 4, 5], 5),  # the first trial says which way, no later one
        ("=====", [1, 2, 3, 4, 5], 2, [2, 1], 1),  # S stands out by as much as the model suffers: shorter may do
        ("<<<", [1, 2, 3], 0.01, [1, 2], 1),  # the nearest to the start is an end of the list
        (">>>", [1, 2, 3], 100, [3, 2, 1], 1),
        ("<<<", [3, 2, 1], 0.01, [1, 2, 3], 3),
        (">", [7], 1, [1], 1),
        (">>>>>", [9, 9, 0, 9, 9], 3, [3], 3),  # nothing is better than no shortfall
        ("<<<<<", [9, 0, 3, 9, 9], 3, [3, 2], 2),
        (">>>>", [4, 3, 2, 1], 1.5, [2, 3, 4], 4),  # the nearest by ratio: 2/1.5 < 1.5/1
        (">>>>", [4, 3, 2, 1], 1.4, [1, 2, 3, 4], 4),
    ],
)
def test_which_lengths_are_tried(way, shortfalls, start, visited, chosen):
    found, best, trials = walked(way, shortfalls, start)
    assert found == visited
    assert best == chosen
    assert trials == sorted(visited)


def test_no_length_twice_and_the_best_of_what_was_tried():
    """Whatever is found: a gapless part of the list around the start, and where it ends it did not get better."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        n = int(generator.integers(1, 8))
        way = "".join(generator.choice(list("<=>"), n))
        values = generator.integers(0, 5, n).astype(float).tolist()
        visited, chosen, trials = walked(way, values, float(generator.uniform(0.5, n + 1)))
        assert len(visited) == len(set(visited))
        assert trials == sorted(visited)
        assert all(b - a == 1 for a, b in itertools.pairwise(trials))
        best = values[int(chosen) - 1]
        assert best == min(values[int(length) - 1] for length in visited)
        for beside in (chosen - 1, chosen + 1):
            known = beside in visited or not 1 <= beside <= n
            # At the start both sides are looked at, if there are any; nothing is better than no shortfall.
            assert known or chosen != visited[0] or best == 0


def test_the_way_is_longer_where_s_stands_out_by_more_than_the_model_suffers():
    original = Seen(1.0, 0.5, 1.0, 1.0, 1.0)
    for seen, way in [
        (Seen(0.75, 0.5, 1.0, 1.0, 1.0), 1),
        (Seen(0.75, 0.5, 1.0, 0.75, 1.0), -1),
        (Seen(0.75, 0.5, 0.9, 0.9, 0.8), 1),
        (Seen(0.5, 0.5, 1.0, 1.0, 1.0), -1),
        (Seen(0.25, 0.5, 1.0, 1.0, 1.0), -1),
    ]:
        assert Trial.of(1e-3, 0.5, 1.0, seen, seen, original).way == way


def test_the_shortfall():
    original = Seen(1.0, 0.8, 0.9, 0.7, 0.9)
    assert shortfall(Seen(0.6, 0.8, 0.9, 0.7, 0.9), original) == pytest.approx(0.2 / 4)
    worse = Seen(0.9, 0.8, 0.8, 0.6, 0.5)
    assert losses_of(worse, original) == pytest.approx([0.1, 0.1, 0.4])
    trial = Trial.of(1e-3, 0.5, 1.0, worse, worse, original)
    assert trial.shortfall == shortfall(worse, original) == pytest.approx((0.1 + 0.1 + 0.1 + 0.4) / 4)
    assert trial.worn == pytest.approx(0.4)
    assert shortfall(Seen(0.8, 0.8, 1.0, 1.0, 1.0), original) == 0  # better than before is no fault
    without = Seen(1.0, 0.8, 0.9, 0.7)  # of a whole class nothing is left among the retained samples
    assert losses_of(Seen(0.9, 0.8, 0.8, 0.6), without) == pytest.approx([0.1, 0.1])
    assert shortfall(Seen(0.9, 0.8, 0.8, 0.6), without) == pytest.approx((0.1 + 0.1 + 0.1) / 3)


def test_held_out_samples_are_weighted_as_s_has_their_classes():
    """S: three of class 0 and one of class 1. Held out: two of class 0, one right; four of class 1, three right."""
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("0011222200", "0011222201"))
    held_out = samples("02" + "1110" + "222", "00" + "1111" + "222", 1) + samples("0", "2", 2)
    splits = Splits.of(trainee, samples("0001", "0001", 3), held_out, 14)
    np.testing.assert_allclose(splits.weights, [3 / 8, 3 / 8, *[1 / 16] * 4, 0, 0, 0, 0])
    seen = splits.look(trainee)
    assert seen.forgotten == 1
    assert seen.expected == pytest.approx(3 / 4 * 1 / 2 + 1 / 4 * 3 / 4)
    assert seen.retained == pytest.approx(9 / 10)
    assert seen.kin == pytest.approx(5 / 6)  # of the retained samples of classes 0 and 1
    error = splits.error(Seen(0.5, 0.25, 1, 1))
    assert error == pytest.approx(math.sqrt(0.25 / 4 + 0.1875 * (2 * (3 / 8) ** 2 + 4 / 16**2)))


def test_by_how_many_pairs_s_is_told_from_held_out_samples_of_its_kind():
    """Against scikit-learn's area under the curve, with the same weights; and its standard error on drawn samples."""
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("0011222200", "0011222201"))
    held_out = samples("02" + "1110" + "222", "00" + "1111" + "222", 1)
    forget = samples("00012", "00011", 3)
    splits = Splits.of(trainee, forget, held_out, 14)
    seen, kind = splits.look(trainee), splits.weights > 0
    margins = []
    for x, y in (forget[0], held_out[0]):
        z = trainee.problem.forward(x)[0].detach()
        others = z.scatter(1, y[:, None], -math.inf).logsumexp(1)
        margins.append((z.gather(1, y[:, None])[:, 0] - others).numpy())
    own, other = margins[0], margins[1][kind]
    sides = np.concatenate([np.ones(len(own)), np.zeros(len(other))])
    weights = np.concatenate([np.full(len(own), 1 / len(own)), splits.weights[kind]])
    assert seen.told == pytest.approx(roc_auc_score(sides, np.concatenate([own, other]), sample_weight=weights))
    assert _told(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5])) == 0.5  # ties by halves
    assert math.isnan(_told(np.array([1.0, math.nan]), np.array([1.0]), np.array([1.0])))
    drawn, even = np.random.default_rng(0), np.full(60, 1 / 60)
    areas = [_told(drawn.normal(0.3, 1, 40), drawn.normal(0, 1, 60), even) for _ in range(2000)]
    splits = replace(splits, forgotten=samples("0" * 40, "0" * 40), weights=even)
    assert splits.error_told(Seen(0, 0, 0, 0, told=float(np.mean(areas)))) == pytest.approx(np.std(areas), rel=0.1)


def test_a_class_that_leaves_is_not_asked_to_stay():
    retained = samples("00112222", "00112222")
    held_out = samples("0" * 20 + "1" * 20 + "2" * 20, "0" * 20 + "1" * 19 + "2" + "2" * 10 + "1" * 10, 1)
    trainee = Trainee.of(by_hand(), "cross_entropy", retained)
    forget = samples("2" * 60, "0" * 60, 2)  # nearly all that there were of class 0
    seen = Splits.of(trainee, forget, held_out, 68).look(trainee)
    right = [1] * 19 + [0] + [1] * 10 + [0] * 10
    assert seen.staying == pytest.approx(np.mean(right))
    assert seen.forgotten == 0
    assert seen.expected == 1
    assert seen.kin == 1
    whole = Splits.of(Trainee.of(by_hand(), "cross_entropy", samples("1122", "1122")), forget, held_out, 64)
    assert whole.kin == []
    assert whole.look(trainee).kin is None
    assert whole.gone
    assert whole.look(trainee).expected == 0  # nobody names a class that was never seen
    assert whole.error(whole.look(trainee)) == 0
    assert shortfall(Seen(0.3, 0.0, 1.0, 1.0), Seen(1.0, 0.0, 1.0, 1.0)) == pytest.approx(0.1)
    half = samples("2" * 30 + "1" * 30, "0" * 30 + "1" * 30, 2)  # all that there were of class 0, and some of class 1
    both = Splits.of(Trainee.of(by_hand(), "cross_entropy", samples("1122", "1122")), half, held_out, 64)
    seen = both.look(trainee)
    assert not both.gone
    assert seen.expected == pytest.approx(19 / 29 / 2)
    assert both.error(seen) == pytest.approx(math.sqrt(0.25 / 60 + 19 / 29 * 10 / 29 / 29 / 4))
    everybody = Splits.of(trainee, samples("012", "012", 3), held_out, 11)
    assert everybody.look(trainee).kin is None  # all that stay are kin: as retained they are counted once


def test_a_model_whose_outputs_are_not_numbers_is_right_nowhere():
    """Not even on class 0, which is where torch's argmax finds a NaN."""
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("012" * 4, "012" * 4))
    splits = Splits.of(trainee, samples("00", "00", 1), samples("012", "012", 2), 14)
    with torch.no_grad():
        trainee.problem.model.get_parameter("2.weight").fill_(math.nan)
    seen = splits.look(trainee)
    assert (seen.forgotten, seen.expected, seen.retained, seen.kin) == (0, 0, 0, 0)
    assert math.isnan(seen.told)


@pytest.mark.parametrize(
    ("left", "n", "gone"),
    [
        ("1122", 204, True),
        ("01122", 205, True),  # one of two hundred, perhaps with a wrong label
        ("00001122", 208, False),
        ("1122", 500, False),  # a part of what stays tells nothing of the rest
    ],
)
def test_a_class_is_gone_where_all_that_stays_was_given_and_next_to_nothing_of_it_is_left(left, n, gone):
    forget, held_out = samples("0" * 200, "0" * 200, 1), samples("0" * 20 + "12", "0" * 20 + "12", 2)
    trainee = Trainee.of(by_hand(), "cross_entropy", samples(left, left))
    splits = Splits.of(trainee, forget, held_out, n)
    assert splits.gone == gone
    assert splits.look(trainee).expected == (0 if gone else pytest.approx(1))


def test_weights_in_batches_and_probabilities_as_labels():
    """A weight says what a sample counted in training; here each counts once. Of probabilities the likeliest counts."""

    def weighted(data: list) -> list:
        return [(x, y, torch.linspace(0.5, 2, len(y), dtype=torch.float64)) for x, y in data]

    def soft(data: list) -> list:
        return [(x, 0.9 * nn.functional.one_hot(y, 3) + 0.1 / 3) for x, y in data]

    parts = samples("0011222200", "0011222201"), samples("0001", "0021", 3), samples("0211102", "0011112", 1)
    seen = []
    for form in (list, weighted, soft):
        retained, forget, held_out = (form(part) for part in parts)
        trainee = Trainee.of(by_hand(), "cross_entropy", retained)
        seen.append(Splits.of(trainee, forget, held_out, 14).look(trainee))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0].expected == pytest.approx(0.5 * 0.5 + 0.25 * 1 + 0.25 * 0.75)


def test_a_class_of_s_without_held_out_samples_is_named():
    trainee = Trainee.of(by_hand(), "cross_entropy", samples("0011", "0011"))
    with refused(InvalidData, "No held-out sample is of class 2, of which 3 are to be forgotten", trainee.given):
        Splits.of(trainee, samples("02221", "02221", 1), samples("0110", "0110", 2), 9)
    with refused(InvalidData, "There are no held-out samples", trainee.given):
        Splits.of(trainee, samples("0", "0", 1), [], 9)
