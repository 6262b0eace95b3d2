"""Rows of every kind, by every route, against plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssse.errors import InvalidSetting
from ssse.problem.batches import regroup
from ssse.problem.parameters import Block, LinearShape, make_blocks
from ssse.problem.problem import Problem
from ssse.problem.view import ParameterChoice
from ssse.rows.autodiff import NetworkRows
from ssse.rows.held import ExplicitRows, HeldRows, LinearRows, StackedRows
from ssse.rows.kinds import RowKind, measure, measure_held, uniforms_of_samples
from tests.support import dense, problems

LINEAR = [problems.linear(loss, bias) for loss in dense.LOSSES for bias in (True, False)]
NETWORKS = [*(problems.mlp(loss) for loss in dense.LOSSES), problems.tied(), problems.conv()]


def probed(sample: problems.Sample, parameters: ParameterChoice = "all") -> Problem:
    problem = Problem(sample.model, sample.loss, parameters, (sample.x, sample.y))
    return problem


def truth(sample: problems.Sample, kind: str) -> torch.Tensor:
    return dense.ROWS[kind](sample.model, sample.loss, sample.x, sample.y)


def of_every_kind(*samples: problems.Sample):
    """Margins are of the two logistic losses alone."""
    cases = [(s, kind) for s in samples for kind in dense.ROWS if (s.loss, kind) != ("mse", "margin")]
    return pytest.mark.parametrize(("sample", "kind"), cases, ids=lambda c: getattr(c, "name", c))


@of_every_kind(*LINEAR, *NETWORKS)
def test_rows_equal_plain_autograd(sample, kind):
    problem = probed(sample)
    assert (problem.linear is not None) == (sample in LINEAR)
    held, _ = measure_held(problem, RowKind(kind), (sample.x, sample.y))
    torch.testing.assert_close(held.matrix(), truth(sample, kind), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sample", LINEAR + NETWORKS, ids=lambda s: s.name)
def test_per_sample_gradients_sum_to_the_batch_gradient(sample):
    expected = dense.gradient(sample.model, dense.LOSSES[sample.loss], sample.x, sample.y)
    for kind in ("empirical", "expected") if sample.loss == "mse" else ("empirical", "expected", "margin"):
        for way in (lambda *of: measure_held(*of)[1], measure):
            measured = way(probed(sample), RowKind(kind), (sample.x, sample.y))
            torch.testing.assert_close(measured.gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sample", LINEAR, ids=lambda s: s.name)
def test_expected_rows_of_a_linear_model_give_its_hessian(sample):
    names = [name for name, _ in sample.model.named_parameters()]

    def loss(*values):
        z = torch.func.functional_call(sample.model, dict(zip(names, values, strict=True)), (sample.x,))
        return dense.LOSSES[sample.loss](z, sample.y)

    values = tuple(p.detach() for p in sample.model.parameters())
    parts = torch.func.hessian(loss, argnums=tuple(range(len(values))))(*values)
    sizes = [v.numel() for v in values]
    rows = [[parts[i][j].reshape(sizes[i], sizes[j]) for j in range(len(sizes))] for i in range(len(sizes))]
    hessian = torch.cat([torch.cat(row, dim=1) for row in rows])
    held, _ = measure_held(probed(sample), RowKind("expected"), (sample.x, sample.y))
    torch.testing.assert_close(held.matrix().T @ held.matrix(), hessian, rtol=1e-9, atol=1e-11)


@of_every_kind(*LINEAR)
@pytest.mark.parametrize("spec", ["one", "parameter", "output", 4, 7])
def test_linear_rows_never_formed_equal_explicit_rows(sample, kind, spec):
    problem = probed(sample)
    held, _ = measure_held(problem, RowKind(kind), (sample.x, sample.y))
    assert isinstance(held, LinearRows)
    explicit = ExplicitRows(truth(sample, kind))
    generator = torch.Generator().manual_seed(1)
    for shape in ((), (3,)):
        v = torch.randn(explicit.dim, *shape, generator=generator, dtype=torch.float64)
        u = torch.randn(explicit.count, *shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(held.times(v), explicit.times(v))
        torch.testing.assert_close(held.transposed_times(u), explicit.transposed_times(u))
    torch.testing.assert_close(held.kernel(held), explicit.kernel(explicit))
    torch.testing.assert_close(held.squares(), explicit.squares())
    keep = torch.tensor([0, 2, 5, explicit.count - 1])
    torch.testing.assert_close(held.select(keep).matrix(), explicit.select(keep).matrix())
    for block in make_blocks(problem.layout, spec, problem.linear):
        wanted = torch.zeros(block.size, block.size, dtype=torch.float64)
        found = wanted.clone()
        explicit.add_gram(wanted, block)
        held.add_gram(found, block)
        torch.testing.assert_close(found.tril(), wanted.tril())
        compact = held.restricted(block)
        assert len(compact) == held.count_on(block)
        torch.testing.assert_close((compact.T @ compact).tril(), wanted.tril())
        columns, part = held.columns(block), block.take(explicit.matrix(), dim=1)
        assert (columns.count, columns.dim) == part.shape
        for shape in ((), (3,)):
            v = torch.randn(block.size, *shape, generator=generator, dtype=torch.float64)
            u = torch.randn(explicit.count, *shape, generator=generator, dtype=torch.float64)
            for rows in (columns, explicit.columns(block), StackedRows([held]).columns(block)):
                torch.testing.assert_close(rows.times(v), part @ v)
                torch.testing.assert_close(rows.transposed_times(u), part.T @ u)
        torch.testing.assert_close(columns.kernel(columns), part @ part.T)


@pytest.mark.parametrize("spec", ["one", "parameter", "output", 4, 13])
def test_columns_of_a_block_look_into_the_rows_and_do_not_copy_them(spec):
    sample = problems.linear("cross_entropy")
    problem = probed(sample)
    held, _ = measure_held(problem, RowKind("expected"), (sample.x, sample.y))
    assert isinstance(held, LinearRows)
    explicit = ExplicitRows(held.matrix())
    for rows in (held, explicit):
        own = {tensor.untyped_storage().data_ptr() for tensor in rows.tensors().values()}
        for block in make_blocks(problem.layout, spec, problem.linear):
            slabs = StackedRows([rows]).columns(block).slabs
            seen = [tensor for slab in slabs for tensor in slab.tensors().values()]
            assert {tensor.untyped_storage().data_ptr() for tensor in seen} == own


def test_whole_outputs_of_a_block_are_one_product():
    shape = LinearShape(outputs=6, inputs=5, bias=True)
    slabs = shape.slabs(Block("3:32", ((3, 32),)))
    assert [(s.outputs, s.columns) for s in slabs] == [
        (slice(0, 1), slice(3, 5)),
        (slice(1, 6), slice(0, 5)),
        (slice(0, 2), slice(5, 6)),
    ]
    assert [s.shape.outputs * s.shape.inputs for s in slabs] == [2, 25, 2]


def test_restricting_to_one_output_leaves_one_row_a_sample():
    sample = problems.linear("cross_entropy")
    problem = probed(sample)
    held, _ = measure_held(problem, RowKind("expected"), (sample.x, sample.y))
    blocks = make_blocks(problem.layout, "output", problem.linear)
    assert [len(held.restricted(block)) for block in blocks] == [len(sample.x)] * 3


@of_every_kind(*NETWORKS)
def test_network_products_equal_explicit_rows(sample, kind):
    rows = measure(probed(sample), RowKind(kind), (sample.x, sample.y)).rows
    assert isinstance(rows, NetworkRows)
    matrix = truth(sample, kind)
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(matrix.shape[1], generator=generator, dtype=torch.float64)
    u = torch.randn(matrix.shape[0], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(rows.times(v), matrix @ v, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(rows.transposed_times(u), matrix.T @ u, rtol=1e-9, atol=1e-11)


def test_stacked_rows_are_the_rows_one_below_the_other():
    sample = problems.linear("cross_entropy")
    problem = probed(sample)
    parts: list[HeldRows] = [measure_held(problem, RowKind("expected"), batch)[0] for batch in regroup(sample.data, 7)]
    stacked, whole = StackedRows(parts), ExplicitRows(truth(sample, "expected"))
    torch.testing.assert_close(stacked.matrix(), whole.matrix())
    u = torch.arange(whole.count, dtype=torch.float64)
    torch.testing.assert_close(stacked.transposed_times(u), whole.transposed_times(u))
    torch.testing.assert_close(stacked.kernel(parts[2]), whole.kernel(ExplicitRows(parts[2].matrix())))
    keep = torch.tensor([0, 1, 2, 30, 31, 100, 119])
    torch.testing.assert_close(stacked.select(keep).matrix(), whole.matrix()[keep])


@pytest.mark.parametrize("sample", [problems.linear("cross_entropy"), problems.mlp()], ids=lambda s: s.name)
@pytest.mark.parametrize("loader_batch", [1, 7, 40])
def test_mini_batch_rows_are_the_papers_whatever_the_loader_cuts(sample, loader_batch):
    b, n = 5, len(sample.x)
    problem, kind = probed(sample), RowKind("empirical", per_batch=5)
    batches = regroup(regroup(sample.data, loader_batch), 10)
    rows = torch.cat([measure_held(problem, kind, batch)[0].matrix() for batch in batches])
    means = truth(sample, "empirical").view(n // b, b, -1).mean(1)
    torch.testing.assert_close(rows.T @ rows / n, means.T @ means / (n // b), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", list(dense.LOSSES))
def test_sampled_rows_average_to_the_expected_ones(loss):
    """Seeds 0 … 1999; the mean of squares must come within five standard errors of its expectation."""
    sample = problems.linear(loss, n=6, p=3, c=2, seed=3)
    problem = probed(sample)
    expected = truth(sample, "expected")
    wanted = expected.T @ expected
    draws = []
    for seed in range(2000):
        held, _ = measure_held(problem, RowKind("sampled", seed=seed), (sample.x, sample.y))
        draws.append(held.matrix().T @ held.matrix())
    stacked = torch.stack(draws)
    error = (stacked.mean(0) - wanted).abs()
    assert bool((error < 5 * stacked.std(0) / len(draws) ** 0.5 + 1e-12).all())


def test_a_sample_draws_the_same_label_in_any_batch():
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    whole = uniforms_of_samples(x, 3, seed=5)
    assert whole.min() >= 0
    assert whole.max() < 1
    assert (uniforms_of_samples(x[4:6], 3, seed=5) == whole[4:6]).all()
    assert (uniforms_of_samples({"a": x, "b": x}, 3, seed=5) != whole).all()
    assert (uniforms_of_samples(x, 3, seed=6) != whole).all()


def test_a_custom_loss_gives_the_rows_of_the_named_one():
    for name, function in (
        ("cross_entropy", lambda z, y: F.cross_entropy(z, y) + 0.0),
        ("binary_cross_entropy", lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="sum")),
        ("mse", lambda z, y: 0.5 * ((z - y) ** 2).sum(1)),  # reduction none: one value a sample
    ):
        sample = problems.mlp(name)
        problem = Problem(sample.model, function, "all", (sample.x, sample.y))
        for kind in ("empirical", "expected"):
            rows = measure_held(problem, RowKind(kind), (sample.x, sample.y))[0].matrix()
            wanted = truth(sample, kind)
            torch.testing.assert_close(rows.T @ rows, wanted.T @ wanted, rtol=1e-8, atol=1e-10)


def test_head_and_named_and_frozen_parameters():
    sample = problems.conv()
    whole = truth(sample, "empirical")
    for choice, start in (("head", 36), (["head.bias", "norm.weight"], None)):
        problem = probed(sample, choice)
        rows = measure_held(problem, RowKind("empirical"), (sample.x, sample.y))[0].matrix()
        if start is not None:
            assert problem.linear is not None  # the head of a network is linear in its parameters
            torch.testing.assert_close(rows, whole[:, start:], rtol=1e-9, atol=1e-12)
        else:
            assert problem.layout.names == ("norm.weight", "head.bias")
            torch.testing.assert_close(rows, torch.cat([whole[:, 30:33], whole[:, -4:]], 1), rtol=1e-9, atol=1e-12)
    sample.model.conv.requires_grad_(False)  # type: ignore[union-attr]
    rows = measure_held(probed(sample), RowKind("empirical"), (sample.x, sample.y))[0].matrix()
    torch.testing.assert_close(rows, whole[:, 30:], rtol=1e-9, atol=1e-12)


def test_mapping_batches_and_logits_objects():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3).double(), nn.Linear(2, 3).double()

        def forward(self, left, right):
            return {"logits": self.a(left) + torch.tanh(self.b(right))}

    torch.manual_seed(0)
    model = Named().eval()
    x = {"left": torch.randn(5, 2).double(), "right": torch.randn(5, 2).double()}
    y = torch.tensor([0, 1, 2, 0, 1])
    problem = Problem(model, "cross_entropy", "all", (x, y))
    rows = measure_held(problem, RowKind("empirical"), (x, y))[0].matrix()
    for i in range(5):
        loss = F.cross_entropy(model(x["left"][i : i + 1], x["right"][i : i + 1])["logits"], y[i : i + 1])
        wanted = dense.flat(torch.autograd.grad(loss, list(model.parameters())))
        torch.testing.assert_close(rows[i], wanted)


class InPlaceRelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3).double()

    def forward(self, x):
        return self.fc(x).relu_()


class InPlaceScale(InPlaceRelu):
    def forward(self, x):
        z = self.fc(x)
        z /= 4
        return z


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5).double()

    def forward(self, x):
        return self.fc(torch.tanh(F.linear(x, self.fc.weight)))


@pytest.mark.parametrize("make", [InPlaceRelu, InPlaceScale, UsedTwice])
def test_models_that_only_look_linear_are_not_taken_for_it(make):
    torch.manual_seed(0)
    sample = problems.linear("cross_entropy")
    sample.model = make().eval()
    problem = probed(sample)
    assert problem.linear is None
    rows = measure_held(problem, RowKind("empirical"), (sample.x, sample.y))[0].matrix()
    torch.testing.assert_close(rows, truth(sample, "empirical"), rtol=1e-9, atol=1e-12)


class HeadFirst(nn.Module):
    """Registered in another order than it runs."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(4, 3).double(), nn.Linear(5, 4).double()

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def test_the_head_is_the_layer_that_runs_last_or_is_refused():
    sample = problems.linear("cross_entropy")
    sample.model = HeadFirst().eval()
    with pytest.raises(InvalidSetting, match=r"'body.weight', 'body.bias'.*'head.weight' runs last"):
        probed(sample, "head")
    tied = problems.tied()
    tied.model.head.weight = tied.model.first.weight  # type: ignore[union-attr]
    tied.model.head.bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))  # type: ignore[union-attr]
    problem = probed(tied, "head")
    assert problem.layout.names == ("first.weight", "head.bias")
    assert problem.linear is None  # the weight is at work elsewhere too


def test_keeping_whole_samples_keeps_their_features_once():
    sample = problems.linear("cross_entropy")
    held, _ = measure_held(probed(sample), RowKind("expected"), (sample.x, sample.y))
    assert isinstance(held, LinearRows)
    kept = held.select(torch.arange(6, 120))
    assert kept.features.shape[0] == 38
    torch.testing.assert_close(kept.matrix(), held.matrix()[6:])
