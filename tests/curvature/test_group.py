"""Several processes give what one gives: curvature, solution, erased model; and load what others have saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import ssse
from ssse.curvature import kernel_steps
from ssse.curvature.choices import Choice
from ssse.curvature.lowrank import LowRankStructure
from ssse.curvature.shared_dense import SharedDense
from ssse.curvature.shared_lowrank import SharedLowRank
from ssse.errors import InvalidData, InvalidSetting, NotPositiveDefinite
from ssse.system.group import current_group
from tests.support import problems
from tests.support.groups import group_of, run_processes
from tests.support.sizes import sized
from tests.support.together import DAMPING, FORGET, KINDS, SOLVED, WAYS, answers, compare, fit, linear

PROCESSES = (4, 2, 1)
Case = tuple[str, str, str]


def cases_of(processes: int) -> list[Case]:
    """Every way with every kind of rows; in the small size each way once, with another kind for each number."""
    every = [("linear", way, rows) for way in WAYS for rows in KINDS]
    return sized([("linear", way, kind_for(way, processes)) for way in WAYS], every) + NETWORK * (processes == 2)


def kind_for(way: str, processes: int) -> str:
    return KINDS[(list(WAYS).index(way) + PROCESSES.index(processes)) % len(KINDS)]


NETWORK = [("mlp", way, rows) for way, rows in [("dense in blocks", "expected"), ("lowrank", "margin")]]
ROWS = {way: kind_for(way, 4) for way in WAYS}
CASES = list(dict.fromkeys(case for processes in PROCESSES for case in cases_of(processes)))
STEPS = ("linear", "lowrank in blocks", kind_for("lowrank in blocks", 2))


def sample_of(name: str) -> problems.Sample:
    return linear() if name == "linear" else problems.mlp()


def work(rank: int, folder: Path) -> None:
    meeting, truth = folder / "meeting", torch.load(folder / "truth.pt")
    for processes in PROCESSES:
        with group_of(rank, processes, meeting) as inside:
            if not inside:
                continue
            for name, way, rows in cases_of(processes):
                sample, what = sample_of(name), f"{processes} processes, {name}, {way}, {rows}"
                curvature = fit(sample, way, rows)
                compare(answers(sample, curvature), truth[name, way, rows], what)
                if processes == 4 and rows == ROWS[way]:
                    curvature.save(folder / way)
            if processes == 1:
                compare(answers(linear(), recurrence()), truth["recurrence", "", ""], "recurrence")
            if processes == 4:
                check_forms_of_data(rank, truth)
                check_refusals(rank)
                check_kinds_of_structures()
                check_other_steps(truth)
            if processes == sized(2, 4):
                check_conjugate_gradients(folder, truth)
    with group_of(rank, 3, meeting) as inside:
        for way in WAYS if inside else ():
            check_loaded(folder / way, truth["linear", way, ROWS[way]])


def recurrence() -> ssse.Curvature:
    """The one structure that is not for several processes is for a group of one."""
    sample = linear()
    return ssse.Curvature.fit(
        sample.model, sample.loss, sample.data, damping=DAMPING, structure="recurrence", progress=False
    )


def check_loaded(folder: Path, wanted: dict[str, Tensor]) -> None:
    """What four processes have saved. Without its data a matrix-free curvature solves nothing; a request brings it."""
    curvature = ssse.Curvature.load(folder)
    solves = not curvature.structure.reads_data
    kept = {name: value for name, value in wanted.items() if solves or name not in SOLVED}
    compare(answers(linear(), curvature, solves), kept, f"loaded, {folder.name}")


def check_forms_of_data(rank: int, truth: dict[Case, dict[str, Tensor]]) -> None:
    """A loader over all, with or without a sampler for several processes; each process's own stream; mini-batches."""
    sample = linear()
    wanted = truth["linear", "dense", ROWS["dense"]]
    dataset = TensorDataset(sample.x, sample.y)
    shuffled = DataLoader(dataset, batch_size=7, shuffle=True)
    padded = DataLoader(dataset, batch_size=7, sampler=DistributedSampler(dataset))
    for what, data in {"shuffled": shuffled, "padded": padded, "bare": dataset, "stream": Stream(sample, rank)}.items():
        compare(answers(sample, fit(sample, "dense", ROWS["dense"], data)), wanted, what)
    wrapped = DistributedDataParallel(sample.model)
    curvature = ssse.Curvature.fit(
        wrapped, sample.loss, sample.data, damping=DAMPING, rows="margin", structure="dense", progress=False
    )
    compare({"solution": curvature.solve(torch.ones(18).double())}, {"solution": truth["ones", "", ""]["x"]}, "DDP")
    erasure = ssse.erase(wrapped, curvature, sample.loss, sample.part(FORGET), override=ssse.BOUNDS, progress=False)
    assert type(erasure.model) is DistributedDataParallel
    compare({"step": erasure.step}, {"step": wanted["step"]}, "DDP")
    joined = fit(sample, "dense", "empirical", rows_per_batch=4)
    compare({"solution": joined.solve(torch.ones(18).double())}, {"solution": truth["joined", "", ""]["x"]}, "joined")


