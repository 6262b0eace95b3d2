"""float32 rows multiplied in float64: to the last digit, and without a second copy of them."""

from __future__ import annotations

import pytest
import torch

from ssse.problem.parameters import Block
from ssse.rows import wide
from ssse.rows.held import ExplicitRows, StackedRows
from ssse.rows.margin import MarginRows
from tests.support.allocations import Allocations

M, D = 37, 53


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.fixture(params=[1, 1000, 2**26], ids=["line by line", "few lines", "at once"])
def tiles(request, monkeypatch):
    monkeypatch.setattr(wide, "TILE_BYTES", {"cpu": request.param})


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("columns", [(), (3,)])
def test_products_are_those_of_the_wider_numbers(columns):
    matrix, v, u = numbers(M, D), numbers(D, *columns, dtype=torch.float64), numbers(M, *columns, dtype=torch.float64)
    torch.testing.assert_close(wide.times(matrix, v), matrix.double() @ v, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(wide.transposed_times(matrix, u), matrix.double().T @ u, rtol=1e-13, atol=1e-13)
    other = numbers(5, D, seed=1)
    for right in (matrix, other):
        found = wide.kernel(matrix, right, torch.float64)
        torch.testing.assert_close(found, matrix.double() @ right.double().T, rtol=1e-13, atol=1e-13)


def cut(x: torch.Tensor) -> torch.Tensor:
    """As tensor cores read float32: the last 13 bits are not there."""
    return (x.view(torch.int32) & -(2**13)).view(torch.float32)


def test_halves_are_what_tensor_cores_can_read():
    x = torch.cat([numbers(1000), 1e30 * numbers(50), 1e-30 * numbers(50), torch.tensor([0.0, -0.0, 1.0, -1 / 3])])
    high, low = wide.halves(x.view(-1, 2)[:, 0])  # a view with gaps
    x = x[::2]
    assert torch.equal(cut(high), high)
    assert torch.equal(high.double() + low.double(), x.double())
    assert bool((low.abs() <= 2.0**-11 * x.abs()).all())


def test_three_products_of_halves_are_as_good_as_float32():
    """With numbers cut as tensor cores cut them, summed without rounding; one product alone is not enough."""
    a, b = numbers(M, 400), numbers(M, 400, seed=1)
    b[:5] = a[:5]
    true, most = a.double() @ b.double().T, a.abs().double() @ b.abs().double().T
    (h, rest), (g, remaining) = ((cut(part).double() for part in wide.halves(x)) for x in (a, b))
    assert bool(((h @ g.T + h @ remaining.T + rest @ g.T - true).abs() <= 2.0**-19 * most).all())
    assert bool(((h @ g.T - true).abs() > 2.0**-17 * most).any())


@pytest.mark.parametrize("columns", [7, 2**13])
@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
def test_split_kernels_are_near_those_of_float64(columns, before, monkeypatch):
    monkeypatch.setattr(wide, "COLUMNS", columns)
    matrix, other = numbers(M, D), numbers(5, D, seed=1)
    products = torch.backends.cuda.matmul
    was = products.fp32_precision
    products.fp32_precision = before
    try:
        found = [wide.kernel(matrix, right, "split") for right in (matrix, other)]
        assert products.fp32_precision == before
    finally:
        products.allow_tf32 = False
        products.fp32_precision = was
    for kernel, right in zip(found, (matrix, other), strict=True):
        assert kernel.dtype == torch.float32
        torch.testing.assert_close(kernel.double(), matrix.double() @ right.double().T, rtol=1e-5, atol=1e-4)


def test_equal_precisions_are_left_alone():
    matrix = numbers(M, D)
    assert wide.times(matrix, numbers(D)).dtype == torch.float32
    assert wide.kernel(matrix, matrix).dtype == torch.float32
    assert wide.times(matrix.double(), numbers(D)).dtype == torch.float64


def test_no_copy_of_the_rows_is_made(monkeypatch):
    matrix = numbers(400, 1000)
    v, u = numbers(1000, dtype=torch.float64), numbers(400, dtype=torch.float64)
    monkeypatch.setattr(wide, "TILE_BYTES", {"cpu": 2**15})
    for product, given in ((wide.times, v), (wide.transposed_times, u)):
        with Allocations() as made:
            product(matrix, given)
        assert made.peak < 0.1 * matrix.nbytes
    with Allocations() as made:
        wide.kernel(matrix[:40], matrix[40:80], torch.float64)
    assert made.peak < 0.6 * 40 * 1000 * 8  # half a tile each, and what comes out


@pytest.mark.parametrize("counts", [None, torch.arange(M, dtype=torch.float64)])
def test_margin_rows_are_their_weighted_matrix(counts):
    phi = 3 * numbers(M, dtype=torch.float64, seed=2)
    rows = MarginRows(numbers(M, D, dtype=torch.float64), phi, counts)
    p = phi.sigmoid()
    weights = (p * (1 - p) * (1 if counts is None else counts)).sqrt()
    plain = ExplicitRows(weights[:, None] * rows.slopes)
    block = Block("some", ((3, 9), (20, 41)))
    keep = torch.tensor([0, 3, 30])
    v, u = numbers(D, 2, dtype=torch.float64), numbers(M, dtype=torch.float64)
    gram, wanted = torch.zeros(27, 27, dtype=torch.float64), torch.zeros(27, 27, dtype=torch.float64)
    rows.add_gram(gram, block, sign=-1.0)
    plain.add_gram(wanted, block, sign=-1.0)
    for found, true in (
        (rows.matrix(), plain.values),
        (rows.times(v), plain.times(v)),
        (rows.transposed_times(u), plain.transposed_times(u)),
        (rows.squares(), plain.squares()),
        (rows.restricted(block), plain.restricted(block)),
        (gram.tril(), wanted.tril()),
        (rows.columns(block).times(v[:27]), plain.columns(block).times(v[:27])),
        (rows.select(keep).matrix(), plain.select(keep).matrix()),
        (rows.kernel(rows.select(keep)), plain.kernel(plain.select(keep))),
        (rows.kernel(plain), plain.kernel(plain)),
        (plain.kernel(rows), plain.kernel(plain)),
        (StackedRows([rows, plain]).times(v), StackedRows([plain, plain]).times(v)),
    ):
        torch.testing.assert_close(found, true)
    assert rows.to(torch.float32).phi.dtype == torch.float64  # weights stay as exact as they are
