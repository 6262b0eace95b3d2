"""A smaller damping from the factor of a larger one: the same as a factor of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ssse
from ssse.curvature import dense as dense_structure
from ssse.curvature import dual, lowered
from ssse.curvature.choices import StructureName
from ssse.curvature.gram import DampedGram
from ssse.curvature.lowered import half_the_digits, lower_ridge, steps_to_lower
from ssse.problem.problem import Problem
from ssse.rows.held import HeldRows
from ssse.rows.kinds import measure_held
from tests.support.patches import Forbidden

N, D, DAMPING = 150, 100, 1e-3
ITERATE, FACTORISE = 0, 10**9  # as SIZE_PER_STEP


def fitted(
    structure: StructureName, dtype: torch.dtype = torch.float64, **options
) -> tuple[ssse.Curvature, Tensor, Tensor]:
    """Least squares, whose rows are the inputs: a curvature, x and y."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype) / 10
    y = torch.randn(N, 1, generator=generator, dtype=torch.float64).to(dtype)
    model = nn.Linear(D, 1, bias=False).to(dtype).eval()
    return ssse.Curvature.fit(model, "mse", [(x, y)], damping=DAMPING, structure=structure, **options), x, y


def held(curvature: ssse.Curvature, x: Tensor, y: Tensor) -> HeldRows:
    problem = Problem(nn.Linear(D, 1, bias=False).to(x.dtype), "mse", "all", (x, y))
    return measure_held(problem, curvature.kind, (x, y), getattr(curvature.structure, "salt", None))[0]


def vector(dtype: torch.dtype) -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("k", [1, 15, 75, 95])
@pytest.mark.parametrize("size", [ITERATE, FACTORISE], ids=["iterate", "factorise"])
@pytest.mark.parametrize("structure", ["dense", "lowrank"])
def test_iterating_and_factorising_anew_are_the_dense_truth(monkeypatch, structure, size, k):
    """Of nearly all of the data, too: ridge/lowered is 1.007, 1.1, 2 and 2.7."""
    monkeypatch.setattr(lowered, "SIZE_PER_STEP", size)
    curvature, x, y = fitted(structure)
    module = {"dense": dense_structure, "lowrank": dual}[structure]
    if size == ITERATE:
        factor = (DampedGram, "factorise") if structure == "dense" else (DampedGram, "without")
        monkeypatch.setattr(*factor, Forbidden("a new factor", by=module.__name__))
    else:
        monkeypatch.setattr(module, "lower_ridge", Forbidden("iterated", by=module.__name__))
    left = curvature.structure.leave_out(held(curvature, x[:k], y[:k]), vector(x.dtype), (N - k) * DAMPING)
    matrix = x[k:].T @ x[k:] + (N - k) * DAMPING * torch.eye(D, dtype=x.dtype)
    wanted = torch.linalg.solve(matrix, vector(x.dtype))
    assert float((left.solution - wanted).norm() / wanted.norm()) < 1e-10
    whole = x.T @ x + N * DAMPING * torch.eye(D, dtype=x.dtype)
    leverages = torch.linalg.eigvalsh(x[:k] @ torch.linalg.solve(whole, x[:k].T)).flip(0)
    torch.testing.assert_close(left.leverages, leverages, rtol=1e-7, atol=1e-9)  # of M as it is held
    assert left.leverage_sum == pytest.approx(float(leverages.sum()))


@pytest.mark.parametrize("structure", ["dense", "lowrank"])
def test_float32_iterates_to_its_own_rounding(monkeypatch, structure):
    monkeypatch.setattr(lowered, "SIZE_PER_STEP", ITERATE)
    found = []
    for dtype in (torch.float32, torch.float64):
        curvature, x, y = fitted(structure, dtype)
        rows = held(curvature, x[:40], y[:40])
        found.append(curvature.structure.leave_out(rows, vector(dtype), (N - 40) * DAMPING).solution.double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-4


def test_more_rows_than_parameters_report_a_leverage_of_the_held_curvature():
    """K is not formed then; the largest is found from below."""
    curvature, x, y = fitted("dense")
    k = D + 20
    left = curvature.structure.leave_out(held(curvature, x[:k], y[:k]), vector(x.dtype), (N - k) * DAMPING)
    whole = x.T @ x + N * DAMPING * torch.eye(D, dtype=x.dtype)
    largest = float(torch.linalg.eigvals(torch.linalg.solve(whole, x[:k].T @ x[:k])).real.max())
    assert largest * 0.99 < float(left.leverages[0]) <= largest * (1 + 1e-12)


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 0.99])
def test_as_many_steps_as_foretold(share):
    """For any M whose least eigenvalue is the ridge; by = share · ridge is taken off it."""
    generator = torch.Generator().manual_seed(2)
    q = torch.linalg.qr(torch.randn(80, 80, generator=generator, dtype=torch.float64)).Q
    values, v = torch.linspace(1, 3, 80, dtype=torch.float64), torch.randn(80, generator=generator, dtype=torch.float64)
    solves = []

    def solve(b: Tensor) -> Tensor:
        solves.append(1)
        return q @ ((q.T @ b) / values)

    steps = steps_to_lower(1.0, 1 - share, torch.float64)
    found = lower_ridge(solve, solve(v), share, steps)
    assert found is not None
    wanted = q @ ((q.T @ v) / (values - share))
    assert float((found - wanted).norm() / wanted.norm()) < 2 * half_the_digits(torch.float64) / (1 - share)
    assert len(solves) <= steps + 3
    assert lower_ridge(solve, solve(v), 1.5, steps) is None  # M − 1.5·I has negative eigenvalues


def test_nothing_to_lower_takes_no_step():
    assert steps_to_lower(2.0, 2.0, torch.float64) == 0
    v = torch.ones(3)
    assert lower_ridge(Forbidden("solved again", by="ssse.curvature.lowered"), v, 0.0, 0) is v


@pytest.mark.parametrize("module", [dense_structure, dual])
def test_where_iterating_does_not_end_a_new_factor_decides(monkeypatch, module):
    monkeypatch.setattr(lowered, "SIZE_PER_STEP", ITERATE)
    monkeypatch.setattr(module, "lower_ridge", lambda *_: None)
    curvature, x, y = fitted("dense" if module is dense_structure else "lowrank")
    left = curvature.structure.leave_out(held(curvature, x[:9], y[:9]), vector(x.dtype), (N - 9) * DAMPING)
    matrix = x[9:].T @ x[9:] + (N - 9) * DAMPING * torch.eye(D, dtype=x.dtype)
    wanted = torch.linalg.solve(matrix, vector(x.dtype))
    assert float((left.solution - wanted).norm() / wanted.norm()) < 1e-10
