"""Data and rows that stay on disk: a linear model fitted from a file, and a request from rows that are mapped.

    fit       n = 300,000 × d = 1,000, float32, a 1.2 GB npy file read by `ssse.FileBatches`, least squares, one block;
              against reading the file, and against the arithmetic alone: half of RᵀR, of batches that lie in memory
    request   a small network's margin rows, 2,000 × 68,362 (0.5 GB), loaded and 20 samples erased

Each in a process of its own that watches its anonymous memory (RssAnon): what the system cannot drop and read again.
The file was written just before, so it may come from the page cache; the disk's own speed is not measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ssse
from record import Report, run_alone, seconds_of
from ssse.rows.held import add_lower_product

SAMPLES, FEATURES, SIZE, DECAY = 300_000, 1_000, 8_192, 1e-3
KEPT, FORGET, BUDGET = 2_000, 20, "1GiB"


def main(_: Path) -> None:
    report = Report("out_of_core", f"Out of core: {SAMPLES:,} × {FEATURES:,} from a file, and rows that are mapped")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rng = np.random.default_rng(0)
        x = np.lib.format.open_memmap(scratch / "x.npy", "w+", np.float32, (SAMPLES, FEATURES))
        y = np.empty((SAMPLES, 1), dtype=np.float32)
        w = rng.standard_normal((FEATURES, 1), dtype=np.float32)
        some = np.empty((0, FEATURES), dtype=np.float32)
        for start in range(0, SAMPLES, SIZE):
            some = rng.standard_normal((len(x[start : start + SIZE]), FEATURES), dtype=np.float32)
            x[start : start + SIZE] = some
            y[start : start + SIZE] = some @ w
        x.flush()
        np.save(scratch / "y.npy", y)
        size = x.nbytes
        del x, some
        rounds = [run_step("fit", scratch) for _ in range(2)]
        best = {key: min(found[key] for found in rounds) for key in rounds[0]}
        make_rows(scratch)
        request = run_step("request", scratch)
    floor = max(best["read"], best["arithmetic"])
    rows = [
        ("fit, s", best["fit"], best["fit"] / floor),
        ("reading the file, s", best["read"], best["read"] / floor),
        ("half of RᵀR, s", best["arithmetic"], best["arithmetic"] / floor),
    ]
    report.table(f"A file of {size / 2**30:.2f} GiB, best of 2 rounds", ("what", "seconds", "× the slower"), rows)
    report.table(
        "Anonymous memory that was added, at most",
        ("what", "MiB", "MiB on disk"),
        [
            ("fit", best["memory"], size / 2**20),
            (f"load and erase {FORGET} samples, {request['seconds']:.2f} s", request["memory"], request["disk"]),
        ],
    )
    hours = 1e7 / SAMPLES * best["fit"] / 3600
    report.notes.append(f"Extrapolated, not measured: n = 10⁷ × d = 1,000 (40 GB) takes {hours:.1f} h of this machine.")
    report.at_most("fit from a file, against the slower of reading and half of RᵀR", best["fit"] / floor, 1.5, "×")
    report.at_most("memory of the fit, against the file", best["memory"] * 2**20 / size, 0.5, "×")
    report.at_most("memory of a request, against its rows on disk", request["memory"] / request["disk"], 0.5, "×")
    report.numbers = {**best, "bytes": size, "request": request}
    report.finish()


def run_step(step: str, scratch: Path) -> dict[str, float]:
    command = [sys.executable, __file__, step, str(scratch)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def anonymous() -> float:
    """MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def watched(function: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and MiB of anonymous memory that were added while it ran."""
    before = most = anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    seconds, _ = seconds_of(function)
    done.set()
    thread.join()
    return seconds, most - before


def fit(scratch: Path) -> dict[str, float]:
    model = nn.Linear(FEATURES, 1, bias=False).eval()
    data = ssse.FileBatches(scratch / "x.npy", scratch / "y.npy", size=SIZE)
    few = [(torch.randn(4 * FEATURES, FEATURES), torch.randn(4 * FEATURES, 1))]
    settings = {"weight_decay": DECAY, "rows": "expected", "structure": "dense", "progress": False}
    ssse.Curvature.fit(model, "mse", few, **settings)  # type: ignore[arg-type]  # settings of several types; whatever is loaded and measured once
    buffer = bytearray(2**22)

    def read() -> None:
        with open(scratch / "x.npy", "rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass

    out, some = torch.zeros(FEATURES, FEATURES), torch.randn(SIZE, FEATURES)

    def arithmetic() -> None:
        for _ in range(0, SAMPLES, SIZE):
            add_lower_product(out, some, some)

    seconds, memory = watched(
        lambda: ssse.Curvature.fit(model, "mse", data, memory_budget=BUDGET, **settings)  # type: ignore[arg-type]  # settings of several types
    )
    return {
        "fit": seconds, "memory": memory, "read": seconds_of(read)[0], "arithmetic": seconds_of(arithmetic)[0]
    }  # fmt: skip


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)).eval()
    return model, torch.randn(KEPT, 256), torch.randint(0, 10, (KEPT,))


def make_rows(scratch: Path) -> None:
    model, x, y = network()
    ssse.Curvature.fit(
        model, "cross_entropy", [(x, y)], weight_decay=0.1, rows="margin", structure="lowrank", progress=False
    ).save(scratch / "rows")


def request(scratch: Path) -> dict[str, float]:
    model, x, y = network()

    def answer() -> None:
        curvature = ssse.Curvature.load(scratch / "rows")
        ssse.erase(model, curvature, forget=[(x[:FORGET], y[:FORGET])], override=ssse.BOUNDS, progress=False)

    seconds, memory = watched(answer)
    disk = sum(path.stat().st_size for path in (scratch / "rows").iterdir()) / 2**20
    return {"seconds": seconds, "memory": memory, "disk": disk}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("fit", "request"):
        print(json.dumps({"fit": fit, "request": request}[sys.argv[1]](Path(sys.argv[2]))))
    else:
        run_alone(main, __doc__)
