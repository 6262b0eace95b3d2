"""Fit by two processes against one, on one machine, a thread each; and the bytes that they send.

    strong   the same problem: one process's seconds over those of two; 2 is ideal
    weak     twice the work for two processes: one process's seconds over theirs; 1 is ideal

By the clock they are of a machine that is otherwise idle. Seconds of the processor, those of the busier process, are
what there is to compute: they hold on a shared machine too, and leave out what one process waits for the other.

`dense` is one logistic output over 1,536 features: RᵀR of each process's samples, summed once, one factor. `lowrank` is
a kernel of the rows of 3,072 samples with 6,144 features and its factor, both by block rows. Of the bytes, those given
to collectives are counted by the library, those of the formula are docs/scale.md's, and those of the loopback are the
system's, with TCP's own and whatever else went over it.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

import ssse
from record import Report, run_alone
from ssse.curvature.wire import Wire, wire_of_kernels, wire_of_squares, wire_of_sums
from ssse.system.group import WIRE

ROUNDS, PROCESSES, SIZE = 3, 2, 4  # bytes of a float32


@dataclass(frozen=True)
class Case:
    structure: Any
    samples: int
    features: int
    weak: int  # samples of twice the work

    def fit(self, samples: int) -> ssse.Curvature:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(samples, self.features, generator=generator) * (3 / self.features**0.5)
        y = (torch.rand(samples, 1, generator=generator) < 0.5).float()
        torch.manual_seed(0)
        model = torch.nn.Linear(self.features, 1, bias=False).eval()
        if dist.is_initialized():
            dist.barrier()
        began, busy = time.perf_counter(), time.process_time()
        curvature = ssse.Curvature.fit(
            model, "binary_cross_entropy", list(zip(x.split(1024), y.split(1024), strict=True)), damping=1e-2,
            rows="expected", structure=self.structure, progress=False,
        )  # fmt: skip
        _SECONDS.append((time.perf_counter() - began, time.process_time() - busy))
        return curvature

    def wire(self) -> Wire:
        sums = wire_of_sums(self.samples, self.features, SIZE)
        if self.structure == "dense":
            return sums + wire_of_squares([self.features], SIZE)
        rows = self.samples * (self.features + 1) * SIZE
        return sums + wire_of_kernels(self.samples, rows, 1, SIZE, weighted=False)


_SECONDS: list[tuple[float, float]] = []  # of each fit, by the clock and of the processor
CASES = {"dense": Case("dense", 16_384, 1_536, 32_768), "lowrank": Case("lowrank", 3_072, 6_144, 4_344)}


def measured(rank: int, meeting: str, home: str) -> None:
    """In each process: alone and together in turns. The first one writes down what it saw."""
    torch.set_num_threads(1)
    out: dict[str, Any] = {}
    for name, case in CASES.items():
        for turn in range(ROUNDS):
            if rank == 0:
                case.fit(case.samples)
            where = f"file://{meeting}-{name}-{turn}"
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=PROCESSES)
            dist.barrier()
            WIRE.clear()
            before = _loopback()
            case.fit(case.samples)
            out[f"{name} wire"] = dict(WIRE)
            out[f"{name} loopback"] = _loopback() - before
            case.fit(case.weak)
            busiest = torch.tensor([busy for _, busy in _SECONDS[-2:]], dtype=torch.float64)
            dist.all_reduce(busiest, dist.ReduceOp.MAX)
            dist.destroy_process_group()
            if rank == 0:
                clock = [seconds for seconds, _ in _SECONDS[-3:]]
                out.setdefault(name, []).append([*clock, _SECONDS[-3][1], *busiest.tolist()])
    if rank == 0:
        torch.save(out, f"{home}/out.pt")


def _loopback() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[1])


def main(_: Path) -> None:
    report = Report("scaling", "Fits by two processes on one machine, a thread each, float32")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as home:
        start_processes(measured, (f"{home}/meeting", home), nprocs=PROCESSES, start_method="spawn")
        found = torch.load(f"{home}/out.pt", weights_only=True)
    times, bytes_sent = [], []
    for name, case in CASES.items():
        best = [min(turn[i] for turn in found[name]) for i in range(6)]
        for how, (alone, strong, weak) in {"by the clock": best[:3], "of the processor": best[3:]}.items():
            times.append((f"{name}, {how}", case.samples, alone, strong, alone / strong, alone / weak))
        wire, counted = case.wire(), found[f"{name} wire"]
        given = sum(counted.get(kind, 0) for kind in ("all_reduce", "reduce", "broadcast"))
        formula = wire.all_reduce + wire.reduce + wire.broadcast
        others = counted.get("numbers", 0) / 2**20
        bytes_sent.append((name, given / 2**20, formula / 2**20, others, found[f"{name} loopback"] / 2**20))
        report.at_most(f"{name}: bytes counted, off those of the formula", abs(given - formula), 0)
        report.numbers |= {name: {"seconds": found[name], "wire": counted, "loopback": found[f"{name} loopback"]}}
    report.table(
        f"Seconds, best of {ROUNDS} interleaved rounds",
        ("structure", "samples", "one process", "two", "strong scaling (2 is ideal)", "weak (1 is ideal)"),
        times,
    )
    report.table(
        "MiB of a fit by two processes",
        ("structure", "given to collectives", "by the formula", "to agree by", "over the loopback"),
        bytes_sent,
    )
    report.notes.append(
        f"Load of the machine meanwhile: {os.getloadavg()[0]:.1f} processes that were ready to run, on "
        f"{os.cpu_count()} cores; of more than two, what is by the clock says little."
    )
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
