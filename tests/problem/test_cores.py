"""Cores in few numbers do what the same cores do written out, and keep the digits of confident samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ssse.problem.cores import Cores, DenseCores, DiagonalCores
from ssse.problem.losses import as_loss
from ssse.problem.softmax_cores import SoftmaxCores, cores_from_tensors, join_cores

N, C = 7, 5


def softmax(seed: int = 0, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(N, C, generator=generator, dtype=torch.float64)).softmax(1).to(dtype)


def written_out(p: Tensor) -> Tensor:
    """√p_r (e_r − p)."""
    return p.sqrt()[:, :, None] * (torch.eye(p.shape[1], dtype=p.dtype) - p[:, None, :])


def cases() -> dict[str, tuple[Cores, Tensor]]:
    p, v = softmax(), softmax(1).log()
    scale = torch.linspace(0, 2, N, dtype=torch.float64)
    truth, diagonal = written_out(p), torch.diag_embed(v)
    return {
        "dense": (DenseCores(truth[:, :3]), truth[:, :3]),
        "diagonal": (DiagonalCores(v), diagonal),
        "diagonal, scaled": (DiagonalCores(v).scaled(scale), diagonal * scale[:, None, None]),
        "diagonal, some outputs": (DiagonalCores(v).on(slice(1, 4)), diagonal[:, :, 1:4]),
        "softmax": (SoftmaxCores(p), truth),
        "softmax, scaled": (SoftmaxCores(p).scaled(scale).scaled(scale), truth * scale.square()[:, None, None]),
        "softmax, some outputs": (SoftmaxCores(p).on(slice(1, 4)), truth[:, :, 1:4]),
        "softmax, some of some": (
            SoftmaxCores(p, scale).on(slice(1, 5)).on(slice(1, 2)),
            (truth * scale[:, None, None])[:, :, 2:3],
        ),
    }


@pytest.mark.parametrize("name", cases())
def test_they_do_what_the_same_ones_do_written_out(name):
    cores, truth = cases()[name]
    n, r, c = truth.shape
    assert cores.shape == (n, r, c)
    torch.testing.assert_close(cores.dense(), truth)
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(n, c, 3, generator=generator, dtype=torch.float64)
    u = torch.randn(n, r, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(cores.times(z), truth @ z)
    torch.testing.assert_close(cores.transposed_times(u), truth.mT @ u)
    square = truth.mT @ truth
    torch.testing.assert_close(cores.squares(), square.diagonal(dim1=1, dim2=2))
    assert cores.mass == pytest.approx(float(truth.square().sum()))
    for a in range(c):
        for b in range(c):
            weights = cores.weights(a, b)
            torch.testing.assert_close(torch.zeros(n).double() if weights is None else weights, square[:, a, b])
    for outputs in ([0], list(range(c)), [c - 1, 0][: min(c, 2)]):
        compact = cores.compact(outputs)
        assert compact.shape[1] <= min(r, len(outputs))
        torch.testing.assert_close(compact.mT @ compact, square[:, outputs][:, :, outputs])
    index = torch.tensor([0, r - 1, 2 * r, n * r - 1])
    torch.testing.assert_close(cores.rows(index).dense()[:, 0], truth.reshape(n * r, c)[index])
    chosen = torch.tensor([3, 0])
    torch.testing.assert_close(cores.samples(chosen).dense(), truth[chosen])
    torch.testing.assert_close(cores.to(torch.float32).dense().double(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dense", "diagonal", "diagonal, scaled", "softmax", "softmax, scaled"])
def test_they_come_back_from_the_disk_and_in_one(name):
    cores, truth = cases()[name]
    back = cores_from_tensors(cores.tensors())
    assert type(back) is type(cores)
    torch.testing.assert_close(back.dense(), truth)
    torch.testing.assert_close(join_cores([cores, back]).dense(), torch.cat([truth, truth]))
    assert type(join_cores([cores, back])) is type(cores)


def test_a_mixture_is_written_out():
    (one, p), (other, q), (plain, r) = (cases()[name] for name in ("softmax", "diagonal", "softmax, scaled"))
    torch.testing.assert_close(join_cores([one, other]).dense(), torch.cat([p, q]))
    joined = join_cores([one, plain])
    assert isinstance(joined, SoftmaxCores)
    torch.testing.assert_close(joined.dense(), torch.cat([p, r]))


@pytest.mark.parametrize("top", [0, 3])
def test_a_confident_sample_keeps_its_digits(top):
    """Where p rounds to 1 in float32, 1 − p is the sum of the others and not 0."""
    z = torch.tensor([[0.5, 0.1, -0.3, 0.2, -1.0]], dtype=torch.float64)
    z[0, top] = 20.0
    truth = written_out(z.softmax(1))
    cores = as_loss("cross_entropy").cores(z.float(), torch.tensor([0]))
    assert isinstance(cores, SoftmaxCores)
    square = truth.mT @ truth
    roots = square.diagonal(dim1=1, dim2=2).sqrt()
    torch.testing.assert_close(cores.squares().double().sqrt(), roots, rtol=1e-5, atol=0)
    every = list(range(C))
    for outputs in (every, every[::-1], [top], [1, top], [top, 2], [1, 2]):
        compact = cores.compact(outputs).double() / roots[:, None, outputs]  # correlations: against the diagonal
        wanted = square[:, outputs][:, :, outputs] / (roots[:, outputs, None] * roots[:, None, outputs])
        torch.testing.assert_close(compact.mT @ compact, wanted, rtol=1e-5, atol=1e-5)
    unit = torch.zeros(1, C, 1)
    unit[0, top] = 1
    torch.testing.assert_close(cores.times(unit).double(), truth @ unit.double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(cores.transposed_times(unit).double(), truth.mT @ unit.double(), rtol=1e-5, atol=0)


def test_certainty_and_underflow_are_no_nan():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    cores = SoftmaxCores(p)
    for outputs in ([0, 1, 2], [2, 1], [1]):
        compact = cores.compact(outputs)
        assert bool(torch.isfinite(compact).all())
    assert bool(torch.isfinite(cores.times(torch.ones(3, 3, 1))).all())
    assert float(cores.squares()[:2].abs().sum()) == 0


def test_a_loss_says_how_many_numbers_its_cores_take():
    z, labels = torch.randn(4, 6, dtype=torch.float64), {"cross_entropy": torch.zeros(4, dtype=torch.long)}
    for name in ("cross_entropy", "binary_cross_entropy", "mse"):
        loss = as_loss(name)
        cores = loss.cores(z, labels.get(name, torch.zeros(4, 6)))
        assert sum(t.numel() for t in cores.tensors().values()) == 4 * loss.core_numbers(6)
        torch.testing.assert_close(cores.dense(), loss.factor(z, labels.get(name, torch.zeros(4, 6))))
    assert as_loss(lambda z, y: z.sum()).core_numbers(6) == 36


def test_a_class_that_is_nearly_certain_keeps_its_digits_in_a_block_of_its_own():
    z = torch.tensor([[20.0, 0.0, 1.0], [0.0, 0.1, 30.0], [0.2, 0.1, 0.0]])
    true = z.double().softmax(1)
    rest = torch.stack([true[:, [1, 2]].sum(1), true[:, [0, 2]].sum(1), true[:, [0, 1]].sum(1)], 1)
    cores = SoftmaxCores(z.softmax(1))
    for a in range(3):
        weights = cores.on(slice(a, a + 1)).weights(0, 0)
        assert weights is not None
        torch.testing.assert_close(weights.double(), true[:, a] * rest[:, a], rtol=1e-5, atol=0)
