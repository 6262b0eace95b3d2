"""One conformance suite that every structure passes, against the dense float64 truth."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import ssse
from ssse.curvature.choices import Choice, StructureName
from ssse.errors import InvalidSetting
from ssse.problem.batches import regroup
from ssse.problem.problem import Problem
from ssse.rows.held import StackedRows
from ssse.rows.kinds import RowChoice, measure, measure_held
from tests.support import dense, problems

DAMPING = 1e-2


@dataclass(frozen=True)
class Way:
    structure: StructureName | Choice
    options: dict = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([repr(self.structure).strip("'"), *map(str, self.options.values())])

    @property
    def kind(self) -> str:
        return self.structure.kind if isinstance(self.structure, Choice) else self.structure

    def fit(self, sample: problems.Sample, kind: RowChoice = "empirical", data=None, damping: float = DAMPING):
        return ssse.Curvature.fit(
            sample.model,
            sample.loss,
            sample.data if data is None else data,
            damping=damping,
            rows=kind,
            structure=self.structure,
            **self.options,
        )


EXACT = [
    Way("dense", {"blocks": "one"}),
    Way("dense", {"blocks": "parameter"}),
    Way("dense", {"blocks": 7}),
    Way("lowrank"),
    Way("lowrank", {"blocks": "parameter"}),
    Way("lowrank", {"blocks": 7}),
    Way("recurrence", {"blocks": "one"}),
    Way("recurrence", {"blocks": 7}),
    Way(ssse.MatrixFree(tolerance=1e-14)),
    Way(ssse.MatrixFree("none", tolerance=1e-14)),
    Way(ssse.MatrixFree("diagonal", tolerance=1e-14)),
    Way("diagonal"),
]
PROBLEMS = [
    problems.linear("cross_entropy"),
    problems.linear("binary_cross_entropy", bias=False),
    problems.linear("mse"),
    problems.mlp(),
]
KINDS = ["empirical", "expected", "margin", "sampled"]
every_way = pytest.mark.parametrize("way", EXACT, ids=str)
every_problem = pytest.mark.parametrize("sample", PROBLEMS, ids=lambda s: s.name)
every_kind = pytest.mark.parametrize(
    ("sample", "kind"),
    [(sample, kind) for sample in PROBLEMS for kind in KINDS if (sample.loss, kind) != ("mse", "margin")],
    ids=lambda case: getattr(case, "name", case),
)


def shape_of(way: Way, matrix: Tensor, curvature: ssse.Curvature) -> Tensor:
    """What the structure keeps of a full matrix."""
    if way.kind == "diagonal":
        return torch.diag(matrix.diagonal())
    blocks = way.options.get("blocks", "one")
    if blocks == "one":
        return matrix
    sizes = curvature.layout.sizes if blocks == "parameter" else [blocks] * (len(matrix) // blocks + 1)
    index, groups = list(range(len(matrix))), []
    for size in sizes:
        groups.append(index[:size])
        index = index[size:]
    return dense.keep_blocks(matrix, groups)


def explicit_rows(sample: problems.Sample, curvature: ssse.Curvature, part=slice(None)) -> Tensor:
    """The rows as a plain matrix; test_rows checks those of each kind against autograd."""
    problem = Problem(sample.model, sample.loss, "all", (sample.x, sample.y))
    if curvature.kind.name == "sampled":
        return measure_held(problem, curvature.kind, (sample.x[part], sample.y[part]))[0].matrix()
    return dense.ROWS[curvature.kind.name](sample.model, sample.loss, sample.x[part], sample.y[part])


def rows_to_forget(sample: problems.Sample, curvature: ssse.Curvature, k: int, size: int = 1000) -> StackedRows:
    """The first k samples' rows as erase() passes them: lazy for matrix_free, with digests for lowrank."""
    problem = Problem(sample.model, sample.loss, "all", (sample.x, sample.y))
    structure = curvature.structure
    batches = list(regroup(sample.part(slice(0, k)), size))
    if structure.kind == "matrix_free":
        return StackedRows([measure(problem, curvature.kind, b).rows for b in batches])  # type: ignore[misc]
    salt = getattr(structure, "salt", None)
    return StackedRows([measure_held(problem, curvature.kind, b, salt)[0] for b in batches])


