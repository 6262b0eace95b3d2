"""The evidence at full size: ResNet-20 on CIFAR-10, 45,000 training and 10,000 test samples, on one GPU.

One class is forgotten: by SSSE on the last layer, with ε from the paper's way, and by one step of gradient ascent on
all parameters. Both are scanned over 50 values of ε, and put into one table with two retrained seeds and their noise
floor.

    python benchmarks/gpu_evidence.py --data DIR      DIR holds cifar-10-batches-bin
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import ssse
from cifar import DECAY, EPOCHS, TRAIN, Clock, find, load, train
from record import Report, run_alone
from resnet import ResNet20
from ssse import baselines
from ssse.evaluation.table import Cell

FORGOTTEN, BATCH, LOSS = 0, 2000, "cross_entropy"
SCALES = np.geomspace(1e-2, 1e2, 50)


def main(folder: Path) -> None:
    source = find(folder)
    name = torch.cuda.get_device_name()
    report = Report("gpu_evidence", "Scans and the table at full size, ResNet-20", machine=f"one {name}")
    x, y = load(source, [f"data_batch_{i}" for i in range(1, 6)])
    x, y = x[:TRAIN], y[:TRAIN]
    test_x, test_y = load(source, ["test_batch"])
    gone, same = y == FORGOTTEN, test_y == FORGOTTEN
    splits = {
        "retained": batches(x[~gone], y[~gone]),
        "forgotten": batches(x[gone], y[gone]),
        "test_other": batches(test_x[~same], test_y[~same]),
        "test_same": batches(test_x[same], test_y[same]),
    }
    clock = Clock()
    model = train(x, y, EPOCHS)
    retrained = [train(x[~gone], y[~gone], EPOCHS, seed=seed) for seed in (0, 1)]
    clock.mark("training three models")
    passes = plain_passes(model, splits, clock)

    ascent = baselines.gradient_ascent(model, None, LOSS, splits["forgotten"], weight_decay=DECAY)
    assert ascent.direction is not None
    ssse.scan(model, ascent.direction, LOSS, {"forgotten": splits["forgotten"]}, scales=[1.0], retrained=retrained[0])
    clock.mark("gradient ascent, direction, and a first scan that imports what it needs")
    wide = ssse.scan(model, ascent.direction, LOSS, splits, scales=SCALES, retrained=retrained[0], progress=False)
    clock.mark("scan, all parameters")

    curvature = ssse.Curvature.fit(
        model, LOSS, batches(x, y), damping=5e-5, weight_decay=DECAY, parameters="head", rows="expected", progress=False
    )
    clock.mark("curvature of the last layer")
    found = ssse.calibrate(
        model, curvature, LOSS, splits["forgotten"], retrained=retrained[0], scales=SCALES, progress=False
    )
    clock.mark("calibration")
    evidence = {"loss_search": {"data": batches(x, y)}, "attack_parity": {"whole_class": True}}
    without = {
        method: ssse.calibrate(
            model, curvature, LOSS, splits["forgotten"], method=method, scales=SCALES, progress=False, **given
        )
        for method, given in evidence.items()
    }
    clock.mark("calibration without retraining, twice")
    erasure = ssse.erase(
        model, found.curvature, LOSS, splits["forgotten"], override=ssse.BOUNDS
    )  # beside others, good or bad
    clock.mark("erasure")
    names = curvature.layout.names
    narrow = ssse.scan(
        model, erasure.direction, LOSS, splits, scales=SCALES, retrained=retrained[0], parameters=names, progress=False
    )
    clock.mark("scan, last layer")
    assert wide.mean_gap is not None
    best = float(SCALES[np.nanargmin(wide.mean_gap)])
    models = {
        "original": model,
        "SSSE, last layer": erasure.model,
        "gradient ascent": baselines.gradient_ascent(
            model, None, LOSS, splits["forgotten"], scale=best, weight_decay=DECAY
        ).model,
        "retrained": retrained,
    }
    clock.mark("steps")
    table = ssse.evaluate(models, splits, loss_fn=LOSS, weight_decay=DECAY, progress=False)
    clock.mark("evaluation of five models")
    report.notes += [f"ε without retraining: {each}" for each in without.values()]
    write(report, clock, passes, wide, narrow, found, best, table)


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


@torch.no_grad()
def plain_passes(model: ResNet20, splits: dict[str, list[tuple[Tensor, Tensor]]], clock: Clock) -> float:
    """Seconds of one forward pass over the splits, in the batches that the scan gets."""
    parts = [batch for split in splits.values() for batch, _ in split]
    for part in parts[:5]:
        model(part)
    clock.mark("warming up")
    for _ in range(10):
        for part in parts:
            model(part)
    clock.mark("ten forward passes")
    return clock.seconds["ten forward passes"] / 10


def write(
    report: Report,
    clock: Clock,
    passes: float,
    wide: ssse.Scan,
    narrow: ssse.Scan,
    found: ssse.Calibration,
    best: float,
    table: ssse.Evaluation,
) -> None:
    samples = sum(wide.counts.values())
    rows = [
        (what, seen.passes / samples, clock.seconds[f"scan, {what}"], clock.seconds[f"scan, {what}"] / passes)
        for what, seen in (("all parameters", wide), ("last layer", narrow))
    ]
    report.table(
        f"{len(SCALES)} values of ε on {samples:,} samples; one forward pass takes {passes:.2f} s",
        ("scan", "passes of the scanned model", "seconds", "in forward passes"),
        rows,
    )
    for (what, counted, _, ratio), limit in zip(rows, (60, 1.1), strict=True):
        report.at_most(f"passes counted, {what}", counted, limit)
        report.at_most(f"time of the scan, {what}", ratio, 60, " forward passes")
    columns = [*table.models, "noise floor"]
    cells = [
        (m.title, *(shown(table.cells[m.key].get(name)) for name in table.models), shown(floor_of(table, m.key)))
        for m in table.measures
    ]
    report.table(f"Class 0 forgotten, {table.counts['forgotten']:,} samples", ("measure", *columns), cells)
    report.table("Seconds", ("part", "seconds"), list(clock.seconds.items()))
    report.notes += [
        f"SSSE on the last layer: {found}",
        f"Gradient ascent at {best:.3g}, the best mean gap on the grid, so it saw the retrained model at 50 places.",
        *table.flags,
    ]
    report.numbers = {"seconds": clock.seconds, "wide": wide.to_dict(), "narrow": narrow.to_dict()}
    report.numbers["table"] = table.to_dict()
    report.finish()


def floor_of(table: ssse.Evaluation, key: str) -> Cell:
    return Cell(table.floors.get(key))


def shown(cell: Cell | None) -> str:
    if cell is None or cell.value is None:
        return "–"
    spread = "" if cell.spread is None else f" ± {cell.spread:.2g}"
    return f"{cell.value:.4g}{spread} {cell.note}".strip()


if __name__ == "__main__":
    run_alone(main, __doc__)
