"""Rows of a network: the per-sample gradients of a ResNet-20, against one ordinary gradient of the same batch.

An ordinary backward pass ends every layer in one sum over the batch. Per-sample gradients need the same
products without that sum, so the floor is the time of forward and backward, plus writing n·d numbers:
128 × 269,722 × 4 bytes = 138 MB. The batch is noise, and the model is in eval mode; neither changes the work.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from record import Report, best_of, run_alone
from resnet import settled_resnet20
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

BATCH = 128


def main(_: Path) -> None:
    report = Report("network_rows", f"Rows of a ResNet-20, batch of {BATCH}, float32")
    model = settled_resnet20()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    problem = Problem(model, "cross_entropy", "all", (x, y))

    def rows() -> torch.Tensor:
        return measure_held(problem, RowKind("empirical"), (x, y))[0].matrix()

    def ordinary() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), y, reduction="sum").backward()

    def forward() -> None:
        with torch.no_grad():
            model(x)

    ordinary()
    total = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    error = float((rows().sum(0) - total).norm() / total.norm())
    best = best_of(12, rows=rows, ordinary=ordinary, forward=forward)
    ratio = best["rows"] / best["ordinary"]
    report.table(
        "Seconds, best of 12 interleaved rounds",
        ("what", "seconds", "× forward and backward"),
        [
            ("forward", best["forward"], best["forward"] / best["ordinary"]),
            ("forward and backward", best["ordinary"], 1.0),
            (f"rows, {BATCH} × {problem.layout.dim:,}", best["rows"], ratio),
        ],
    )
    report.notes.append(f"The rows sum to the ordinary gradient to a relative {error:.0e}.")
    report.at_most("rows against forward and backward", ratio, 2, "×")
    report.numbers = {**best, "relative_error": error}
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
