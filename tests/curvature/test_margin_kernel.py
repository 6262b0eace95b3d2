"""The kernel of ∇φ without its weights: one factor for another damping, other weights, or samples left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ssse
from ssse.curvature import dual
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.curvature.structure import LeftOut
from ssse.errors import InvalidSetting, NotPositiveDefinite, PrecisionLost
from ssse.problem.batches import regroup
from ssse.problem.parameters import Block
from ssse.rows import wide
from ssse.rows.held import ExplicitRows
from tests.support import dense, problems
from tests.support.allocations import Allocations
from tests.support.patches import Forbidden

DAMPING, K = 1e-2, 5


def fit(sample: problems.Sample, data=None, **options) -> ssse.Curvature:
    options = {"damping": DAMPING, "rows": "margin", "structure": "lowrank", **options}
    return ssse.Curvature.fit(sample.model, sample.loss, sample.data if data is None else data, **options)


def held(curvature: ssse.Curvature) -> LowRankStructure:
    assert isinstance(curvature.structure, LowRankStructure)
    return curvature.structure


def vector(dim: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def true_matrix(sample: problems.Sample, part: slice, damping: float, weights: Tensor | None = None) -> Tensor:
    """RᵀR + nλI over some samples, in float64."""
    x, y = sample.x[part].double(), sample.y[part]
    rows = dense.margin_rows(sample.model, sample.loss, x, y)
    if weights is not None:
        rows = weights[part].repeat_interleave(len(rows) // len(x)).sqrt()[:, None] * rows
    return rows.T @ rows + len(x) * damping * torch.eye(rows.shape[1], dtype=torch.float64)


def left_out(sample: problems.Sample, curvature: ssse.Curvature, v: Tensor) -> LeftOut:
    structure = held(curvature)
    rows = structure.rows.select(torch.arange(K * structure.rows.count // len(sample.x)))
    return structure.leave_out(rows, v, (len(sample.x) - K) * curvature.damping)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float = 1e-9) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


EVERY = [problems.mlp(), problems.mlp("binary_cross_entropy"), problems.conv(n=24)]
every_sample = pytest.mark.parametrize("sample", EVERY, ids=lambda s: s.name)


@every_sample
def test_rows_and_kernel_are_kept_without_their_weights(sample):
    structure = held(fit(sample))
    slopes, gram = torch.cat([part.slopes for part in structure.rows.parts]), structure.grams[0]  # type: ignore[attr-defined]
    torch.testing.assert_close(gram.gram(), (slopes @ slopes.T).tril())
    assert gram.weights is not None
    weighted = dense.margin_rows(sample.model, sample.loss, sample.x, sample.y)
    torch.testing.assert_close(gram.weights[:, None] * slopes, weighted)


@every_sample
def test_another_damping_and_samples_left_out_multiply_no_rows_with_rows(sample, monkeypatch):
    curvature, n = fit(sample), len(sample.x)
    monkeypatch.setattr(wide, "kernel", Forbidden("a second pass over the rows", by="ssse.rows.held"))
    v = vector(curvature.layout.dim)
    other = curvature.with_damping(0.3)
    assert_near(other.structure.solve(v), torch.linalg.solve(true_matrix(sample, slice(None), 0.3), v))
    for one in (curvature, other):
        wanted = torch.linalg.solve(true_matrix(sample, slice(K, None), one.damping), v)
        assert_near(left_out(sample, one, v).solution, wanted)
        rows = held(one).rows.select(torch.arange(K * held(one).rows.count // n))
        removed = held(one).remove([rows], (n - K) * one.damping)
        assert_near(removed.solve(v), wanted)
        assert_near(removed.with_ridge((n - K) * one.damping / 2).with_ridge((n - K) * one.damping).solve(v), wanted)


@every_sample
@pytest.mark.parametrize("blocks", ["one", "parameter"])
def test_many_left_out_by_a_factor_of_what_stays(sample, blocks, monkeypatch):
    """No column of the inverse for each of them; then the largest leverage alone is known, from below."""
    curvature, v = fit(sample, blocks=blocks), vector(sum(p.numel() for p in sample.model.parameters()))
    few = left_out(sample, curvature, v)
    monkeypatch.setattr(dual, "FEW", 0)
    monkeypatch.setattr(dual, "SIZE_PER_COLUMN", 10**9)
    monkeypatch.setattr(dual, "inverse_columns", Forbidden("columns", by=dual.__name__))
    many = left_out(sample, curvature, v)
    assert_near(many.solution, few.solution)
    assert 0.999 * float(few.leverages[0]) < float(many.leverages[0]) <= float(few.leverages[0]) * (1 + 1e-12)
    assert many.leverage_sum != many.leverage_sum  # not known
    assert many.residual is not None
    assert many.residual < 1e-12


def test_samples_with_weights_count_so_often(tmp_path):
    sample = problems.mlp()
    weights = torch.rand(len(sample.x), generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    weights[7] = 0.0
    curvature = fit(sample, [(sample.x, sample.y, weights)])
    v = vector(curvature.layout.dim)
    wanted = torch.linalg.solve(true_matrix(sample, slice(None), DAMPING, weights), v)
    assert_near(curvature.structure.solve(v), wanted)
    curvature.save(tmp_path / "curvature")
    loaded = ssse.Curvature.load(tmp_path / "curvature")
    assert_near(loaded.with_damping(2.0).with_damping(DAMPING).structure.solve(v), wanted)
    assert_near(loaded.to("cpu").structure.solve(v), wanted)
    wanted = torch.linalg.solve(true_matrix(sample, slice(K, None), DAMPING, weights), v)
    assert_near(left_out(sample, loaded, v).solution, wanted)


def test_shards_merge_also_with_one_of_an_earlier_version():
    """Which stored its rows weighted: then the kernel of all is of weighted rows, as it was."""
    sample = problems.mlp()
    parts = [fit(sample, list(regroup(sample.part(s), 4))) for s in (slice(0, 9), slice(9, None))]
    first = held(parts[0])
    builder = LowRankBuilder(first.salt)
    builder.parts = [ExplicitRows(part.matrix(), part.digests) for part in first.rows.parts]
    earlier = builder.build(first.ridge)
    v, ridge = vector(parts[0].layout.dim), len(sample.x) * DAMPING
    wanted = torch.linalg.solve(true_matrix(sample, slice(None), DAMPING), v)
    for one in (first, earlier):
        merged = one.merged(held(parts[1]), ridge)
        assert_near(merged.solve(v), wanted)
        assert (merged.grams[0].weights is None) == (one is earlier)


# ---------------------------------------------------------------------------------------- precision


def stiff(dtype: torch.dtype = torch.float32) -> problems.Sample:
    """Inputs so large over the damping that a float32 kernel of their rows has lost it."""
    sample = problems.mlp(n=40, dtype=dtype)
    sample.x *= 100
    return sample


TINY = 1e-7


def test_a_float64_kernel_of_float32_rows_solves_where_float32_cannot():
    sample = stiff()
    with pytest.raises((PrecisionLost, NotPositiveDefinite)):
        fit(sample, damping=TINY, structure=ssse.LowRank(kernel="rows"))
    curvature = fit(sample, damping=TINY)  # the usual choice
    assert "lowrank with a float64 kernel, float32" in curvature.chosen
    structure = held(curvature)
    assert structure.kernel_dtype == torch.float64
    assert all(part.slopes.dtype == torch.float32 for part in structure.rows.parts)  # type: ignore[attr-defined]
    rows = torch.cat([part.matrix() for part in structure.rows.to(torch.float64).parts])
    erasure = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, K)), override=ssse.BOUNDS)
    assert erasure.diagnostics.solve_residual is not None
    assert erasure.diagnostics.solve_residual < 1e-6
    matrix = rows[K:].T @ rows[K:] + (len(rows) - K) * TINY * torch.eye(rows.shape[1], dtype=torch.float64)
    x, y = sample.x[:K], sample.y[:K]
    g = dense.gradient(sample.model, dense.LOSSES[sample.loss], x, y).double()
    assert_near(erasure.direction.double(), torch.linalg.solve(matrix, g), 1e-3)  # g itself has float32's digits


def test_a_step_that_float32_does_not_solve_is_not_handed_out():
    """The fit was checked at a larger damping; another one is not, so its step is."""
    sample = stiff()
    coarse = fit(sample, damping=1e-2, structure=ssse.LowRank(kernel="rows"))
    try:
        finer = coarse.with_damping(1e-9)
        ssse.erase(sample.model, finer, sample.loss, sample.part(slice(0, K)), override=ssse.BOUNDS)
    except (PrecisionLost, NotPositiveDefinite, ssse.Refused) as error:
        assert "float64" in str(error)  # noqa: PT017
    else:
        pytest.fail("handed out")


def test_the_residual_is_that_of_the_system_that_was_solved():
    """Damping and samples left out included; measured here by a plain float64 matrix."""
    sample = problems.mlp(dtype=torch.float32)
    curvature = fit(sample, damping=1e-3)
    v = vector(curvature.layout.dim)
    left = left_out(sample, curvature, v)
    rows = torch.cat([part.matrix() for part in held(curvature).rows.to(torch.float64).parts])[K:]
    matrix = rows.T @ rows + len(rows) * 1e-3 * torch.eye(rows.shape[1], dtype=torch.float64)
    true = float((v - matrix @ left.solution).norm() / v.norm())
    assert true < 1e-11
    assert left.residual is not None
    assert left.residual < 1e-11
    other = float((v - (matrix + 1e-3 * torch.eye(len(matrix), dtype=torch.float64)) @ left.solution).norm() / v.norm())
    assert other > 1e-5  # another damping would have been seen


def test_a_float64_model_and_other_rows_are_as_they_were():
    assert held(fit(problems.mlp())).kernel_dtype == torch.float64
    for rows in ("empirical", "expected"):
        assert held(fit(problems.mlp(dtype=torch.float32), rows=rows)).kernel_dtype == torch.float32
    linear = problems.linear("cross_entropy", dtype=torch.float32)
    assert held(fit(linear)).kernel_dtype == torch.float32
    for rows in ("empirical", "margin"):
        for sample in (linear, problems.mlp(dtype=torch.float32)):
            asked = held(fit(sample, rows=rows, structure=ssse.LowRank(kernel="float64")))
            assert asked.kernel_dtype == torch.float64
            v = vector(asked.rows.dim)
            whole = torch.cat([part.to(torch.float64).matrix() for part in asked.rows.parts])
            matrix = whole.T @ whole + asked.ridge * torch.eye(len(v), dtype=torch.float64)
            assert_near(asked.solve(v), torch.linalg.solve(matrix, v))


def test_the_plan_says_where_memory_forbids_it():
    sample = problems.mlp(n=200, dtype=torch.float32)
    whole = ssse.plan(sample.model, sample.loss, sample.data, rows="margin", structure="lowrank")
    rows, square = 200 * 51 * 4, 200**2
    assert whole.stored_bytes == rows + 8 * square
    assert "lowrank with a float64 kernel" in str(whole)
    budget = rows + 4 * 4 * square  # three squares of float32 and what the samples take; not three of float64
    less = ssse.plan(sample.model, sample.loss, sample.data, rows="margin", structure="lowrank", memory_budget=budget)
    assert less.stored_bytes == rows + 4 * square
    assert less.structure == ssse.LowRank(kernel="rows")
    assert less.reason.startswith("lowrank with a float64 kernel with margin rows would be more exact but needs")


def test_bad_choices_of_precision():
    with pytest.raises(InvalidSetting, match="kernel must be one of auto, rows, float64, split, not 'float16'"):
        ssse.LowRank(kernel="float16")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="leave out rank= or kernel="):
        ssse.LowRank(rank=3, kernel="float64")
    with pytest.raises(InvalidSetting, match="leave out rank= or kernel="):
        ssse.LowRank(rank=3, kernel="split")
    for sample, what in (
        (problems.mlp(dtype=torch.float32), "of a network, in torch.float32, on cpu"),
        (problems.linear("cross_entropy"), "of a linear model, in torch.float64, on cpu"),
    ):
        with pytest.raises(InvalidSetting, match=f"tensor cores of a GPU; these are {what}. Use kernel='rows'"):
            fit(sample, structure=ssse.LowRank(kernel="split"))


@pytest.mark.parametrize("rows", ["empirical", "margin"])
def test_a_split_kernel_is_that_of_the_rows(rows, monkeypatch):
    """On a CPU the halves are multiplied as float32 is: what is tested is that all of them are, tile by tile."""
    monkeypatch.setattr(wide, "COLUMNS", 10)
    structure = held(fit(problems.mlp(dtype=torch.float32), rows=rows, structure=ssse.LowRank(kernel="rows")))
    for blocks in ((), (Block("a", ((0, 20),)), Block("b", ((20, structure.rows.dim),)))):
        builder = LowRankBuilder(structure.salt, blocks=blocks, split=True)
        builder.parts = [structure.rows.select(torch.arange(i, i + 5)) for i in (0, 5, 10)]
        whole = torch.cat([part.to(torch.float64).matrix() for part in builder.parts])
        found, v = builder.build(structure.ridge), vector(whole.shape[1])
        for block in blocks or (Block("all", ((0, whole.shape[1]),)),):
            part = block.take(whole, dim=1)
            matrix = part.T @ part + structure.ridge * torch.eye(block.size, dtype=torch.float64)
            true = torch.linalg.solve(matrix, block.take(v))
            assert_near(block.take(found.solve(v)), true, 1e-4)


def test_a_request_holds_no_second_copy_of_rows_or_kernel_but_one(monkeypatch):
    """At full size the rows fill half of a GPU, and the kernel a sixth."""
    monkeypatch.setattr(wide, "TILE_BYTES", {"cpu": 2**14})
    monkeypatch.setattr(dual, "FEW", 0)
    monkeypatch.setattr(dual, "SIZE_PER_COLUMN", 10**9)
    sample = problems.mlp(n=300, dtype=torch.float32)
    curvature = fit(sample)
    v, square = vector(curvature.layout.dim), held(curvature).grams[0].square
    with Allocations() as made:
        left_out(sample, curvature, v)
    assert made.peak < 1.2 * square.nbytes
