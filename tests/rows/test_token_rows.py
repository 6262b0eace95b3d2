"""Rows of sequences, against a plain loop of backward passes; with weights that are used twice, as GPT-2 uses them."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse.problem.batches import Batch
from ssse.problem.cores import BlockCores
from ssse.problem.problem import Problem
from ssse.problem.token_losses import IGNORED, TOKEN_LOSSES
from ssse.rows.autodiff import held
from ssse.rows.kinds import RowKind, RowName, measure, measure_held, uniforms_of_samples
from tests.support.sequences import TiedLanguageModel, language_model, padded, sequences

NAMES = list(TOKEN_LOSSES)
DECAY = 0.05


def pair(batch: dict[str, Tensor]) -> Batch:
    return {key: batch[key] for key in ("input_ids", "attention_mask")}, batch["labels"]


def problem_of(name: str, batch: dict[str, Tensor]) -> Problem:
    return Problem(language_model(), name, "all", pair(batch))


def slope(model: nn.Module, value: Tensor) -> Tensor:
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def looped(name: str, batch: dict[str, Tensor], kind: RowName) -> Tensor:
    """One backward pass of the model for every row, with nothing of the library."""
    model, rows = language_model(), []
    for i in range(len(batch["labels"])):
        ids, mask, labels = (batch[key][i : i + 1] for key in ("input_ids", "attention_mask", "labels"))
        positions = range(ids.shape[1] - 1) if name.startswith("causal") else range(ids.shape[1])
        aim = {t: int(labels[0, t + 1 if name.startswith("causal") else t]) for t in positions}
        aim = {t: label for t, label in aim.items() if label != IGNORED}
        share = 1 / len(aim) if name.endswith("_mean") else 1.0
        if kind == "empirical":
            log_p = model(ids, mask)[0].log_softmax(1)
            rows.append(slope(model, -share * torch.stack([log_p[t, label] for t, label in aim.items()]).sum()))
            continue
        draws = uniforms_of_samples(pair(batch)[0], ids.shape[1], 0)[i]
        for number, (t, label) in zip(draws, aim.items(), strict=False):
            z = model(ids, mask)[0, t]
            if kind == "sampled":
                drawn = int((z.detach().softmax(0).cumsum(0) < number).sum())
                rows.append(share**0.5 * slope(model, -z.log_softmax(0)[drawn]))
                continue
            phi = z[label] - torch.cat([z[:label], z[label + 1 :]]).logsumexp(0)
            p = float(phi.detach().sigmoid())
            rows.append((share * p * (1 - p)) ** 0.5 * slope(model, phi))
    return torch.stack(rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["empirical", "margin", "sampled"])
def test_rows_are_those_of_a_loop_of_backward_passes(name, kind):
    batch = sequences()
    problem = problem_of(name, batch)
    rows, measured = measure_held(problem, RowKind(kind), pair(batch), salt=b"")
    torch.testing.assert_close(rows.matrix(), looped(name, batch, kind))
    torch.testing.assert_close(measured.gradient, looped(name, batch, "empirical").sum(0))
    assert rows.digests is not None
    assert len(rows.digests) == rows.count
    assert len(rows.digests.unique()) == len(batch["labels"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["margin", "sampled"])
def test_products_without_forming_rows_are_those_with_them(name, kind):
    batch = sequences()
    problem = problem_of(name, batch)
    lazy = measure(problem, RowKind(kind), pair(batch)).rows
    formed = held(lazy).matrix()
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(lazy.dim, generator=generator, dtype=torch.float64)
    u = torch.randn(lazy.count, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(lazy.times(v), formed @ v)
    torch.testing.assert_close(lazy.transposed_times(u), formed.T @ u)
    kept = measure_held(problem, RowKind(kind), pair(batch))[0].matrix()
    torch.testing.assert_close(formed.T @ formed, kept.T @ kept)


def test_a_block_of_each_core_is_kept_and_not_its_zeros():
    values = torch.randn(2, 3, 4)
    cores = BlockCores(values)
    whole = cores.dense()
    assert whole.shape == (2, 3, 12)
    for j in range(3):
        assert torch.equal(whole[:, j, 4 * j : 4 * j + 4], values[:, j])
        assert torch.equal(cores.row(j), whole[:, j])
    assert int((whole != 0).sum()) == values.numel()


def test_a_sequence_has_the_same_rows_with_any_padding():
    batch = sequences()
    for kind in ("empirical", "margin", "sampled"):
        few, many = (
            measure_held(problem_of("causal_lm", one), RowKind(kind), pair(one))[0].matrix()
            for one in (batch, padded(batch, 4))
        )
        torch.testing.assert_close(few, many)


@functools.cache
def taught(weight_decay: float = DECAY) -> tuple[TiedLanguageModel, dict[str, Tensor]]:
    """Trained to a minimum of the objective of the transformers library, the mean over all tokens, by L-BFGS."""
    batch, model = sequences(n=30), language_model()
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=300,
        history_size=40,
        tolerance_grad=1e-9,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        z = model(batch["input_ids"], batch["attention_mask"])
        value = F.cross_entropy(z[:, :-1].mT, batch["labels"][:, 1:], ignore_index=IGNORED)
        value = value + weight_decay / 2 * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    optimizer.step(closure)
    return model.eval(), batch


@pytest.mark.parametrize("structure", ["dense", "lowrank", "matrix_free"])
@pytest.mark.parametrize("rows", ["margin", "sampled"])
def test_a_sequence_is_erased_and_another_after_it(structure, rows):
    """The mean over all tokens is "causal_lm" with w times the mean number of labels a sequence."""
    model, batch = taught()
    labels = float((batch["labels"][:, 1:] != IGNORED).sum(1).double().mean())
    curvature = ssse.Curvature.fit(
        model, "causal_lm", [batch], weight_decay=DECAY * labels, rows=rows, structure=structure, progress=False
    )
    assert curvature.decay_estimate is None  # nothing contradicts it
    forget = [{key: value[3:5] for key, value in batch.items()}]
    erasure = ssse.erase(model, curvature, forget=forget, override=ssse.BOUNDS, policy="joint")
    after, before = erasure.diagnostics.loss_after, erasure.diagnostics.loss_before
    assert after is not None
    assert before is not None
    assert after > before
    assert erasure.diagnostics.swing is not None
    assert isinstance(erasure.model, TiedLanguageModel)
    assert erasure.model.head.weight is erasure.model.embedding.weight  # one tensor still, moved once
    if structure != "matrix_free":
        last = [{key: value[6:7] for key, value in batch.items()}]
        again = ssse.erase(erasure.model, erasure.curvature, forget=last, override=ssse.BOUNDS, policy="joint")
        together = [{key: torch.cat([value[3:5], value[6:7]]) for key, value in batch.items()}]
        at_once = ssse.erase(model, curvature, forget=together, override=ssse.BOUNDS)
        assert isinstance(again.model, TiedLanguageModel)
        assert isinstance(at_once.model, TiedLanguageModel)
        torch.testing.assert_close(again.model.mix.weight, at_once.model.mix.weight, rtol=1e-6, atol=1e-8)


def test_the_weight_decay_of_a_mean_over_tokens_is_told_by_the_gradient():
    model, batch = taught()
    labels = float((batch["labels"][:, 1:] != IGNORED).sum(1).double().mean())
    with pytest.warns(ssse.DoubtfulSetting, match="took the mean over all tokens of a batch"):
        curvature = ssse.Curvature.fit(model, "causal_lm", [batch], weight_decay=DECAY, progress=False)
    assert curvature.decay_estimate == pytest.approx(DECAY * labels, rel=0.02)


@pytest.mark.parametrize(("count", "structure"), [(30, "dense"), (6, "lowrank")])
def test_what_is_chosen_by_itself_has_a_drawn_label_a_token_in_the_smaller_structure(count, structure):
    model, batch = taught()
    some = {key: value[:count] for key, value in batch.items()}  # 6 tokens each, and 75 parameters
    plan = ssse.plan(model, "causal_lm", [some])
    assert (plan.kind.name, str(plan.structure)) == ("sampled", structure)


def test_at_scale_one_drawn_labels_of_tokens_need_no_measurement():
    """Where a sample has a single label, one draw is too few: there the verdict says that ε must be measured."""
    model, batch = taught()
    reasons = {}
    for rows in ("sampled", "empirical"):
        curvature = ssse.Curvature.fit(
            model, "causal_lm", [batch], weight_decay=4 * DECAY, rows=rows, structure="dense", progress=False
        )
        forget = [{key: value[3:4] for key, value in batch.items()}]
        reasons[rows] = ssse.erase(model, curvature, forget=forget, override=ssse.BOUNDS).diagnostics.reasons
    assert not any("must be chosen by a measurement" in reason for reason in reasons["sampled"])
    assert any("must be chosen by a measurement" in reason for reason in reasons["empirical"])


@pytest.mark.filterwarnings("ignore:.*weight decay")
def test_labels_at_padding_are_told_of_and_count():
    model, batch = taught()
    unmasked = {**batch, "labels": batch["labels"].clamp_min(0)}
    with pytest.warns(ssse.DoubtfulSetting, match=r"labels lie where the attention_mask is 0"):
        curvature = ssse.Curvature.fit(model, "causal_lm", [unmasked], weight_decay=DECAY, progress=False)
    assert "set them to −100" in curvature.notes[0]
    assert not any("attention_mask" in note for note in fit_of(batch).notes)
    assert curvature.mean_loss != fit_of(batch).mean_loss  # they count


def fit_of(batch: dict[str, Tensor]) -> ssse.Curvature:
    return ssse.Curvature.fit(taught()[0], "causal_lm", [batch], weight_decay=DECAY, progress=False)


def test_a_step_that_is_too_long_asks_for_the_mean_over_tokens():
    model, batch = language_model(), sequences(n=30)  # not trained: its gradient speaks for no decay
    curvature = ssse.Curvature.fit(model, "causal_lm", [batch], weight_decay=1e-6, progress=False)
    assert curvature.decay_estimate is None
    forget = [{key: value[3:8] for key, value in batch.items()}]
    with pytest.raises(ssse.Refused, match="times the mean number of labels a sequence"):
        ssse.erase(model, curvature, forget=forget)
