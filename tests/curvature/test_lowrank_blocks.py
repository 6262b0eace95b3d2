"""The dual form in blocks: against dense blocks, against the readable truth, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import ssse
from ssse.curvature.dense import DenseStructure
from ssse.curvature.estimates import Plan
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.errors import DoesNotFit, InvalidSetting, PrecisionLost
from ssse.problem.parameters import Block, BlockChoice
from ssse.rows.held import ExplicitRows, StackedRows
from tests.support import dense, problems
from tests.support.refusals import fit, refused

DAMPING, DECAY, FORGOTTEN = 1e-2, 1e-3, 4


@dataclass(frozen=True)
class Case:
    name: str
    sample: problems.Sample
    blocks: BlockChoice
    rows: str

    def fit(self, structure: str, **options: Any) -> ssse.Curvature:
        options = {"rows": self.rows, "blocks": self.blocks, "damping": DAMPING, "weight_decay": DECAY, **options}
        return fit(self.sample, structure=structure, **options)

    @property
    def forget(self) -> list[tuple[Tensor, Tensor]]:
        return self.sample.part(slice(0, FORGOTTEN))

    def truth_rows(self) -> Tensor:
        make = {"empirical": dense.empirical_rows, "expected": dense.expected_rows}[self.rows]
        return make(self.sample.model, self.sample.loss, self.sample.x, self.sample.y)


def cases() -> list[Case]:
    """Blocks of 7 cut through outputs of 5 inputs; 1 is the diagonal; 1000 is more than there are parameters."""
    linear: list[BlockChoice] = ["one", "parameter", "output", 1, 7, 13, 1000]
    network: list[BlockChoice] = ["one", "parameter", 1, 20, 1000]
    found: list[tuple[str, problems.Sample, BlockChoice]] = [
        *(("softmax with bias", problems.linear("cross_entropy"), spec) for spec in linear),
        *(("softmax", problems.linear("cross_entropy", bias=False), spec) for spec in linear),
        *(("attributes", problems.linear("binary_cross_entropy", c=4), spec) for spec in linear),
        *(("network", problems.mlp(), spec) for spec in network),
    ]
    return [Case(f"{n} {b} {rows}", s, b, rows) for n, s, b in found for rows in ("empirical", "expected")]


every_case = pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)


def groups_of(curvature: ssse.Curvature) -> list[list[int]]:
    structure = curvature.structure
    assert isinstance(structure, (LowRankStructure, DenseStructure))
    return [[i for start, stop in block.ranges for i in range(start, stop)] for block in structure.blocks]


def near(found: Tensor, wanted: Tensor, tolerance: float = 1e-8) -> bool:
    return float((found - wanted).norm() / wanted.norm()) < tolerance


def vector(dim: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@every_case
@pytest.mark.parametrize("leave_out", [True, False])
def test_the_step_is_the_one_of_the_truth_and_of_dense_blocks(case, leave_out):
    sample, n = case.sample, len(case.sample.x)
    curvature, other = case.fit("lowrank"), case.fit("dense")
    assert groups_of(curvature) == groups_of(other)
    rows = case.truth_rows()
    kept = rows[FORGOTTEN * (len(rows) // n) :] if leave_out else rows
    seen = n - FORGOTTEN if leave_out else n
    damped = kept.T @ kept + seen * DAMPING * torch.eye(rows.shape[1], dtype=rows.dtype)
    matrix = dense.keep_blocks(damped, groups_of(curvature))
    x, y = case.forget[0]
    theta = dense.theta(sample.model)
    gradient = dense.gradient(sample.model, dense.LOSSES[sample.loss], x, y) + FORGOTTEN * DECAY * theta
    wanted = torch.linalg.solve(matrix, gradient) * (1 if leave_out else n / (n - FORGOTTEN))
    found = ssse.erase(sample.model, curvature, sample.loss, case.forget, leave_out=leave_out, override=ssse.BOUNDS)
    assert near(found.step, wanted)
    same = ssse.erase(sample.model, other, sample.loss, case.forget, leave_out=leave_out, override=ssse.BOUNDS)
    assert near(found.step, same.step)
    if leave_out:
        v = vector(len(theta))
        assert near(found.curvature.structure.solve(v), torch.linalg.solve(matrix, v))
        assert near(same.curvature.structure.solve(v), found.curvature.structure.solve(v))


@every_case
def test_leverages_are_those_of_the_worst_block_and_their_sum_is_over_all(case):
    n, curvature = len(case.sample.x), case.fit("lowrank")
    rows = case.truth_rows()
    count = FORGOTTEN * (len(rows) // n)
    spectra = []
    for group in groups_of(curvature):
        part = rows[:, group]
        matrix = part.T @ part + n * DAMPING * torch.eye(len(group), dtype=rows.dtype)
        kernel = part[:count] @ torch.linalg.solve(matrix, part[:count].T)
        spectra.append(torch.linalg.eigvalsh((kernel + kernel.T) / 2).flip(0))
    structure = curvature.structure
    assert isinstance(structure, LowRankStructure)
    held = structure.rows.select(torch.arange(count))
    left = structure.leave_out(held, vector(rows.shape[1]), (n - FORGOTTEN) * DAMPING)
    worst = max(range(len(spectra)), key=lambda i: float(spectra[i][0]))
    assert left.where == structure.blocks[worst].name
    torch.testing.assert_close(left.leverages, spectra[worst], rtol=1e-7, atol=1e-10)
    assert left.leverage_sum == pytest.approx(sum(float(s.sum()) for s in spectra))
    found = ssse.erase(case.sample.model, curvature, case.sample.loss, case.forget, override=ssse.BOUNDS).diagnostics
    assert found.leverage_max == pytest.approx(float(spectra[worst][0]))
    assert found.leverage_sum == pytest.approx(left.leverage_sum)


@pytest.mark.parametrize("sample", [problems.linear("cross_entropy"), problems.mlp()], ids=lambda s: s.name)
@pytest.mark.parametrize("blocks", ["parameter", 7, 1000])
def test_mini_batch_rows_in_blocks(sample, blocks):
    b = 5
    options = {"rows": "empirical", "rows_per_batch": b, "blocks": blocks, "weight_decay": DECAY}
    curvature, other = (fit(sample, structure=structure, **options) for structure in ("lowrank", "dense"))
    single = dense.empirical_rows(sample.model, sample.loss, sample.x, sample.y)
    means = single.view(len(single) // b, b, -1).mean(1)
    truth = dense.keep_blocks(dense.gram(means, len(means), DAMPING), groups_of(curvature))
    v = vector(len(truth))
    assert near(curvature.solve(v), torch.linalg.solve(truth, v))
    forget = sample.part(slice(0, 3))
    step = ssse.erase(sample.model, curvature, sample.loss, forget, leave_out=False, override=ssse.BOUNDS).step
    assert near(step, ssse.erase(sample.model, other, sample.loss, forget, leave_out=False, override=ssse.BOUNDS).step)
    with pytest.raises(InvalidSetting, match="one row per mini-batch"):
        ssse.erase(sample.model, curvature, sample.loss, forget)


@pytest.mark.parametrize("sample", [problems.linear("cross_entropy"), problems.mlp()], ids=lambda s: s.name)
@pytest.mark.parametrize("blocks", ["one", "parameter", 7, 1000])
def test_rows_are_stored_once_and_everything_comes_back(sample, blocks, tmp_path):
    curvature = fit(sample, structure="lowrank", rows="expected", blocks=blocks, weight_decay=DECAY)
    curvature.save(tmp_path / "curvature")
    loaded = ssse.Curvature.load(tmp_path / "curvature")
    structure = loaded.structure
    assert isinstance(structure, LowRankStructure)
    assert groups_of(loaded) == groups_of(curvature)
    state = structure.state()
    squares = [name for name in state if name.endswith(".square")]
    assert len(squares) == len(structure.blocks)
    m = structure.rows.count
    held = sum(t.numel() for name, t in state.items() if not name.startswith("dual."))
    assert held == sum(t.numel() for t in structure.rows.tensors().values())
    assert all(state[name].shape == (m, m) for name in squares)
    forget = sample.part(slice(0, FORGOTTEN))
    first = ssse.erase(sample.model, curvature, sample.loss, forget, override=ssse.BOUNDS)
    again = ssse.erase(sample.model, loaded, sample.loss, forget, override=ssse.BOUNDS)
    torch.testing.assert_close(again.step, first.step, rtol=1e-12, atol=0)
    other = fit(sample, structure="dense", rows="expected", blocks=blocks, weight_decay=DECAY)
    v = vector(curvature.layout.dim)
    assert near(loaded.with_damping(0.3).solve(v), other.with_damping(0.3).solve(v))
    assert near(loaded.to("cpu").solve(v), other.solve(v))


def test_one_block_is_stored_as_before_there_were_blocks():
    curvature = fit(problems.linear("cross_entropy"), structure="lowrank", rows="empirical")
    assert set(curvature.structure.state()) == {"0.features", "0.cores", "0.digests", "dual.square", "dual.pivots"}
    assert set(curvature.structure.settings()) == {"salt"}
    assert isinstance(curvature.structure, LowRankStructure)
    state, settings = curvature.structure.state(), curvature.structure.settings()
    back = LowRankStructure.from_state(state, settings, curvature.structure.ridge, curvature.linear)
    v = vector(curvature.layout.dim)
    torch.testing.assert_close(back.solve(v), curvature.structure.solve(v))


@pytest.mark.parametrize("blocks", ["output", 7])
def test_a_stream_of_requests_in_blocks(blocks):
    """Rebased: the second request is answered by what the first one left."""
    sample = problems.linear("cross_entropy")
    answers = []
    for structure in ("lowrank", "dense"):
        curvature = fit(sample, structure=structure, rows="expected", blocks=blocks, weight_decay=DECAY)
        how = {"policy": "joint", "override": ssse.BOUNDS}
        first = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 3)), **how)
        answers.append(ssse.erase(first.model, first.curvature, sample.loss, sample.part(slice(3, 7)), **how))
    assert near(answers[0].step, answers[1].step)
    held = answers[0].curvature.structure
    assert isinstance(held, LowRankStructure)
    assert held.rows.count == 33 * 3
    assert all(len(gram.square) == 33 * 3 for gram in held.grams)


def test_a_sample_that_is_missing_is_refused_and_a_twin_counts_once():
    sample = problems.linear("cross_entropy")
    sample.x[1], sample.y[1] = sample.x[0], sample.y[0]
    curvature = fit(sample, structure="lowrank", rows="expected", blocks=7)
    twin = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 1)), override=ssse.BOUNDS)
    rest = fit(sample, structure="dense", rows="expected", blocks=7, data=sample.part(slice(1, None)))
    v = vector(curvature.layout.dim)
    assert near(twin.curvature.structure.solve(v), rest.structure.solve(v))
    both = ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(0, 2)), override=ssse.BOUNDS)
    with refused(ssse.Refused, "3 of the rows to forget are not among", both.model):
        ssse.erase(both.model, both.curvature, sample.loss, sample.part(slice(0, 1)))
    stranger = [(sample.x[:1] + 1e-9, sample.y[:1])]
    for leave_out in (True, False):
        with refused(ssse.Refused, "of the rows to forget are not among", sample.model):
            ssse.erase(sample.model, curvature, sample.loss, stranger, leave_out=leave_out)


@pytest.mark.parametrize("blocks", ["parameter", 20])
def test_shards_in_blocks_merge(blocks):
    sample = problems.mlp()
    parts = [slice(0, 9), slice(9, None)]
    shards = [fit(sample, structure="lowrank", rows="expected", blocks=blocks, data=sample.part(s)) for s in parts]
    whole = fit(sample, structure="dense", rows="expected", blocks=blocks)
    v = vector(whole.layout.dim)
    merged = ssse.Curvature.merge(shards)
    assert groups_of(merged) == groups_of(whole)
    assert near(merged.solve(v), whole.solve(v))
    other = fit(sample, structure="lowrank", rows="expected", blocks=7, data=sample.part(parts[1]))
    with pytest.raises(InvalidSetting, match="Shards must share"):
        ssse.Curvature.merge([shards[0], other])


def test_lost_digits_name_the_block():
    """Columns of the second block are too large for float32 beside the damping."""
    sample = problems.beyond_float32(dual=True)
    with refused(PrecisionLost, "Solving with block '2:4'.*float64", sample.model):
        fit(sample, structure="lowrank", blocks=2, damping=problems.TOO_FINE)
    builder = LowRankBuilder(blocks=[Block("first", ((0, 2),)), Block("second", ((2, 4),))])
    builder.add(ExplicitRows(sample.x))
    with pytest.raises(PrecisionLost, match=r"of its solution in block 'second'.*float64"):
        builder.build(2 * problems.TOO_FINE).solve(torch.ones(4))


# ---------------------------------------------------------------------------------------- what it costs


def plan(sample: problems.Sample, **options: Any) -> Plan:
    return ssse.plan(sample.model, sample.loss, sample.data, **{"structure": "lowrank", **options})


def test_the_plan_counts_a_kernel_per_block_and_the_rows_once():
    sample = problems.mlp()
    n, d, size = len(sample.x), 51, 8
    one, four = (plan(sample, rows="empirical", blocks=blocks) for blocks in ("one", 13))
    assert four.stored_bytes == n * d * size + 4 * n**2 * size
    assert four.fit_bytes - one.fit_bytes == 3 * n**2 * size
    assert four.operations - one.operations == pytest.approx(3 * n**3 / 3)  # n²d of the products stays
    assert "empirical rows, lowrank, 4 blocks, float64" in str(four)
    assert "lowrank, float64" in str(one)
    found = fit(sample, structure="lowrank", rows="empirical", blocks=13)
    assert "lowrank, 4 blocks" in found.chosen
    stored = [t for name, t in found.structure.state().items() if not name.endswith(("digests", "pivots"))]
    assert sum(t.numel() * t.element_size() for t in stored) == four.stored_bytes


def test_the_plan_of_a_linear_model_counts_its_features_once_per_cut():
    sample = problems.linear("cross_entropy", n=40, p=5, c=3)
    one, weights = (plan(sample, rows="empirical", blocks=blocks) for blocks in ("one", "parameter"))
    n = len(sample.x)
    biases = n**2 * (1 + 3) + n**3 / 3  # a kernel of their own
    assert weights.operations - one.operations == pytest.approx(biases)
    with pytest.raises(DoesNotFit, match="lowrank, 2 blocks"):
        plan(sample, rows="empirical", blocks="parameter", memory_budget=weights.stored_bytes)
    assert (
        plan(sample, rows="empirical", blocks="parameter", memory_budget=weights.fit_bytes).structure.kind == "lowrank"
    )


def test_auto_keeps_the_blocks_that_were_asked_for():
    """Dense blocks of this size do not fit; the dual form of the same blocks does."""
    sample = problems.mlp()
    sample.x, sample.y = sample.x[:6], sample.y[:6]
    dual = plan(sample, rows="empirical", blocks=26)
    curvature = fit(sample, rows="empirical", blocks=26, memory_budget=dual.fit_bytes)
    assert isinstance(curvature.structure, LowRankStructure)
    assert [block.size for block in curvature.structure.blocks] == [26, 25]


def test_no_block_multiplies_another_ones_columns():
    """Every kernel is made of the block's own columns, so that all of them together cost n²d."""
    sample = problems.mlp()
    curvature = fit(sample, structure="lowrank", rows="empirical", blocks=13)
    structure = curvature.structure
    assert isinstance(structure, LowRankStructure)
    widths = [sum(slab.dim for slab in structure.rows.columns(block).slabs) for block in structure.blocks]
    assert widths == [13, 13, 13, 12]
    assert all(isinstance(slab, StackedRows) for slab in structure.rows.columns(structure.blocks[0]).slabs)
