"""Losses of sequences, against torch's own cross-entropy one token at a time, and against the general derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import hessian, jacrev

import ssse
from ssse.errors import InvalidData, InvalidModel, InvalidSetting
from ssse.problem.losses import as_loss
from ssse.problem.problem import Problem
from ssse.problem.token_losses import IGNORED, TOKEN_LOSSES, TokenLoss
from ssse.rows.kinds import RowKind, uniforms_of_samples
from tests.support.sequences import language_model, padded, sequences

NAMES = list(TOKEN_LOSSES)
V = 5


def drawn(n: int = 4, length: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, length * V, generator=generator, dtype=torch.float64)
    y = torch.randint(V, (n, length), generator=generator)
    y[0, 3:] = IGNORED
    y[1, :2] = IGNORED
    return z, y


def loss_named(name: str) -> TokenLoss:
    loss = as_loss(name)
    assert isinstance(loss, TokenLoss)
    return loss.bound((4, 6, V), torch.zeros(4, 6))


def plainly(name: str, z: Tensor, y: Tensor) -> Tensor:
    """One sequence, one token after another."""
    scores, length = z.view(-1, V), len(y)
    pairs = (
        [(scores[t], y[t + 1]) for t in range(length - 1)]
        if name.startswith("causal")
        else [(scores[t], y[t]) for t in range(length)]
    )
    each = [F.cross_entropy(one[None], label[None]) for one, label in pairs if int(label) != IGNORED]
    return torch.stack(each).mean() if name.endswith("_mean") else torch.stack(each).sum()


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_a_plain_loop_over_tokens(name):
    loss, (z, y) = loss_named(name), drawn()
    torch.testing.assert_close(loss.values(z, y), torch.stack([plainly(name, *one) for one in zip(z, y, strict=True)]))
    for i in range(len(z)):
        slope = jacrev(lambda one, i=i: plainly(name, one, y[i]))(z[i])
        torch.testing.assert_close(loss.gradient(z, y)[i], slope)


@pytest.mark.parametrize("name", NAMES)
def test_margins_are_the_same_loss_with_the_curvature_of_the_true_label(name):
    loss, (z, y) = loss_named(name), drawn()
    margins = loss.margin(z, y)
    weight = 1.0 if margins.weight is None else margins.weight
    torch.testing.assert_close((weight * F.softplus(-margins.phi)).sum(1), loss.values(z, y))
    torch.testing.assert_close((margins.slopes[:, :, None] * margins.direction).flatten(1), loss.gradient(z, y))
    cores = RowKind("margin").cores(loss, z, y, z).dense()
    for i in range(len(z)):
        whole = hessian(lambda one, i=i: plainly(name, one, y[i]))(z[i])
        left = whole - cores[i].T @ cores[i]  # what the other labels share of the rest: never negative
        assert float(torch.linalg.eigvalsh(left).min()) > -1e-12
        nothing = loss.targets(y)[i] == IGNORED
        assert float(cores[i][nothing].abs().sum()) == 0
    two = TokenLoss(name, shifted=loss.shifted, mean=loss.mean, vocabulary=2)
    z, y = drawn()[0].view(4, 6, V)[:, :, :2].flatten(1), y.clamp(max=1)
    rows = RowKind("margin").cores(two, z, y, z).dense()
    with_two = torch.stack([hessian(lambda one, i=i: two.values(one[None], y[i][None])[0])(z[i]) for i in range(4)])
    torch.testing.assert_close(rows.mT @ rows, with_two)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_rows_have_the_curvature_of_all_labels_on_average(name):
    """Over 20,000 draws; positions are independent, so nothing is left between them."""
    loss, z, y = loss_named(name), drawn()[0][:1], drawn()[1][:1]
    y[0] = torch.tensor([1, IGNORED, 2, 3, IGNORED, 4])
    uniform = torch.rand(20_000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    many = len(uniform)
    rows = loss.sampled(z.expand(many, -1).clone(), y.expand(many, -1), uniform)
    truth = hessian(lambda one: plainly(name, one, y[0]))(z[0])
    found = rows.T @ rows / many
    assert float((found - truth).norm() / truth.norm()) < 0.05


def test_a_mapping_of_the_transformers_library_is_read_as_it_is():
    batch = sequences()
    x = {key: batch[key] for key in ("input_ids", "attention_mask")}
    problem = Problem(language_model(), "causal_lm", "all", (x, batch["labels"]))
    assert problem.outputs == 6 * 7
    assert isinstance(problem.loss, TokenLoss)
    assert problem.loss.vocabulary == 7
    z, _ = problem.forward(x)
    theirs = F.cross_entropy(z.view(-1, 6, 7)[:, :-1].mT, batch["labels"][:, 1:], ignore_index=IGNORED, reduction="sum")
    assert problem.total_loss(z, batch["labels"]) == pytest.approx(float(theirs), rel=1e-12)


@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_neither_loss_nor_what_is_drawn(left):
    batch = sequences()
    batch["labels"][:, 0] = IGNORED  # else padding at the left predicts it
    more = padded(batch, 3, left=left)
    losses = []
    for one in (batch, more):
        x = {key: one[key] for key in ("input_ids", "attention_mask")}
        problem = Problem(language_model(), "causal_lm", "all", (x, one["labels"]))
        z, _ = problem.forward(x)
        uniform = torch.rand(12, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        sampled = problem.loss.sampled(z, one["labels"], uniform[:, : problem.loss.draws(z.shape[1])])
        scores = sampled.view(12, -1, 7)
        losses.append((problem.loss.values(z, one["labels"]), scores[:, 3:] if left and len(losses) else scores[:, :6]))
    torch.testing.assert_close(losses[0], losses[1])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.zeros(3, 6), r"whole number a token.*got torch\.float32 of shape \(3, 6\)"),
        (torch.zeros(3, dtype=torch.long), r"outputs of shape \(sequences, tokens, vocabulary\).*labels are \(3,\)"),
        (torch.zeros(3, 5, dtype=torch.long), r"outputs at 6 positions and the labels are of 5"),
        (torch.full((3, 6), 7), r"Labels must lie in 0 … 6, the model's vocabulary, or be -100; found 7 … 7"),
        (torch.full((3, 6), -1), r"found -1 … -1"),
        (torch.full((3, 6), IGNORED), r"Sequence 0 of a batch of 3 has no label to predict"),
    ],
)
def test_labels_that_cannot_be_are_refused_in_a_sentence(labels, said):
    ids = torch.ones(3, 6, dtype=torch.long)
    with pytest.raises(InvalidData, match=said):
        Problem(language_model(), "causal_lm", "all", (ids, labels))


def test_expected_rows_are_refused_before_the_pass():
    batch = sequences()
    said = r'would be 42 a sequence.*Use rows="sampled" or rows="margin", one a token'
    with pytest.raises(InvalidSetting, match=said):
        ssse.Curvature.fit(language_model(), "causal_lm", [batch], damping=0.1, rows="expected")


def test_another_named_loss_names_the_one_that_is_meant():
    ids = torch.ones(3, 6, dtype=torch.long)
    with pytest.raises(InvalidModel, match=r"pass 'causal_lm' or 'token_cross_entropy'"):
        Problem(language_model(), "cross_entropy", "all", (ids, torch.zeros(3, dtype=torch.long)))


def test_cross_entropy_draws_what_it_drew_before():
    """One number a sample is enough, and it is the first of those that were drawn before."""
    x = torch.randn(5, 3)
    assert (uniforms_of_samples(x, 10, 0)[:, :1] == uniforms_of_samples(x, 1, 0)).all()
