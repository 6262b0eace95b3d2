"""The two steps of `multi_attribute.py` that need a process of their own; each prints one line of JSON.

fit FOLDER ROWS       fit the curvature of FOLDER/x.npy, y.npy, weights.npy, save it in FOLDER/ROWS; peak memory
request FOLDER ROWS   load that curvature with verification, erase the samples in FOLDER/forget.npy; the step
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ssse
from ssse.rows.kinds import RowChoice

DECAY = 1e-4


def linear(weights: Tensor) -> nn.Linear:
    model = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weights)
    return model.eval()


def memory(field: str) -> int:
    """Bytes of this process resident now ("VmRSS") or at most so far ("VmHWM").

    Not `getrusage`: its maximum is inherited from the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def fit(folder: Path, rows: RowChoice) -> dict[str, float]:
    x, y, weights = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("x", "y", "weights"))
    data = list(zip(x.split(1024), y.split(1024), strict=True))
    model = linear(weights)
    model(x[:64])  # whatever torch sets up on its first product
    before, began = memory("VmRSS"), time.perf_counter()
    curvature = ssse.Curvature.fit(
        model, "binary_cross_entropy", data, weight_decay=DECAY, rows=rows, structure="dense", blocks="output"
    )
    fitted, peak = time.perf_counter(), memory("VmHWM")
    curvature.save(folder / rows)
    saved = time.perf_counter()
    size = sum(file.stat().st_size for file in (folder / rows).iterdir())
    return {
        "fit_seconds": fitted - began,
        "save_seconds": saved - fitted,
        "before_bytes": before,
        "peak_bytes": peak,
        "peak_with_save_bytes": memory("VmHWM"),
        "artefact_bytes": size,
    }


def request(folder: Path, rows: str) -> dict[str, float | str]:
    x, y, weights = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("forget", "labels", "weights"))
    model = linear(weights)
    began = time.perf_counter()
    curvature = ssse.Curvature.load(folder / rows, verify=True)
    loaded = time.perf_counter()
    erasure = ssse.erase(model, curvature, "binary_cross_entropy", [(x, y)], leave_out=True)
    erased = time.perf_counter()
    np.save(folder / f"{rows}-step.npy", erasure.step.numpy())
    return {
        "load_seconds": loaded - began,
        "erase_seconds": erased - loaded,
        "request_seconds": erased - began,
        "verdict": erasure.diagnostics.verdict,
        "leverage": erasure.diagnostics.leverage_max or float("nan"),
    }


if __name__ == "__main__":
    step = {"fit": fit, "request": request}[sys.argv[1]]
    print(json.dumps(step(Path(sys.argv[2]), sys.argv[3])))