def vector(dim: int, seed: int = 0) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


@every_way
@every_kind
def test_solve_is_the_dense_inverse(way, sample, kind):
    curvature = way.fit(sample, kind)
    truth = shape_of(way, dense.gram(explicit_rows(sample, curvature), len(sample.x), DAMPING), curvature)
    v = vector(len(truth))
    assert_near(curvature.solve(v), torch.linalg.solve(truth, v), 1e-9)


@every_way
@every_kind
def test_leaving_out_equals_refitting_on_the_rest(way, sample, kind):
    """… with the same λ, and without the training data (matrix_free apart)."""
    curvature, n, k = way.fit(sample, kind), len(sample.x), 6
    v = vector(curvature.layout.dim, seed=1)
    left = curvature.structure.leave_out(rows_to_forget(sample, curvature, k), v, (n - k) * DAMPING)
    refitted = way.fit(sample, kind, data=sample.part(slice(k, n)))
    assert_near(left.solution, refitted.structure.solve(v), 1e-8)
    assert 0 < float(left.leverages[0]) < 1
    assert not left.indefinite


@pytest.mark.parametrize("way", [way for way in EXACT if way.kind != "matrix_free"], ids=str)
@every_problem
def test_removing_gives_a_structure_without_those_rows(way, sample):
    curvature, n, k = way.fit(sample), len(sample.x), 6
    removed = curvature.structure.remove(iter(rows_to_forget(sample, curvature, k, size=4).parts), (n - k) * DAMPING)
    refitted = way.fit(sample, data=sample.part(slice(k, n)))
    assert removed.ridge == pytest.approx(refitted.structure.ridge)
    v = vector(curvature.layout.dim, seed=2)
    assert_near(removed.solve(v), refitted.structure.solve(v), 1e-8)


@every_way
@every_problem
def test_more_rows_than_parameters_can_leave(way, sample):
    curvature, n, k = way.fit(sample, "expected"), len(sample.x), len(sample.x) - 3
    v = vector(curvature.layout.dim, seed=3)
    left = curvature.structure.leave_out(rows_to_forget(sample, curvature, k), v, (n - k) * DAMPING)
    refitted = way.fit(sample, "expected", data=sample.part(slice(k, n)))
    assert_near(left.solution, refitted.structure.solve(v), 1e-6)


@every_way
@every_problem
def test_any_split_into_batches_gives_the_same(way, sample):
    whole = way.fit(sample)
    v = vector(whole.layout.dim, seed=4)
    for size in (1, 7, 16):
        split = way.fit(sample, data=list(regroup(sample.data, size)))
        assert_near(split.solve(v), whole.solve(v), 1e-9)
        torch.testing.assert_close(split.gradient, whole.gradient)


@every_way
@every_problem
def test_shards_merge_to_the_whole(way, sample):
    whole, v = way.fit(sample), vector(sum(p.numel() for p in sample.model.parameters()), seed=5)
    shards = [way.fit(sample, data=sample.part(s)) for s in (slice(0, 9), slice(9, 11), slice(11, None))]
    if way.kind in ("recurrence", "matrix_free"):
        with pytest.raises(InvalidSetting, match="cannot be merged"):
            ssse.Curvature.merge(shards)
        return
    merged = ssse.Curvature.merge(shards)
    assert merged.n == whole.n
    assert_near(merged.solve(v), whole.solve(v), 1e-9)
    torch.testing.assert_close(merged.gradient, whole.gradient)
    assert merged.mean_loss == pytest.approx(whole.mean_loss)


