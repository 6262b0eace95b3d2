"""ResNet-20 on CIFAR-10, exact full (unblocked) empirical curvature in dual form, on one GPU.

With n = 45,000 samples and d = 269,722 parameters the rows R are 48.6 GB in float32. The floor of a fit:

    rows       n forward and backward passes
    kernel     RRᵀ, symmetric: n²d ≈ 5.5·10¹⁴ operations, i.e. about 11 s at 50 TFLOP/s in plain float32
    factor     n³/3 ≈ 3·10¹³ operations

The kernel is made in three precisions of the same rows: in float64, in halves on the tensor cores (split), and as
float32 multiplies; its entries are held against float64 products of some of the rows. A leave-k-out request solves with
the factor and reads R three times. Targets: a split fit within 15 s, a request within 3 s.

    python benchmarks/gpu_dual.py --data DIR      DIR holds cifar-10-batches-bin; without it the images are noise
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import ssse
from cifar import DECAY, TRAIN, Clock, accuracy, find, load, train
from record import MissingData, Report, run_alone
from resnet import ResNet20
from ssse.curvature.lowrank import LowRankBuilder, LowRankStructure
from ssse.errors import SSSEError
from ssse.problem.parameters import Block
from ssse.problem.problem import Problem
from ssse.rows.kinds import RowKind, measure_held

DAMPING, EPOCHS, COMPARED = 1e-4, 5, 512
SHARES = (0.0, 0.02, 0.5, 1.0)


@dataclass(frozen=True)
class Held:
    """One kernel of the rows, with its seconds and its errors."""

    curvature: ssse.Curvature
    kernel: float
    factor: float
    of_entries: float
    largest: float
    of_solution: float


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


@contextmanager
def timed_kernel(clock: Clock) -> Iterator[None]:
    """Marks before and after each kernel, from outside."""
    build = LowRankBuilder.kernel

    def timed(builder: LowRankBuilder, block: Block | None = None) -> Tensor:
        clock.mark("rows and their tiles")
        square = build(builder, block)
        clock.mark("kernel")
        return square

    LowRankBuilder.kernel = timed  # type: ignore[method-assign]  # to time one part of a fit
    try:
        yield
    finally:
        LowRankBuilder.kernel = build  # type: ignore[method-assign]  # as it was


def fit_in_float64(model: ResNet20, data: list[tuple[Tensor, Tensor]]) -> tuple[ssse.Curvature, dict[str, float]]:
    """The public fit, with the time of its parts."""
    clock = Clock()
    with timed_kernel(clock):
        curvature = ssse.Curvature.fit(
            model,
            "cross_entropy",
            data,
            damping=DAMPING,
            weight_decay=DECAY,
            rows="empirical",
            structure=ssse.LowRank(kernel="float64"),
            memory_budget="125GiB",
            progress=False,
        )
    clock.mark("factor and checks")
    return curvature, clock.seconds


def held_again(curvature: ssse.Curvature, split: bool) -> tuple[ssse.Curvature, dict[str, float]]:
    """The same rows with a float32 kernel, with the checks that a fit makes."""
    structure, clock = curvature.structure, Clock()
    assert isinstance(structure, LowRankStructure)
    builder = LowRankBuilder(structure.salt, split=split)
    builder.parts = list(structure.rows.parts)
    with timed_kernel(clock):
        found = builder.build(structure.ridge)
    assert curvature.gradient is not None
    found.solve_error(curvature.gradient)
    clock.mark("factor and checks")
    return replace(curvature, structure=found), clock.seconds


def measured(curvature: ssse.Curvature, seconds: dict[str, float], true: Tensor, some: Tensor) -> Held:
    structure, gradient = curvature.structure, curvature.gradient
    assert isinstance(structure, LowRankStructure)
    assert gradient is not None
    wrong = (structure.grams[0].square[some[:, None], some].double() - true).tril()
    lengths = true.diagonal().sqrt()
    return Held(
        curvature,
        seconds["kernel"],
        seconds["factor and checks"],
        float(wrong.norm() / true.tril().norm()),
        float((wrong / torch.outer(lengths, lengths)).abs().max()),
        structure.solve_error(gradient)[0],
    )


def images(folder: Path) -> tuple[Tensor, Tensor, str]:
    try:
        source = find(folder)
    except MissingData:
        if not torch.cuda.is_available():
            raise
        generator = torch.Generator(device="cuda").manual_seed(0)
        x = torch.randn(TRAIN, 3, 32, 32, device="cuda", generator=generator)
        return x, torch.randint(0, 10, (TRAIN,), device="cuda", generator=generator), "images are noise"
    x, y = load(source, [f"data_batch_{i}" for i in range(1, 6)])
    return x[:TRAIN], y[:TRAIN], "images of CIFAR-10"


def main(folder: Path) -> None:
    x, y, what = images(folder)
    name = torch.cuda.get_device_name()
    report = Report("gpu_dual", "ResNet-20, 45,000 × 269,722, exact dual form, float32 rows", machine=f"one {name}")
    torch.backends.cudnn.allow_tf32 = False  # rows in full float32
    clock = Clock()
    model = train(x, y, EPOCHS)
    clock.mark("training")
    rows = rows_against_backward(model, x[:1024], y[:1024])
    finest, seconds = fit_in_float64(model, list(zip(x.split(2000), y.split(2000), strict=True)))
    before = seconds["rows and their tiles"]

    assert isinstance(finest.structure, LowRankStructure)
    some = torch.randperm(TRAIN, generator=torch.Generator().manual_seed(0))[:COMPARED].sort().values.cuda()
    exact = finest.structure.rows.select(some).matrix().double()
    true = exact @ exact.mT
    del exact
    kernels, asked = {"float64": measured(finest, seconds, true, some)}, {}
    asked["float64"] = request(model, finest, x, y, SHARES[1])
    for kernel in ("split", "rows"):
        held = measured(*held_again(finest, kernel == "split"), true, some)
        kernels[kernel] = held
        asked[kernel] = request(model, held.curvature, x, y, SHARES[1])
    requests = [request(model, kernels["split"].curvature, x, y, share) for share in SHARES]
    peak = torch.cuda.max_memory_allocated() / 2**30

    whole = {name: before + held.kernel + held.factor for name, held in kernels.items()}
    report.table(
        "Fit, seconds, by the precision of the kernel",
        ("kernel=", "rows and their tiles", "kernel", "factor and checks", "whole fit"),
        [(name, before, held.kernel, held.factor, whole[name]) for name, held in kernels.items()],
    )
    report.table(
        f"Errors: of the kernel's entries between {COMPARED} rows, against float64; of a solution; of a request",
        ("kernel=", "relative, Frobenius", "largest, of √(KᵢᵢKⱼⱼ)", "solution", "residual of the request"),
        [(n, h.of_entries, h.largest, h.of_solution, asked[n]["residual"]) for n, h in kernels.items()],
    )
    columns = ("k", "seconds", "largest leverage", "step norm", "residual", "accuracy on S, %", "on all data, %")
    keys = ("k", "seconds", "leverage", "step", "residual", "forgotten", "all")
    report.table(
        "Requests, samples of class 0, scale 0.1, split kernel", columns, [[r[key] for key in keys] for r in requests]
    )
    report.table(
        "Rows of 1,024 samples",
        ("what", "seconds"),
        [("rows", rows["rows"]), ("forward and backward", rows["backward"]), ("ratio", rows["ratio"])],
    )
    assert finest.gradient is not None
    report.notes += [
        f"{what[0].upper()}{what[1:]}, {EPOCHS} epochs in {clock.seconds['training']:.0f} s: accuracy "
        f"{accuracy(model, x, y):.2f} % on the training data; ‖∇L‖ = {float(finest.gradient.norm()):.3f}. What is "
        "timed does not depend on them.",
        f"Peak memory {peak:.1f} GiB, with two kernels. What a step does to the network is not judged here.",
    ]
    report.at_most("split fit: rows, kernel and factor", whole["split"], 15, " s")
    report.at_most("split kernel: relative error of its entries", kernels["split"].largest, 1e-3)
    report.at_most("slowest leave-k-out request", max(r["seconds"] for r in requests), 3, " s")
    report.numbers = {
        "kernels": {n: {k: v for k, v in vars(h).items() if k != "curvature"} for n, h in kernels.items()},
        "requests": requests,
        "asked": asked,
        "rows": rows,
        "rows and their tiles": before,
        "peak GiB": peak,
    }
    report.finish()


def request(model: ResNet20, curvature: ssse.Curvature, x: Tensor, y: Tensor, share: float) -> dict[str, float]:
    """Forget a share of class 0, one sample at least; NaN where the step is refused."""
    members = (y == 0).nonzero()[:, 0]
    chosen = members[: max(1, round(share * len(members)))]
    clock, nothing = Clock(), float("nan")
    # By force: what the step does to the network is shown, not judged.
    try:
        erasure = ssse.erase(
            model, curvature, "cross_entropy", [(x[chosen], y[chosen])], scale=0.1, override=ssse.BOUNDS
        )
    except SSSEError as refused:
        print(f"Refused, k = {len(chosen)}: {refused}")
        clock.mark("request")
        keys = ("leverage", "step", "residual", "forgotten", "all")
        return {"k": len(chosen), "seconds": clock.seconds["request"]} | dict.fromkeys(keys, nothing)
    clock.mark("request")
    found = erasure.diagnostics
    return {
        "k": len(chosen),
        "seconds": clock.seconds["request"],
        "leverage": found.leverage_max or nothing,
        "step": found.step_norm or nothing,
        "residual": nothing if found.solve_residual is None else found.solve_residual,
        "forgotten": accuracy(erasure.model, x[chosen], y[chosen]),
        "all": accuracy(erasure.model, x, y),
    }


if __name__ == "__main__":
    run_alone(main, __doc__)