def check_conjugate_gradients(folder: Path, truth: dict[Case, dict[str, Tensor]]) -> None:
    """On the kernel, where a factor would cost more: here nothing is too much."""
    kernel_steps.COLUMNS = 0
    curvature = fit(linear(), *STEPS[1:])
    assert isinstance(curvature.structure, SharedLowRank)
    assert all(kernel.iterates for kernel in curvature.structure.grams)
    compare(answers(linear(), curvature), truth[STEPS], "conjugate gradients")
    curvature.save(folder / "by steps")
    kernel_steps.COLUMNS = 104


def check_other_steps(truth: dict[Case, dict[str, Tensor]]) -> None:
    """They run on every process, and come to the same on each."""
    found = other_steps()
    compare(found, truth["others", "", ""], "calibrate, evaluate, repair")
    current_group().agree(lambda: {"repaired model": found["repaired"].tolist()})


def other_steps() -> dict[str, Tensor]:
    sample, few = linear(), linear().part(FORGET)
    curvature = fit(sample, "dense in blocks", "expected")
    chosen = ssse.calibrate(
        sample.model, curvature, sample.loss, few, method="line_search", data=sample.data, progress=False
    )
    erased = ssse.erase(sample.model, curvature, sample.loss, few, override=ssse.BOUNDS, progress=False)
    table = ssse.evaluate({"original": sample.model, "erased": erased.model}, {"forgotten": few}, progress=False)
    training = ssse.Training(epochs=2, learning_rate=0.01)
    rest = sample.part(slice(7, None))
    mended = ssse.repair(erased.model, rest, sample.loss, forget=few, training=training, epochs=2, progress=False)
    return {
        "scale": torch.tensor([chosen.scale]),
        "table": torch.tensor([len(str(table))]).double(),
        "repaired": torch.cat([p.detach().flatten() for p in mended.model.parameters()]),
    }


class Stream(IterableDataset):
    """This process's own part, in an order of its own."""

    def __init__(self, sample: problems.Sample, rank: int, processes: int = 4):
        self.places = list(range(len(sample.x)))[rank::processes][::-1]
        self.sample = sample

    def __iter__(self):
        return iter([(self.sample.x[[i]], self.sample.y[[i]]) for i in self.places])