@every_way
@every_problem
def test_damping_changes_without_a_second_pass(way, sample):
    curvature, v = way.fit(sample), vector(sum(p.numel() for p in sample.model.parameters()), seed=6)
    changed = curvature.with_damping(0.5)
    assert changed.damping == pytest.approx(0.5)
    assert_near(changed.solve(v), way.fit(sample, damping=0.5).solve(v), 1e-9)
    assert_near(curvature.solve(v), way.fit(sample).solve(v), 1e-12)  # the first one is as it was


@every_way
@every_problem
def test_what_is_stored_is_what_was_fitted(way, sample, tmp_path):
    curvature = way.fit(sample, "expected")
    curvature.save(tmp_path / "curvature")
    loaded = ssse.Curvature.load(tmp_path / "curvature")
    assert repr(loaded) == repr(curvature)
    for name in ("kind", "layout", "linear", "fingerprint", "loss", "n", "erased", "weight_decay", "notes"):
        assert getattr(loaded, name) == getattr(curvature, name), name
    saved, found = curvature.structure.state(), loaded.structure.state()
    assert saved.keys() == found.keys()
    assert all(torch.equal(saved[key], found[key]) for key in saved)
    if way.kind != "matrix_free":
        v = vector(curvature.layout.dim, seed=7)
        assert_near(loaded.solve(v), curvature.solve(v), 1e-12)


def test_lowrank_finds_samples_by_what_they_are_and_each_once():
    sample = problems.linear("cross_entropy")
    sample.x[1], sample.y[1] = sample.x[0], sample.y[0]  # the same sample twice
    curvature = Way("lowrank").fit(sample, "expected")
    twin = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 1)))
    rest = Way("lowrank").fit(sample, "expected", sample.part(slice(1, None)))
    v = vector(curvature.layout.dim, seed=10)
    assert_near(twin.curvature.structure.solve(v), rest.structure.solve(v), 1e-8)
    both = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)))
    assert both.curvature.n == 38
    with pytest.raises(ssse.Refused, match="3 of the rows to forget are not among"):
        ssse.erase(both.model, both.curvature, sample.loss, sample.part(slice(0, 1)))


def test_lowrank_streams_rebase_at_any_distance():
    """Its rows are found by their sample, not by their value, so a moved θ does not hide them."""
    sample = problems.mlp()
    first = ssse.erase(
        sample.model, Way("lowrank").fit(sample), sample.loss, sample.part(slice(0, 4)), override=ssse.BOUNDS
    )
    second = ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(4, 8)), override=ssse.BOUNDS)
    assert second.curvature.n == 22
    assert second.curvature.structure.rows.count == 22  # type: ignore[attr-defined]


def test_recurrence_equals_one_block_equals_all_rows():
    sample = problems.mlp()
    v = vector(sum(p.numel() for p in sample.model.parameters()), seed=8)
    one = Way("dense", {"blocks": "one"}).fit(sample).solve(v)
    assert_near(Way("recurrence", {"blocks": "one"}).fit(sample).solve(v), one, 1e-9)
    assert_near(Way("lowrank").fit(sample).solve(v), one, 1e-9)


@pytest.mark.parametrize("sample", PROBLEMS, ids=lambda s: s.name)
@pytest.mark.parametrize("rank", [3, 8, 10_000])
def test_truncated_rows_keep_the_leading_directions(sample, rank):
    way = Way(ssse.LowRank(rank=rank))
    curvature, n, k = way.fit(sample), len(sample.x), 4
    rows = explicit_rows(sample, curvature)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[:rank]
    projector = basis.T @ basis
    eye = torch.eye(rows.shape[1], dtype=torch.float64)
    v = vector(rows.shape[1], seed=9)
    kept = projector @ rows.T @ rows @ projector
    assert_near(curvature.structure.solve(v), torch.linalg.solve(kept + n * DAMPING * eye, v), 1e-8)
    gone = projector @ rows[:k].T @ rows[:k] @ projector
    held = rows_to_forget(sample, curvature, k)
    ridge = (n - k) * DAMPING
    wanted = torch.linalg.solve(kept - gone + ridge * eye, v)
    assert_near(curvature.structure.leave_out(held, v, ridge).solution, wanted, 1e-8)
    assert_near(curvature.structure.remove([held], ridge).solve(v), wanted, 1e-8)


