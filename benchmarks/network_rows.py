"""Rows of a network: the per-sample gradients of a ResNet-20, against one ordinary gradient of the same batch.

An ordinary backward pass ends every layer in one sum over the batch. Per-sample gradients need the same
products without that sum, so the floor is the time of forward and backward, plus writing n·d numbers:
128 × 269,722 × 4 bytes = 138 MB. The batch is noise, and the model is in eval mode; neither changes the work.
Beside the way that is taken, the other: layer by layer, from each layer's input and the gradient of its output.
On a GPU where there is one.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from record import Report, best_of, run_alone
from resnet import settled_resnet20
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

BATCH = 128


def main(_: Path) -> None:
    report = Report("network_rows", f"Rows of a ResNet-20, batch of {BATCH}, float32")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = settled_resnet20().to(device)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(0, 10, (BATCH,), generator=generator).to(device)
    problem = Problem(model, "cross_entropy", "all", (x, y))

    def rows() -> torch.Tensor:
        return wait(measure_held(problem, RowKind("empirical"), (x, y))[0].matrix())

    def by_layers() -> torch.Tensor:
        found, _ = Layerwise().rows(problem, x, lambda z, which: DenseCores(problem.loss.gradient(z, y)[:, None]))
        return wait(found[:, 0])

    def ordinary() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y, reduction="sum").backward()
        wait(x)

    def forward() -> None:
        with torch.no_grad():
            wait(model(x))

    ordinary()
    total = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    error = float((rows().sum(0) - total).norm() / total.norm())
    best = best_of(12, rows=rows, by_layers=by_layers, ordinary=ordinary, forward=forward)
    ratio = best["rows"] / best["ordinary"]
    report.table(
        "Seconds, best of 12 interleaved rounds",
        ("what", "seconds", "× forward and backward"),
        [
            ("forward", best["forward"], best["forward"] / best["ordinary"]),
            ("forward and backward", best["ordinary"], 1.0),
            (f"rows, {BATCH} × {problem.layout.dim:,}, {problem.derivatives.row_way}", best["rows"], ratio),
            ("the same, layer by layer", best["by_layers"], best["by_layers"] / best["ordinary"]),
        ],
    )
    apart = float((by_layers() - rows()).norm() / total.norm())
    report.notes.append(f"Both ways differ by a relative {apart:.0e}. Device: {device}.")
    report.notes.append(f"The rows sum to the ordinary gradient to a relative {error:.0e}.")
    report.at_most("rows against forward and backward", ratio, 1.7 if device == "cuda" else 1.4, "×")
    report.numbers = {**best, "relative_error": error}
    report.finish()


def wait(result: torch.Tensor) -> torch.Tensor:
    """Until it is there: a GPU computes on after the call."""
    if result.is_cuda:
        torch.cuda.synchronize()
    return result


if __name__ == "__main__":
    run_alone(main, __doc__)
