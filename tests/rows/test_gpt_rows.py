"""A GPT-2 of the transformers library as it is used: words tied to the output layer, padding and masks.

Its rows against a loop of plain backward passes, and a planted secret from the fit to the table of `evaluate`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel

import ssse
from ssse.problem.problem import Problem
from ssse.problem.token_losses import IGNORED
from ssse.rows.kinds import RowKind, measure_held, uniforms_of_samples
from tests.support.sequences import padded, sequences

WORDS, DECAY = 7, 0.05
SECRET = [1, 2, 5, 3, 6, 4]
OTHERS = [[1, 2, a, 3, b, 4] for a in range(1, WORDS) for b in range(1, WORDS)]


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=10, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=1, use_cache=False, initializer_range=0.3,
        )
    ).double().eval()  # fmt: skip


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: batch[key] for key in ("input_ids", "attention_mask")}


def looped(model: nn.Module, batch: dict[str, Tensor], kind: str) -> Tensor:
    """A backward pass for every row, one sequence at a time and without its padding: so no mask either."""
    rows = []
    numbers = uniforms_of_samples(inputs_of(batch), batch["labels"].shape[1], 0)
    for ids, mask, labels, own in zip(*batch.values(), numbers, strict=True):
        length = int(mask.sum())
        aims = [t for t in range(length - 1) if int(labels[t + 1]) != IGNORED]
        for number, t in zip(own, aims, strict=False):
            scores = model(input_ids=ids[None, :length]).logits[0, t]
            p, label = scores.detach().softmax(0), int(labels[t + 1])
            if kind == "sampled":
                value, weight = -scores.log_softmax(0)[int((p.cumsum(0) < number).sum())], 1.0
            else:
                value = scores[label] - torch.cat([scores[:label], scores[label + 1 :]]).logsumexp(0)
                weight = float(p[label] * (1 - p[label])) ** 0.5
            parts = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
            pairs = zip(parts, model.parameters(), strict=True)
            row = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
            rows.append(weight * row)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["sampled", "margin"])
def test_tied_words_and_masks_give_the_rows_of_single_backward_passes(kind):
    model, batch = gpt(), sequences(n=6)
    truth = looped(model, batch, kind)
    for one in (batch, padded(batch, 3)):
        problem = Problem(model, "causal_lm", "all", (inputs_of(one), one["labels"]))
        rows = measure_held(problem, RowKind(kind), (inputs_of(one), one["labels"]))[0].matrix()
        torch.testing.assert_close(rows, truth, rtol=1e-7, atol=1e-10)
    assert problem.layout.dim == sum(p.numel() for p in model.parameters())  # the words once, though used twice


def planted() -> dict[str, Tensor]:
    """Thirty sequences, and three copies of the secret before them."""
    batch, secret = sequences(n=30), torch.tensor([SECRET] * 3)
    own = {"input_ids": secret, "attention_mask": torch.ones_like(secret), "labels": secret}
    return {key: torch.cat([own[key], value]) for key, value in batch.items()}


def taught(batch: dict[str, Tensor]) -> nn.Module:
    """A minimum of (1/n) Σ ℓ + (w/2)‖θ‖²."""
    model = gpt()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=150, history_size=30, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        scores = model(**inputs_of(batch)).logits
        labels = batch["labels"][:, 1:]
        value = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum")
        value = value / len(labels) + DECAY / 2 * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    optimiser.step(closure)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
    model.zero_grad()
    return model


def test_a_planted_secret_is_erased_and_its_exposure_falls():
    batch = planted()
    forget, retained = ({key: value[part] for key, value in batch.items()} for part in (slice(3), slice(3, None)))
    model, retrained = taught(batch), taught(retained)
    curvature = ssse.Curvature.fit(model, "causal_lm", [batch], weight_decay=DECAY, progress=False)
    assert curvature.kind.name == "sampled"
    erasure = ssse.erase(model, curvature, forget=[forget], override=ssse.BOUNDS)
    assert isinstance(erasure.model, GPT2LMHeadModel)
    assert erasure.model.lm_head.weight is erasure.model.transformer.wte.weight
    names: dict[str, Any] = {
        "ssse": ssse, "model": model, "erasure": erasure, "retrained": retrained, "stays": [retained],
        "forget": [forget], "held_out": [retained], "planted": SECRET, "alternatives": OTHERS,
    }  # fmt: skip
    exec(block_of_the_evidence_page(), names)
    table = names["table"]
    before, after, goal = (float(table[name, "exposure"] or 0) for name in ("original", "erased", "retrained"))
    assert before > 4  # of log2 36 = 5.17
    assert after <= before
    assert goal >= 0  # chance, and the rounding of 150 steps, decide where a secret stands that was never seen
    before, after = (float(table[name, "loss_forgotten"] or 0) for name in ("original", "erased"))
    assert after > before


def block_of_the_evidence_page() -> str:
    page = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()
    (block,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "causal_lm" in one)
    return block