def test_blocks_per_output_are_exact_for_logistic_attributes():
    """The paper's 40 blocks: attributes do not interact, so the blocks lose nothing."""
    sample = problems.linear("binary_cross_entropy")
    v = vector(sum(p.numel() for p in sample.model.parameters()))
    whole = Way("dense", {"blocks": "one"}).fit(sample, "expected").solve(v)
    blocks = Way("dense", {"blocks": "output"}).fit(sample, "expected")
    assert [block.size for block in blocks.structure.blocks] == [6, 6, 6]  # type: ignore[attr-defined]
    assert_near(blocks.solve(v), whole, 1e-9)


def test_matrix_free_after_removal_wants_the_data_that_remains():
    sample, k = problems.mlp(), 5
    way = Way(ssse.MatrixFree(tolerance=1e-13))
    first = ssse.erase(sample.model, way.fit(sample), sample.loss, sample.part(slice(0, k)), override=ssse.BOUNDS)
    with pytest.raises(InvalidSetting, match="data that remains"):
        ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(k, k + 2)))
    second = ssse.erase(
        first.model,
        first.curvature,
        sample.loss,
        sample.part(slice(k, k + 2)),
        data=sample.part(slice(k, None)),
        override=ssse.BOUNDS,
    )
    assert second.diagnostics.k == 2


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(3, 25),
    p=st.integers(1, 6),
    c=st.integers(1, 5),
    loss=st.sampled_from(list(dense.LOSSES)),
    bias=st.booleans(),
    kind=st.sampled_from(KINDS),
    blocks=st.one_of(st.sampled_from(["one", "parameter", "output"]), st.integers(1, 9)),
    structure=st.sampled_from(["dense", "lowrank"]),
    seed=st.integers(0, 1000),
)
def test_blocks_of_any_linear_model(n, p, c, loss, bias, kind, blocks, structure, seed):
    sample = problems.linear(loss, bias, n, p, c, seed)
    assume((loss, kind) != ("mse", "margin"))
    curvature = Way(structure, {"blocks": blocks}).fit(sample, kind)
    full = dense.gram(explicit_rows(sample, curvature), n, DAMPING)
    groups = [[i for a, b in block.ranges for i in range(a, b)] for block in curvature.structure.blocks]  # type: ignore[attr-defined]
    assert sorted(i for group in groups for i in group) == list(range(len(full)))
    v = vector(len(full), seed)
    assert_near(curvature.solve(v), torch.linalg.solve(dense.keep_blocks(full, groups), v), 1e-9)


@pytest.mark.parametrize("forgotten", [5, 40])
def test_blocks_side_by_side_are_as_one_after_the_other(monkeypatch, forgotten):
    """By Woodbury's identity, and by subtraction."""
    sample = problems.linear("cross_entropy", n=61)
    way = Way("dense", {"blocks": 7})
    curvature, found = way.fit(sample), []
    v, rows = vector(curvature.layout.dim), rows_to_forget(sample, curvature, forgotten)
    threads = torch.get_num_threads()
    for large, count in ((10**9, threads), (1, 3)):
        monkeypatch.setattr("ssse.curvature.dense.LARGE", large)
        torch.set_num_threads(count)
        try:
            left = curvature.structure.leave_out(rows, v, (61 - forgotten) * DAMPING)
            found.append((left, curvature.structure.solve(v), curvature.structure.solve_measured(v)[0]))
        finally:
            torch.set_num_threads(threads)
    (alone, *solutions), (together, *others) = found
    assert together.where == alone.where
    assert_near(together.solution, alone.solution, 1e-9)
    assert_near(together.leverages, alone.leverages, 1e-9)
    for one, other in zip(solutions, others, strict=True):
        assert_near(other, one, 1e-9)