def check_refusals(rank: int) -> None:
    """On every process, by one sentence that says where it is."""
    sample = linear()
    with pytest.raises(InvalidData, match="came to more than one process"):
        fit(sample, "dense", "margin", iter(sample.data))
    with pytest.raises(InvalidSetting, match=r"structure='recurrence' goes on from one sample to the next"):
        ssse.Curvature.fit(sample.model, sample.loss, sample.data, damping=DAMPING, structure="recurrence")
    other = problems.linear("cross_entropy", n=61, seed=rank // 2)
    with pytest.raises(InvalidSetting, match="Rank 2 of 4 has another model than rank 0"):
        ssse.Curvature.fit(other.model, sample.loss, sample.data, damping=DAMPING, structure="dense")
    with pytest.raises(InvalidSetting, match=r"Rank 3 of 4 has another damping than rank 0: 0\.02, and there 0\.01"):
        ssse.Curvature.fit(
            sample.model, sample.loss, sample.data, damping=0.02 if rank == 3 else 0.01, structure="dense"
        )
    with pytest.raises(InvalidSetting, match="Rank 1 of 4 has another choice of settings than rank 0"):
        fit(sample, "dense", "margin" if rank != 1 else "expected")
    short = sample.part(slice(0, 40)) if rank == 1 else sample.data
    with pytest.raises(InvalidSetting, match="Rank 1 of 4 has another number of samples than rank 0: 40, and there 61"):
        fit(sample, "dense", "margin", short)
    with pytest.raises(InvalidData, match="fewer than the 4 processes"):
        fit(sample, "dense", "margin", sample.part(slice(0, 3)))
    broken = sample.x.clone()
    broken[0] = torch.nan
    with pytest.raises(InvalidData, match="NaN" if rank == 1 else "Rank 1 of 4: .*NaN"):
        fit(sample, "dense", "margin", [(broken, sample.y)] if rank == 1 else sample.data)
    curvature = fit(sample, "dense", "margin")
    with pytest.raises(InvalidSetting, match="Rank 2 of 4 has another request than rank 0"):
        ssse.erase(sample.model, curvature, sample.loss, sample.part(slice(rank // 2, 4)), progress=False)
    with pytest.raises(NotPositiveDefinite, match="^no" if rank == 2 else "Rank 2 of 4: no"):
        fail_at(2, rank)


def fail_at(where: int, rank: int) -> None:
    with current_group().together():
        if rank == where:
            raise NotPositiveDefinite("no")


def check_kinds_of_structures() -> None:
    sample = linear()
    assert isinstance(fit(sample, "dense in blocks", "margin").structure, SharedDense)
    structure = fit(sample, "lowrank", "margin").structure
    assert isinstance(structure, SharedLowRank)
    own = len(structure.rows.tiles.rows_of(structure.group.rank))
    assert structure.grams[0].square.shape == (own, 61)
    assert 0 < own < 61


@pytest.mark.long
def test_several_processes_are_one(tmp_path: Path):
    truth = {}
    for case in CASES:
        sample = sample_of(case[0])
        truth[case] = answers(sample, fit(sample, case[1], case[2]))
    ones, sample = torch.ones(18).double(), linear()
    truth["ones", "", ""] = {"x": fit(sample, "dense", "margin").solve(ones)}
    truth["joined", "", ""] = {"x": fit(sample, "dense", "empirical", rows_per_batch=4).solve(ones)}
    truth["recurrence", "", ""] = answers(sample, recurrence())
    truth["others", "", ""] = other_steps()
    torch.save(truth, tmp_path / "truth.pt")  # as arguments so many tensors are too many descriptors
    run_processes(work, 4, tmp_path)
    for way in WAYS:
        check_loaded(tmp_path / way, truth["linear", way, ROWS[way]])
    compare(answers(linear(), ssse.Curvature.load(tmp_path / "by steps")), truth[STEPS], "factorised by one")
    assert len(list((tmp_path / "lowrank").glob("part-*.safetensors"))) == 4
    assert type(ssse.Curvature.load(tmp_path / "lowrank").structure) is LowRankStructure


def test_conjugate_gradients_are_for_large_kernels_alone():
    assert not kernel_steps.are_cheaper(100_000, 200)
    assert kernel_steps.are_cheaper(1_000_000, 200)


def test_a_choice_says_whether_it_can_be_shared():
    kinds = {choice.kind: choice.shared for choice in Choice.__subclasses__()}
    assert kinds == {"dense": True, "lowrank": True, "matrix_free": True, "diagonal": True, "recurrence": False}
