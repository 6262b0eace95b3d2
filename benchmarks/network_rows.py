"""Rows of a network: the per-sample gradients of a ResNet-20, against one ordinary gradient of the same batch.

An ordinary backward pass ends every layer in one sum over the batch. Per-sample gradients need the same
products without that sum, so the floor is the time of forward and backward, plus writing n·d numbers:
128 × 269,722 × 4 bytes = 138 MB. The batch is noise, and the model is in eval mode; neither changes the work.
Beside the way that is taken, the two that it was chosen from: mapped over the samples by torch.func, and layer by
layer, from each layer's input and the gradient of its output. On a GPU where there is one, in full float32.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from record import Report, best_of, run_alone
from resnet import ResNet20, settled_resnet20
from ssse.problem.cores import DenseCores
from ssse.problem.derivatives.layerwise import Layerwise
from ssse.problem.derivatives.vectorised import Vectorised
from ssse.problem.derivatives.ways import RowWay
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

ROUNDS = 12
BATCHES = {"cpu": (128,), "cuda": (128, 1024)}  # the last is judged
WANTED = {"cpu": 1.4, "cuda": 1.7}


def main(_: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report = Report("network_rows", "Rows of a ResNet-20, float32")
    if device == "cuda":
        report.name, report.machine = "gpu_rows", f"one {torch.cuda.get_device_name()}"
    torch.backends.cudnn.allow_tf32 = False
    model = settled_resnet20().to(device)
    ratio = float("nan")
    for batch in BATCHES[device]:
        ratio = measured(report, model, batch, device)
    report.at_most("rows against forward and backward", ratio, WANTED[device], "×")
    report.finish()


def measured(report: Report, model: ResNet20, batch: int, device: str) -> float:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(0, 10, (batch,), generator=generator).to(device)
    problem = Problem(model, "cross_entropy", "all", (x, y))

    def rows() -> torch.Tensor:
        return wait(measure_held(problem, RowKind("empirical"), (x, y))[0].matrix())

    def by(way: RowWay) -> torch.Tensor:
        found, _ = way.rows(problem, x, lambda z, which: DenseCores(problem.loss.gradient(z, y[which])[:, None]))
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
    best = best_of(
        ROUNDS,
        rows=rows,
        mapped=lambda: by(Vectorised()),
        by_layers=lambda: by(Layerwise()),
        ordinary=ordinary,
        forward=forward,
    )
    named = {
        "forward": "forward",
        "ordinary": "forward and backward",
        "rows": f"rows, {batch:,} × {problem.layout.dim:,}, {problem.derivatives.row_way}",
        "mapped": f"all by the way '{Vectorised()}'",
        "by_layers": f"all by the way '{Layerwise()}'",
    }
    report.table(
        f"Batch of {batch:,}: seconds, best of {ROUNDS} interleaved rounds",
        ("what", "seconds", "× forward and backward"),
        [(words, best[name], best[name] / best["ordinary"]) for name, words in named.items()],
    )
    apart = float((by(Layerwise()) - by(Vectorised())).norm() / total.norm())
    report.notes.append(
        f"Batch of {batch:,}: both ways differ by a relative {apart:.0e}; the rows sum to the ordinary gradient to "
        f"{error:.0e}."
    )
    report.numbers[str(batch)] = {**best, "relative_error": error, "apart": apart}
    return best["rows"] / best["ordinary"]


def wait(result: torch.Tensor) -> torch.Tensor:
    """Until it is there: a GPU computes on after the call."""
    if result.is_cuda:
        torch.cuda.synchronize()
    return result


if __name__ == "__main__":
    run_alone(main, __doc__)
