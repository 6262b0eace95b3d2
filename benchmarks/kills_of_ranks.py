"""A hundred random kills of random processes amid fits: what is lost, and whether the same curvature comes out.

A fit with checkpoints is begun by 1 to 4 processes, in turns for each structure. At a random moment of its pass one of
them is killed, by SIGKILL or SIGTERM; nobody ends the others, as torchrun would. It is begun anew by another number
of processes, killed again, and so on, 1 to 4 times; then it may end. What comes out is held against a fit by one
process that nobody disturbed: n and how many samples were counted twice, Gram matrices, rows and kernels sample by
sample, solutions. Float64 throughout.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ssse
from record import Report, number, run_alone
from ssse.curvature import estimates
from ssse.curvature.dense import DenseStructure
from ssse.curvature.lowrank import LowRankStructure
from ssse.errors import GroupBroken

KILLS, MOST_KILLS, MOST_PROCESSES = 100, 4, 4  # in all; of one fit; of one run
SAMPLES, SECONDS = 240, 0.01  # each takes so long to read: a pass of one process 2.4 s
TOGETHER = 4  # samples whose rows are made at once; usually up to 1,024, and checkpoints lie between
EVERY = 0.05  # seconds between two checkpoints of a process
ENDED = 30.0  # seconds after which the others must have ended
NEAR = 1e-9
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    structure: Any
    network: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)] if self.network else [nn.Linear(8, 3)]
        return nn.Sequential(*layers).double().eval()

    def fit(self, data: Dataset[Any], **how: Any) -> ssse.Curvature:
        return ssse.Curvature.fit(
            self.model(), "cross_entropy", DataLoader(data, batch_size=4), damping=1e-2, rows="margin",
            structure=self.structure, progress=False, **how,
        )  # fmt: skip


CASES = {
    "dense": Case("dense"),
    "lowrank": Case("lowrank"),
    "dense, network": Case("dense", network=True),
    "lowrank, network": Case("lowrank", network=True),
}


class Samples(Dataset[Any]):
    def __init__(self, seconds: float):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
        self.y = torch.randint(3, (SAMPLES,), generator=generator)
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds)
        return self.x[place], self.y[place]


def process(rank: int, processes: int, home: Path, run: int, case: Case) -> None:
    """One process of one run; a file says how far it is."""
    torch.set_num_threads(1)
    estimates.MOST_SAMPLES = TOGETHER
    phase = home / f"phase-{run}-{rank}"
    where = f"file://{home}/meeting-{run}"
    dist.init_process_group(
        "gloo", init_method=where, rank=rank, world_size=processes, timeout=timedelta(seconds=2 * ENDED)
    )
    try:
        curvature = case.fit(
            Samples(SECONDS), checkpoint=home / "fit", checkpoint_seconds=EVERY,
            on_plan=lambda _: put(phase, "pass"),
        )  # fmt: skip
        put(phase, "fitted")
        curvature.save(home / f"curvature-{run}")
        dist.barrier()
    except GroupBroken as broken:
        put(phase, f"broken: {broken}")


def put(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def phase_of(home: Path, run: int, rank: int) -> str:
    path = home / f"phase-{run}-{rank}"
    return path.read_text() if path.exists() else "start"


@dataclass
class Seen:
    """What happened to the fits of one case."""

    fits: int = 0
    runs: int = 0
    kills: dict[str, int] = field(default_factory=dict)  # amid a pass, by signal
    late: int = 0  # that came before or after it
    slowest: float = 0.0  # seconds from a kill to the end of the last of the others
    left: int = 0  # runs of which some process had not ended by itself in time
    unbroken: int = 0  # of those that were left by another in their pass, how many did not say so
    parts: int = 0  # in the folder when a fit was begun anew
    wrong: int = 0  # another n, or samples that count twice
    same_rows: int = 0
    same_kernel: int = 0
    worst: dict[str, float] = field(default_factory=dict)


def disturb(case: Case, home: Path, chance: random.Random, seen: Seen, enough: int) -> Path:
    """One fit, until it is through; where its curvature is."""
    wanted = min(chance.randint(1, MOST_KILLS), enough)
    for run in itertools.count():
        count = chance.randint(1, MOST_PROCESSES)
        seen.runs += 1
        seen.parts += len(list((home / "fit").glob("0*")))
        started = [context().Process(target=process, args=(i, count, home, run, case)) for i in range(count)]
        for one in started:
            one.start()
        if wanted:
            wanted -= kill_one(home, run, started, chance, seen)
        seen.left += not ended(started)
        if all(one.exitcode == 0 and phase_of(home, run, i) == "fitted" for i, one in enumerate(started)):
            return home / f"curvature-{run}"
    raise AssertionError


def ended(started: list[Any]) -> bool:
    """Whether all did by themselves in time; now they have."""
    deadline = time.perf_counter() + ENDED
    for one in started:
        one.join(max(0.0, deadline - time.perf_counter()))
    alive = [one for one in started if one.exitcode is None]
    for one in alive:
        one.kill()
        one.join()
    return not alive


def kill_one(home: Path, run: int, started: list[Any], chance: random.Random, seen: Seen) -> bool:
    """Whether it was amid its pass."""
    victim, sent = chance.randrange(len(started)), chance.choice(SIGNALS)
    while phase_of(home, run, victim) == "start" and started[victim].is_alive():
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 1.1 * SAMPLES * SECONDS / len(started)))
    others = [i for i in range(len(started)) if i != victim]
    before = phase_of(home, run, victim)
    if before != "pass" or not started[victim].is_alive():
        seen.late += 1
        return False
    os.kill(started[victim].pid, sent)
    began = time.perf_counter()
    started[victim].join()
    hit = started[victim].exitcode == -sent and phase_of(home, run, victim) == "pass"
    if not hit:
        seen.late += 1
        return False
    seen.kills[sent.name] = seen.kills.get(sent.name, 0) + 1
    seen.left += not ended(started)
    seen.slowest = max(seen.slowest, time.perf_counter() - began)
    seen.unbroken += sum(not phase_of(home, run, i).startswith("broken: ") for i in others)
    return True


@cache
def context() -> Any:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["ssse.erasure.erase"])
    return made


def content(curvature: ssse.Curvature) -> tuple[Tensors, Tensors]:
    """Rows and kernels, sample by sample in the order of their digests; and all else that is a sum."""
    structure = curvature.structure
    v = torch.randn(curvature.layout.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert curvature.gradient is not None
    sums = {"solution": curvature.solve(v), "gradient": curvature.gradient}
    sums["mean loss"] = torch.tensor(curvature.mean_loss, dtype=torch.float64)
    if isinstance(structure, DenseStructure):
        sums["Gram matrix"] = torch.cat([gram.gram().flatten() for gram in structure.grams])
        return {}, sums
    assert isinstance(structure, LowRankStructure)
    order = structure.rows.digests.argsort()
    rows: dict[str, list[Tensor]] = {}
    for part in structure.rows.parts:
        for name, value in part.tensors().items():
            rows.setdefault(name, []).append(value)
    kept = {f"row {name}": torch.cat(parts)[order] for name, parts in rows.items()}
    lower = structure.grams[0].gram()
    kernel = lower + lower.tril(-1).mT
    return kept, sums | {"kernel": kernel[order][:, order]}


def judge(curvature: ssse.Curvature, truth: ssse.Curvature, seen: Seen) -> None:
    seen.wrong += (curvature.n, curvature.repeats) != (truth.n, truth.repeats)
    (rows, sums), (wanted_rows, wanted) = content(curvature), content(truth)
    seen.same_rows += all(torch.equal(value, wanted_rows[name]) for name, value in rows.items())
    seen.same_kernel += "kernel" in sums and torch.equal(sums["kernel"], wanted["kernel"])
    for name, value in (sums | rows).items():
        if value.is_floating_point():
            right = {**wanted, **wanted_rows}[name]
            error = deviation(value, right)
            kind = "rows" if name.startswith("row ") else name
            seen.worst[kind] = max(seen.worst.get(kind, 0.0), error)


def deviation(value: Tensor, right: Tensor) -> float:
    return float((value - right).norm() / right.norm().clamp_min(1e-300)) if right.is_floating_point() else 0.0


def fits(home: Path) -> Iterator[tuple[str, Case, Path]]:
    for turn in itertools.count():
        name = tuple(CASES)[turn % len(CASES)]
        (home / str(turn)).mkdir()
        yield name, CASES[name], home / str(turn)


def main(_: Path) -> None:
    report = Report("kills_of_ranks", "Kills of processes amid fits with checkpoints, float64")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    chance, found = random.Random(0), {name: Seen() for name in CASES}
    at_once = [content(case.fit(Samples(0.0)))[0] for case in CASES.values()]
    estimates.MOST_SAMPLES = TOGETHER
    truth = {name: case.fit(Samples(0.0)) for name, case in CASES.items()}
    few = [content(curvature)[0] for curvature in truth.values()]
    apart = max(deviation(rows[key], few[i][key]) for i, rows in enumerate(at_once) for key in rows)
    with tempfile.TemporaryDirectory() as home:
        for name, case, folder in fits(Path(home)):
            done = sum(sum(seen.kills.values()) for seen in found.values())
            if done >= KILLS:
                break
            seen = found[name]
            curvature = ssse.Curvature.load(disturb(case, folder, chance, seen, KILLS - done))
            seen.fits += 1
            seen.wrong += (folder / "fit").exists()
            judge(curvature, truth[name], seen)
    tell(report, found)
    report.notes.append(
        f"Rows are made of {TOGETHER} samples at once. Where it is another number, as in shares of another length, "
        f"matrix products round otherwise: rows of all {SAMPLES} at once are off by {number(apart)}."
    )
    report.finish()


def tell(report: Report, found: dict[str, Seen]) -> None:
    rows, worst = [], []
    for name, seen in found.items():
        kills = [seen.kills.get(sent.name, 0) for sent in SIGNALS]
        rows.append((name, seen.fits, seen.runs, *kills, seen.late, seen.parts))
        whole = isinstance(CASES[name].structure, str) and CASES[name].structure == "lowrank"
        bits = [f"{count} of {seen.fits}" if whole else "–" for count in (seen.same_rows, seen.same_kernel)]
        kinds = ("gradient", "mean loss", "Gram matrix", "rows", "kernel", "solution")
        worst.append((name, *(seen.worst.get(kind, "–") for kind in kinds), *bits))
        report.numbers[name] = vars(seen)
    report.table(
        "Fits that were killed until they were through",
        ("structure", "fits", "runs", "SIGKILL", "SIGTERM", "not amid a pass", "parts taken up again"),
        rows,
    )
    report.table(
        "Largest relative deviation from an undisturbed fit by one process",
        (
            "structure",
            "gradient",
            "mean loss",
            "Gram",
            "rows",
            "kernel",
            "solution",
            "rows to the bit",
            "kernel to the bit",
        ),
        worst,
    )
    every = found.values()
    report.at_least("kills amid a pass", sum(sum(seen.kills.values()) for seen in every), KILLS)
    report.at_most(
        "fits with a sample lost, or counted twice, or that left their folder", sum(s.wrong for s in every), 0
    )
    report.at_most("largest relative deviation", max(max(seen.worst.values()) for seen in every), NEAR)
    report.at_most("the others ended, after a kill", max(seen.slowest for seen in every), ENDED, " s")
    report.at_most("runs that had to be ended", sum(seen.left for seen in every), 0)
    report.at_most("processes that did not say why they ended", sum(seen.unbroken for seen in every), 0)


if __name__ == "__main__":
    run_alone(main, __doc__)
