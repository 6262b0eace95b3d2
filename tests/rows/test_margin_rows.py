"""Rows of the margin φ, in which cross-entropy is a binary logistic loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from ssse.errors import InvalidSetting
from ssse.problem.losses import as_loss
from ssse.problem.problem import Problem
from ssse.rows import kinds
from ssse.rows.kinds import RowKind, measure_held
from tests.support import dense, problems

MARGIN = RowKind("margin")


def rows_of(sample: problems.Sample, name: kinds.RowName) -> Tensor:
    problem = Problem(sample.model, sample.loss, "all", (sample.x, sample.y))
    return measure_held(problem, RowKind(name), (sample.x, sample.y))[0].matrix()


@pytest.mark.parametrize("make", [problems.linear, problems.mlp])
def test_they_are_the_hessian_of_the_logistic_loss_of_the_linearised_margin(make):
    """Σ log(1 + e^−φ̃) with φ̃(θ) = φ(θ*) + ∇φ(θ*)·(θ − θ*), differentiated twice by torch."""
    sample = make("cross_entropy")
    names = [name for name, _ in sample.model.named_parameters()]
    shapes = [p.shape for p in sample.model.parameters()]
    start = dense.theta(sample.model)

    def margins(theta: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(theta.split([s.numel() for s in shapes]), shapes, strict=True)]
        z = torch.func.functional_call(sample.model, dict(zip(names, parts, strict=True)), (sample.x,))
        p = z.softmax(1).gather(1, sample.y[:, None]).squeeze(1)
        return p.log() - (1 - p).log()

    phi, slopes = margins(start), torch.func.jacrev(margins)(start)
    loss = F.cross_entropy(sample.model(sample.x), sample.y, reduction="sum")
    torch.testing.assert_close(F.softplus(-phi).sum(), loss)  # the same loss, in another variable

    def linearised(theta: Tensor) -> Tensor:
        return F.softplus(-(phi + slopes @ (theta - start))).sum()

    rows = rows_of(sample, "margin")
    assert len(rows) == len(sample.x)  # one a sample
    torch.testing.assert_close(rows.T @ rows, torch.func.hessian(linearised)(start), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [problems.linear, problems.mlp])
def test_for_two_classes_and_for_attributes_they_are_the_expected_ones(make):
    for sample in (make("cross_entropy", c=2), make("binary_cross_entropy"), make("binary_cross_entropy", c=1)):
        margin, expected = rows_of(sample, "margin"), rows_of(sample, "expected")
        torch.testing.assert_close(margin.T @ margin, expected.T @ expected, rtol=1e-9, atol=1e-12)


def test_they_leave_out_how_the_other_classes_share_what_is_left():
    """∇²ℓ = p(1−p) ∇φ∇φᵀ + (1−p)(diag s − s sᵀ) with s the softmax of the others: never more than expected rows."""
    generator = torch.Generator().manual_seed(0)
    z, y = 2 * torch.randn(9, 5, generator=generator, dtype=torch.float64), torch.arange(9) % 5
    margin, expected = (
        RowKind(name).cores(as_loss("cross_entropy"), z, y, z).dense() for name in ("margin", "expected")
    )
    p = z.softmax(1)
    for i in range(len(z)):
        own = int(y[i])
        s = p[i].clone()
        s[own] = 0
        s /= s.sum()
        rest = (1 - p[i, own]) * (torch.diag(s) - torch.outer(s, s))
        torch.testing.assert_close(margin[i].T @ margin[i] + rest, expected[i].T @ expected[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("confidence", [0.0, 40.0, 80.0, -80.0, 1e4, -1e4])
def test_confident_samples_keep_their_weight(dtype, confidence):
    """Where p rounds to 1, √(p(1−p)) is e^(−φ/2) and not 0, and nothing is divided by 1 − p."""
    z = torch.tensor([[0.5, confidence, -0.5]], dtype=dtype)
    y = torch.tensor([1])
    core = MARGIN.cores(as_loss("cross_entropy"), z, y, z).dense()[0, 0]
    phi = confidence - math.log(math.exp(0.5) + math.exp(-0.5))
    weight = math.exp(-abs(phi) / 2) / (1 + math.exp(-abs(phi)))
    others = torch.tensor([0.5, -0.5], dtype=torch.float64).softmax(0)
    wanted = weight * torch.tensor([-float(others[0]), 1.0, -float(others[1])], dtype=torch.float64)
    torch.testing.assert_close(core.double(), wanted, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-25)


def test_one_class_alone_has_no_margin_to_move():
    z, y = torch.randn(4, 1), torch.zeros(4, dtype=torch.long)
    assert float(MARGIN.cores(as_loss("cross_entropy"), z, y, z).dense().abs().sum()) == 0


def squared(z: Tensor, y: Tensor) -> Tensor:
    return (z - y).square().sum()


@pytest.mark.parametrize("loss", ["mse", squared, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_other_losses_have_none_and_say_so_before_the_pass(loss):
    sample = problems.mlp("cross_entropy" if isinstance(loss, nn.Module) else "mse")
    read = []
    data = [(sample.x[:20], sample.y[:20]), (sample.x[20:], sample.y[20:])]

    def counted():
        for batch in data:
            read.append(len(batch[1]))
            yield batch

    with pytest.raises(InvalidSetting, match=r'rows="margin" needs a loss that is logistic.*Use rows="expected"'):
        ssse.Curvature.fit(sample.model, loss, counted(), damping=1e-2, rows="margin", structure="dense")
    assert read == [20]


def test_a_network_is_passed_once_for_rows_and_gradient(monkeypatch):
    sample = problems.mlp()
    calls = []
    forward = type(sample.model).forward
    monkeypatch.setattr(type(sample.model), "forward", lambda self, x: calls.append(1) or forward(self, x))
    problem = Problem(sample.model, sample.loss, "all", (sample.x, sample.y))
    problem.derivatives.choose_rows(problem, sample.x)
    calls.clear()
    measure_held(problem, MARGIN, (sample.x, sample.y))
    assert len(calls) == 1


def test_their_curvature_is_stored_merged_and_used_again(tmp_path):
    sample, decay = problems.mlp(), 1e-2
    half = len(sample.x) // 2
    forget = sample.part(slice(0, 4))
    options = {"weight_decay": decay, "rows": "margin", "progress": False}
    for structure in ("dense", "lowrank"):
        whole = ssse.Curvature.fit(sample.model, sample.loss, sample.data, structure=structure, **options)
        shards = [
            ssse.Curvature.fit(sample.model, sample.loss, sample.part(part), structure=structure, **options)
            for part in (slice(0, half), slice(half, None))
        ]
        merged = ssse.Curvature.merge(shards)
        merged.save(tmp_path / structure)
        back = ssse.Curvature.load(tmp_path / structure)
        assert back.kind == MARGIN
        wanted = ssse.erase(sample.model, whole, forget=forget, override=ssse.BOUNDS)
        found = ssse.erase(sample.model, back, forget=forget, override=ssse.BOUNDS)
        torch.testing.assert_close(found.step, wanted.step, rtol=1e-8, atol=1e-12)
        rows = dense.margin_rows(sample.model, sample.loss, sample.x, sample.y)
        erased = dense.erased(
            sample.model, sample.loss, rows, rows[:4], forget[0], len(sample.x), decay, decay, leave_out=False
        )
        plain = ssse.erase(sample.model, back, forget=forget, leave_out=False)
        torch.testing.assert_close(dense.theta(plain.model), erased, rtol=1e-8, atol=1e-12)
