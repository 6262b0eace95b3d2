"""Bytes that several processes send each other: those counted are those of the formula; and plans for several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ssse
from ssse.curvature.choices import Dense, LowRank
from ssse.curvature.estimates import Plan
from ssse.curvature.extent import Extent
from ssse.curvature.shared_lowrank import SharedLowRank
from ssse.curvature.wire import Wire, cost_together, wire_of_kernels, wire_of_squares, wire_of_sums
from ssse.errors import InvalidSetting
from ssse.problem.parameters import Block
from ssse.system.group import WIRE, current_group
from tests.support import problems
from tests.support.groups import group_of, run_processes


def counted(sample: problems.Sample, **how) -> tuple[Wire, ssse.Curvature]:
    WIRE.clear()
    curvature = ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=1e-2, progress=False, **how)
    own = WIRE["all_to_all"]
    everywhere = int(current_group().numbers(own).sum())  # who has more samples gives more
    return Wire(WIRE["all_reduce"], WIRE["reduce"], WIRE["broadcast"], everywhere), curvature


def work(rank: int, folder: Path) -> None:
    with group_of(rank, 2, folder / "meeting"):
        sample = problems.mlp()
        n, d = len(sample.x), sum(p.numel() for p in sample.model.parameters())
        sums = wire_of_sums(n, d, 8)
        for blocks in (7, "one"):
            found, curvature = counted(sample, rows="margin", structure="dense", blocks=blocks)
            sizes = [block.size for block in curvature.structure.blocks]
            assert found == sums + wire_of_squares(sizes, 8), blocks
        found, _ = counted(sample, rows="margin", structure="diagonal")
        assert found == sums + Wire(all_reduce=8 * d)
        for blocks, kernels in (("one", 1), ("parameter", 4)):
            found, curvature = counted(sample, rows="margin", structure="lowrank", blocks=blocks)
            assert isinstance(curvature.structure, SharedLowRank)
            assert found == sums + wire_of_kernels(n, n * (d + 1) * 8, kernels, 8, weighted=True), blocks


@pytest.mark.long
def test_the_bytes_on_the_wire_are_those_of_the_formula(tmp_path: Path):
    run_processes(work, 2, tmp_path)


def test_a_plan_for_several_processes():
    """Rows and kernels are shared out; Gram matrices are not."""
    sample = problems.mlp()

    def planned(structure, processes: int, **more) -> Plan:
        return ssse.plan(sample.model, sample.loss, sample.data, structure=structure, processes=processes, **more)

    one, four = (planned("lowrank", count) for count in (1, 4))
    assert four.fit_bytes < one.fit_bytes
    assert four.operations < one.operations
    assert four.stored_bytes == one.stored_bytes
    assert (one.wire_bytes, one.processes) == (0, 1)
    assert four.wire_bytes > 0
    assert "on each of 4 processes" in str(four)
    assert "sent" in four.table().splitlines()[0]
    assert "sent" not in one.table()
    dense = [planned("dense", count, rows="margin", blocks="one") for count in (1, 4)]
    assert dense[0].fit_bytes == dense[1].fit_bytes
    with pytest.raises(InvalidSetting, match="cannot be fitted by several processes"):
        planned("recurrence", 2)
    with pytest.raises(InvalidSetting, match="processes must be at least 1"):
        planned("dense", 0)


def test_what_each_process_holds():
    """Of 50,000 rows of 100,000 numbers an eighth each; what does not fit one machine fits eight."""
    extent = Extent(50_000, 50_000, 50, 100_000, 50_000 * 100_000, None, (), 4, 2**36, 100, torch.float32)
    one = LowRank().cost(extent)
    eight = cost_together(LowRank(), extent, one, 8)
    assert one.held / 8 <= eight.held < one.held / 7.9
    assert eight.spare < one.spare / 4
    assert eight.work.operations == pytest.approx(one.work.operations / 8)
    blocks = tuple(Block(str(i), ((i * 1000, (i + 1) * 1000),)) for i in range(10))
    extent = replace(extent, blocks=blocks, dim=10_000)
    four = cost_together(Dense(), extent, Dense().cost(extent), 4)
    assert four.work.factors == pytest.approx(Dense().cost(extent).work.factors * 3 / 10)  # of ten blocks, three


def test_what_is_sent_in_a_ring():
    wire = Wire(all_reduce=100, reduce=10, broadcast=20, all_to_all=40)
    assert wire.sent(1) == 0
    assert wire.sent(2) == pytest.approx(100 + 5 + 10 + 10)
    assert torch.isfinite(torch.tensor(wire.sent(512)))
