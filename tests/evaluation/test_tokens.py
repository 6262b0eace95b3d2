"""`evaluate` of language models: loss and perplexity of a token, and exposure of canaries, counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ssse
from ssse.errors import InvalidData, InvalidSetting
from ssse.evaluation import tokens
from ssse.metrics import exposure, threshold_attack
from ssse.problem.token_losses import IGNORED
from tests.support.sequences import TiedLanguageModel, language_model, padded, sequences

CANARIES = [([1, 2, 3, 4], [[1, 2, 3, d] for d in range(7)]), ([1, 5, 5, 2], [[1, 5, a, 2] for a in range(7)])]


@pytest.fixture(scope="module")
def models() -> dict[str, list[TiedLanguageModel]]:
    return {
        "original": [language_model(seed=0)],
        "erased": [language_model(seed=1)],
        "retrained": [language_model(seed=2), language_model(seed=3)],
    }


@pytest.fixture(scope="module")
def splits() -> dict[str, list[dict[str, Tensor]]]:
    return {
        "retained": [sequences(seed=1), padded(sequences(seed=2), 2)],  # of two lengths
        "forgotten": [sequences(n=5, seed=3)],
        "test": [sequences(seed=4)],
    }


def plainly(model: TiedLanguageModel, batches: list[dict[str, Tensor]]) -> list[tuple[float, int, int]]:
    """Loss, labels and first choices of every sequence, one token at a time."""
    found = []
    for batch in batches:
        for ids, mask, labels in zip(*(batch[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            z = model(ids[None], mask[None])[0].detach()
            pairs = [(z[t], int(labels[t + 1])) for t in range(len(ids) - 1) if int(labels[t + 1]) != IGNORED]
            losses = [float(F.cross_entropy(one[None], torch.tensor([label]))) for one, label in pairs]
            found.append((sum(losses), len(pairs), sum(int(one.argmax()) == label for one, label in pairs)))
    return found


@pytest.fixture(scope="module")
def table(models, splits) -> ssse.Evaluation:
    return ssse.evaluate(models, splits, loss_fn="causal_lm", weight_decay=0.1, canaries=CANARIES, progress=False)


def test_loss_perplexity_and_accuracy_are_those_of_a_plain_loop(models, splits, table):
    for name, (model, *_) in models.items():
        if name == "retrained":
            continue
        for split, batches in splits.items():
            each = plainly(model, batches)
            loss = sum(one[0] for one in each) / sum(one[1] for one in each)
            assert table[name, f"loss_{split}"] == pytest.approx(loss, rel=1e-9)
            assert table[name, f"perplexity_{split}"] == pytest.approx(math.exp(loss), rel=1e-9)
            right = np.mean([one[2] / one[1] for one in each])
            assert table[name, f"accuracy_{split}"] == pytest.approx(100 * right, rel=1e-9)
    assert table.counts == {"retained": 24, "forgotten": 5, "test": 12}


def test_attacks_go_by_the_mean_likelihood_of_a_sequence(models, splits, table):
    own, never = (
        [-loss / count for loss, count, _ in plainly(models["erased"][0], splits[split])]
        for split in ("forgotten", "test")
    )
    assert table["erased", "attack"] == pytest.approx(threshold_attack(own, never).auc)


def test_gaps_and_exposure_stand_beside_those_of_the_retrained_models(models, splits, table):
    bits = [exposure(models["erased"][0], *pair).exposure for pair in CANARIES]
    assert table["erased", "exposure"] == pytest.approx(np.mean(bits))
    assert table["erased", "exposure_max"] == pytest.approx(max(bits))
    assert table["retrained", "exposure"] is not None
    gaps = []
    for other in models["retrained"]:
        for batches in splits.values():
            one, two = (plainly(model, batches) for model in (models["erased"][0], other))
            labels = sum(count for _, count, _ in one)
            gaps.append(abs(sum(a[0] for a in one) - sum(b[0] for b in two)) / labels)
    assert table["erased", "loss_gap"] == pytest.approx(np.mean(gaps))
    assert table["erased", "objective"] is not None
    assert table.floors["loss_gap"] > 0
    assert "delta" not in table.cells
    assert "gamma" not in table.cells
    assert "perplexity" in str(table)


def test_divergences_are_the_mean_over_labels(models, splits):
    model, goal = models["erased"][0], models["retrained"][0]
    found = ssse.evaluate(
        {"erased": model, "retrained": goal}, {"forgotten": splits["forgotten"]}, loss_fn="causal_lm", progress=False
    )
    batch, each = splits["forgotten"][0], []
    log_p, log_q = (m(batch["input_ids"], batch["attention_mask"]).detach().log_softmax(2) for m in (model, goal))
    for i, labels in enumerate(batch["labels"]):
        places = [t for t in range(len(labels) - 1) if int(labels[t + 1]) != IGNORED]
        each.append(np.mean([float((log_q[i, t].exp() * (log_q[i, t] - log_p[i, t])).sum()) for t in places]))
    assert found["erased", "kl_forgotten"] == pytest.approx(np.mean(each))


def test_memory_is_bounded_and_changes_nothing(models, splits, table, monkeypatch):
    monkeypatch.setattr(tokens, "AT_A_TIME", 1)  # a sequence at a time
    again = ssse.evaluate(models, splits, loss_fn="causal_lm", weight_decay=0.1, canaries=CANARIES, progress=False)
    for measure in table.measures:
        for name in models:
            one, two = table[name, measure.key], again[name, measure.key]
            assert (one is None and two is None) or one == pytest.approx(two, rel=1e-6, abs=1e-9)


def test_without_the_loss_the_sentence_names_it(models, splits):
    with pytest.raises(InvalidData, match=r"these have \(12, 6, 7\)\. Of a language model: pass loss_fn='causal_lm'"):
        ssse.evaluate(models, splits, progress=False)


def test_what_cannot_be_is_refused(models, splits):
    with pytest.raises(InvalidSetting, match=r"Canaries are sequences of a language model: pass its loss"):
        ssse.evaluate(models, splits, canaries=CANARIES, progress=False)
    wrong: Any
    for wrong in ([], [[1, 2, 3]], [CANARIES[0][0]]):
        with pytest.raises(InvalidSetting, match=r"list of pairs \(canary, alternatives\)"):
            ssse.evaluate(models, splits, loss_fn="causal_lm", canaries=wrong, progress=False)
    with pytest.raises(InvalidData, match="disagree on the vocabulary: 'original' has 7, 'erased' has 9"):
        ssse.evaluate(
            {"original": models["original"], "erased": language_model(9)}, splits, loss_fn="causal_lm", progress=False
        )
    with pytest.raises(InvalidData, match="The split 'test' is empty"):
        ssse.evaluate(models, {**splits, "test": []}, loss_fn="causal_lm", progress=False)
    model = language_model()
    with torch.no_grad():
        model.norm.bias.fill_(math.nan)
    with pytest.raises(InvalidData, match="broken: the logits of a sequence hold NaN"):
        ssse.evaluate({"broken": model}, splits, loss_fn="causal_lm", progress=False)


def test_functions_of_the_inputs_are_models_too(models, splits, table):
    model = models["erased"][0]
    found = ssse.evaluate({"erased": lambda x: model(**x)}, splits, loss_fn="causal_lm", progress=False)
    assert found["erased", "loss_test"] == pytest.approx(table["erased", "loss_test"])
