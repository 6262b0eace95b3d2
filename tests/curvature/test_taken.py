"""Rows and columns of a square, taken by strips."""

from __future__ import annotations

import pytest
import torch

from ssse.curvature.gram import DampedGram, taken


def a_square(n: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.arange(float(n * n), dtype=torch.float64).view(n, n).to(dtype)


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 34, 47, 100])
def test_equals_an_index_of_both(count):
    """Fewer rows than strips, as many, and numbers that sixteen does not divide."""
    square = a_square(100)
    kept = torch.randperm(100, generator=torch.Generator().manual_seed(count))[:count].sort().values
    before = square.clone()
    found = taken(square, kept)
    assert torch.equal(found, square[kept][:, kept])
    assert found.is_contiguous()
    assert torch.equal(square, before)


def test_any_number_of_strips():
    square, kept = a_square(40), torch.arange(1, 40, 2)
    for strips in (1, 2, 7, 19, 20, 21, 1000):
        assert torch.equal(taken(square, kept, strips), square[kept][:, kept])


def test_every_count_has_as_many_strips_of_rows_as_of_places():
    for count in range(1, 130):
        kept = torch.arange(count)
        assert torch.equal(taken(a_square(130), kept), a_square(130)[:count, :count])


def test_precision_and_what_lies_in_a_view_of_another():
    for dtype in (torch.float32, torch.float64):
        wide = a_square(30, dtype)
        kept = torch.tensor([0, 4, 5, 11])
        found = taken(wide.mT[:20, :20], kept)
        assert found.dtype == dtype
        assert torch.equal(found, wide.mT[kept][:, kept])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [1, 5, 20, 39])
def test_a_factor_of_some_rows_is_that_of_their_own_gram_matrix(count, weighted):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 60, generator=generator, dtype=torch.float64)
    weights = torch.rand(40, generator=generator, dtype=torch.float64) if weighted else None
    kept = torch.randperm(40, generator=generator)[:count].sort().values
    whole = DampedGram.factorise((rows @ rows.mT).tril(), 0.5, "block", weights)
    own = rows if weights is None else weights[:, None] * rows
    matrix = own[kept] @ own[kept].mT + 0.3 * torch.eye(count, dtype=torch.float64)
    v = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(whole.of(kept, 0.3).solve(v), torch.linalg.solve(matrix, v), rtol=1e-9, atol=1e-12)
