"""Exposure of a secret, on a model with known probabilities: the next token depends on the last alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel
from ssse.metrics import exposure

PROBABILITIES = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.05, 0.05, 0.8, 0.1]]
)


class Bigram(nn.Module):
    def __init__(self, probabilities: Tensor = PROBABILITIES):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(probabilities.log())

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids)


def by_hand(sequence: tuple[int, ...]) -> float:
    return sum(
        float(PROBABILITIES[a, b]) and math.log(float(PROBABILITIES[a, b])) for a, b in itertools.pairwise(sequence)
    )


def test_every_rank_is_the_one_that_is_counted_by_hand():
    """All 4² continuations of token 0, each once as the canary; equal ones share their places."""
    space = [(0, *rest) for rest in itertools.product(range(4), repeat=2)]
    truth = [by_hand(one) for one in space]
    for canary, own in zip(space, truth, strict=True):
        found = exposure(Bigram().eval(), canary, space)
        likelier = sum(other > own + 1e-6 for other in truth)
        equal = sum(abs(other - own) <= 1e-6 for other in truth) - 1
        assert found.rank == likelier + 1 + equal / 2
        assert found.size == 16
        assert found.exposure == pytest.approx(4 - math.log2(found.rank))
        assert found.canary == pytest.approx(-own / math.log(2), rel=1e-5)
        assert len(found.alternatives) == 15
    best = max(space, key=by_hand)
    assert best == (0, 3, 2)
    assert exposure(Bigram().eval(), best, space).exposure == 4


def test_ties_count_half():
    uniform = Bigram(torch.full((4, 4), 0.25)).eval()
    found = exposure(uniform, [0, 1], [[0, 0], [0, 2], [0, 3]])
    assert found.rank == 2.5
    assert found.exposure == pytest.approx(2 - math.log2(2.5))


def test_sequences_of_several_lengths_are_scored_as_they_are():
    alternatives = [[0, 1], [0, 1, 0, 3], [0, 2, 2]]
    found = exposure(Bigram().eval(), [0, 3, 2], alternatives)
    np.testing.assert_allclose(found.alternatives, [-by_hand(tuple(a)) / math.log(2) for a in alternatives], rtol=1e-5)


def test_a_model_is_anything_from_ids_to_scores():
    class Output:
        def __init__(self, logits: Tensor):
            self.logits = logits

    bigram = Bigram().eval()
    one = exposure(bigram, [0, 3, 2], [[0, 1, 1]])
    assert exposure(lambda ids: Output(bigram(ids)), [0, 3, 2], [[0, 1, 1]]).canary == one.canary
    assert "rank 1 of 2" in str(one)


@pytest.mark.parametrize(
    ("canary", "alternatives", "said"),
    [
        ([0, 1], [], "there are none"),
        ([0, 1], [[0, 1]], "there are none"),
        ([0], [[0, 1]], "canary: each is a sequence of two or more"),
        ([0, 1], [[0.5, 1.0]], "alternatives: each is a sequence"),
        ([0, 1], ["text"], r"alternatives: token ids are needed.*it is text: pass tokenizer\(text\)"),
        ([0, -100], [[0, 1]], "from 0 on"),
        ([0, 1], [[0, float("nan")]], "alternatives"),
    ],
)
def test_what_cannot_be_ranked_is_refused(canary, alternatives, said):
    with pytest.raises(InvalidData, match=said):
        exposure(Bigram().eval(), canary, alternatives)


def test_other_models_are_refused():
    with pytest.raises(InvalidModel, match=r"scores of shape \(sequences, tokens, vocabulary\)"):
        exposure(nn.Sequential(Bigram(), nn.Flatten()).eval(), [0, 1], [[0, 2]])
    with pytest.raises(InvalidData, match="infinitely unlikely"):
        exposure(Bigram(torch.eye(4)).eval(), [0, 1], [[0, 2]])
    with pytest.raises(InvalidModel, match="training mode"):
        exposure(nn.Sequential(Bigram(), nn.Dropout(0.5)).train(), [0, 1], [[0, 2]])
