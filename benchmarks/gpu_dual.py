"""ResNet-20 on CIFAR-10, exact full (unblocked) empirical curvature in dual form, on one GPU.

With n = 45,000 samples and d = 269,722 parameters the rows R are 48.6 GB in float32. The floor of a fit:

    rows       n forward and backward passes
    kernel     RRᵀ, symmetric: n²d ≈ 5.5·10¹⁴ multiply–adds, i.e. about 11 s at 50 TFLOP/s in plain float32
    factor     n³/3 ≈ 3·10¹³ operations

A leave-k-out request solves with that factor and reads R three times. Targets: fit under 40 s, request under 3 s.

    python benchmarks/gpu_dual.py --data DIR      DIR holds cifar-10-batches-bin
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import ssse
from cifar import DECAY, EPOCHS, TRAIN, Clock, accuracy, find, load, train
from record import Report, run_alone
from resnet import ResNet20
from ssse.curvature.lowrank import LowRankBuilder
from ssse.problem.parameters import Block
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

DAMPING = 1e-4


def rows_against_backward(model: ResNet20, x: Tensor, y: Tensor) -> dict[str, float]:
    """Per-sample gradients of a batch, against one ordinary gradient of it; best of 10 each, in turn."""
    problem = Problem(model, "cross_entropy", "all", (x, y))
    best = {"rows": float("inf"), "backward": float("inf")}
    for _ in range(12):
        for name in best:
            clock = Clock()
            if name == "rows":
                measure_held(problem, RowKind("empirical"), (x, y))
            else:
                model.zero_grad()
                F.cross_entropy(model(x), y, reduction="sum").backward()
            clock.mark(name)
            best[name] = min(best[name], clock.seconds[name])
    model.zero_grad()
    return {**best, "ratio": best["rows"] / best["backward"]}


def timed_fit(model: ResNet20, data: list[tuple[Tensor, Tensor]]) -> tuple[ssse.Curvature, dict[str, float]]:
    """The public fit, with the time of its parts taken from outside."""
    clock = Clock()
    build = LowRankBuilder.kernel

    def timed_kernel(builder: LowRankBuilder, block: Block | None = None) -> Tensor:
        clock.mark("rows and their tiles")
        square = build(builder, block)
        clock.mark("kernel")
        return square

    LowRankBuilder.kernel = timed_kernel  # type: ignore[method-assign]  # to time one part of a fit
    try:
        curvature = ssse.Curvature.fit(
            model,
            "cross_entropy",
            data,
            damping=DAMPING,
            weight_decay=DECAY,
            rows="empirical",
            structure="lowrank",
            memory_budget="125GiB",
            progress=False,
        )
    finally:
        LowRankBuilder.kernel = build  # type: ignore[method-assign]  # as it was
    clock.mark("factor and checks")
    return curvature, clock.seconds


def main(folder: Path) -> None:
    source = find(folder)
    name = torch.cuda.get_device_name()
    report = Report("gpu_dual", "ResNet-20, 45,000 × 269,722, exact dual form, float32", machine=f"one {name}")
    torch.backends.cudnn.allow_tf32 = False  # rows in full float32
    x, y = load(source, [f"data_batch_{i}" for i in range(1, 6)])
    x, y = x[:TRAIN], y[:TRAIN]
    test = load(source, ["test_batch"])
    clock = Clock()
    model = train(x, y, EPOCHS)
    clock.mark("training")
    rows = rows_against_backward(model, x[:1024], y[:1024])
    curvature, parts = timed_fit(model, list(zip(x.split(2000), y.split(2000), strict=True)))
    peak = torch.cuda.max_memory_allocated() / 2**30
    requests = [request(model, curvature, x, y, share) for share in (0.0, 0.02, 0.5, 1.0)]

    fitted = sum(parts.values())
    report.table("Fit", ("part", "seconds"), [*parts.items(), ("whole fit", fitted)])
    report.table(
        "Requests, samples of class 0, scale 0.1",
        ("k", "seconds", "largest leverage", "step norm", "accuracy on S, %", "on all training data, %"),
        [[r[key] for key in ("k", "seconds", "leverage", "step", "forgotten", "all")] for r in requests],
    )
    report.table(
        "Rows of 1,024 samples",
        ("what", "seconds"),
        [("rows", rows["rows"]), ("forward and backward", rows["backward"]), ("ratio", rows["ratio"])],
    )
    assert curvature.gradient is not None
    norm = float(curvature.gradient.norm())
    report.notes += [
        f"Trained for {EPOCHS} epochs in {clock.seconds['training']:.0f} s: accuracy {accuracy(model, x, y):.2f} % on "
        f"the training data, {accuracy(model, *test):.2f} % on the test data; ‖∇L‖ = {norm:.3f}.",
        f"Peak memory {peak:.1f} GiB. What a step does to the network is not judged here; its verdict is 'caution'; "
        "at this scale forgetting the whole class ruins it.",
    ]
    report.at_most("fit: rows, kernel and factor", fitted, 40, " s")
    report.at_most("slowest leave-k-out request", max(r["seconds"] for r in requests), 3, " s")
    report.numbers = {"fit": parts, "requests": requests, "rows": rows, "peak GiB": peak}
    report.finish()


def request(model: ResNet20, curvature: ssse.Curvature, x: Tensor, y: Tensor, share: float) -> dict[str, float]:
    """Forget a share of class 0, one sample at least."""
    members = (y == 0).nonzero()[:, 0]
    chosen = members[: max(1, round(share * len(members)))]
    clock = Clock()
    # By force: what the step does to the network is shown, not judged.
    erasure = ssse.erase(model, curvature, "cross_entropy", [(x[chosen], y[chosen])], scale=0.1, override=ssse.BOUNDS)
    clock.mark("request")
    found = erasure.diagnostics
    return {
        "k": len(chosen),
        "seconds": clock.seconds["request"],
        "leverage": found.leverage_max or float("nan"),
        "step": found.step_norm or float("nan"),
        "forgotten": accuracy(erasure.model, x[chosen], y[chosen]),
        "all": accuracy(erasure.model, x, y),
    }


if __name__ == "__main__":
    run_alone(main, __doc__)
