"""40 logistic attributes over 4,096 features, n = 16,277: fit once, then 100 samples forgotten from the disk.

The size of the paper's CelebA experiment. The attributes do not interact, so 40 blocks of 4,096 are exact.
Fit: 40 (nB² + B³/3) = 1.2e13 operations. Artefact: 40 B² numbers = 2.7 GB; factor and Gram matrix share a square.
Request: read and digest those 2.7 GB, then one triangular solve of B × 101 for every block, 40·101·B² = 7e10.

The opponent is retraining without the 100 samples. As the paper does it, by SGD with momentum at a fixed rate, for a
hundred times as long as the request takes. By scikit-learn, one attribute after another (three of them, scaled up).
By L-BFGS over all attributes at once and by the best method we found (`logistic.py`), from zero and from the old
weights, until ‖∇L‖ ≤ 1e-4, where the distance to the minimum is about that of the erased model. Distance is
‖θ̂ − θ₋S‖/‖θ* − θ₋S‖; θ₋S is trained to ‖∇L‖ ≤ 3e-6.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from features import Faces, faces
from logistic import Trained, train_lbfgs, train_newton, train_sgd, train_sklearn
from multi_attribute_steps import DECAY
from record import Report, run_alone, seconds_of

FORGET, SEED = 100, 1
STOP, CONVERGED = 1e-4, 3e-6
ROUNDS = 2
ATTRIBUTES = (15, 20, 35)
PAPERS_WAY = "SGD as in the paper, stopped after 105 × the request"


def main(folder: Path) -> None:
    report = Report("multi_attribute", "40 attributes × 4,096 features, n = 16,277, float32")
    data = faces(folder)
    zero = torch.zeros(data.y.shape[1], data.x.shape[1])
    original = train_newton(data.x, data.y, DECAY, zero, CONVERGED)
    forget = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(SEED))[:FORGET]
    keep = torch.ones(len(data.x), dtype=torch.bool)
    keep[forget] = False
    x, y, old = data.x[keep], data.y[keep], original.weights
    opponents = {
        "L-BFGS, from zero": lambda: train_lbfgs(x, y, DECAY, zero, STOP),
        "L-BFGS, from the old weights": lambda: train_lbfgs(x, y, DECAY, old, STOP),
        "Newton, from zero": lambda: train_newton(x, y, DECAY, zero, STOP),
        "Newton, from the old weights": lambda: train_newton(x, y, DECAY, old, STOP),
    }
    stored = {"x": data.x, "y": data.y, "weights": old, "forget": data.x[forget], "labels": data.y[forget]}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for key, tensor in stored.items():
            np.save(scratch / f"{key}.npy", tensor.numpy())
        measured = {rows: run_step("fit", scratch, rows) for rows in ("expected", "empirical")}
        retrained: dict[str, Trained] = {}
        for _ in range(ROUNDS):  # both sides in turn, of each the best round
            for rows, found in measured.items():
                request = run_step("request", scratch, rows)
                if request["request_seconds"] < found.get("request_seconds", torch.inf):
                    found |= request
            for key, train in opponents.items():
                again = train()
                if key not in retrained or again.seconds < retrained[key].seconds:
                    retrained[key] = again
        for rows, found in measured.items():
            found["step"] = torch.from_numpy(np.load(scratch / f"{rows}-step.npy")).view_as(old)
    truth = train_newton(x, y, DECAY, old, CONVERGED).weights
    # scikit-learn's distance is that of its three attributes: the others are taken as they should be.
    retrained["scikit-learn, from zero"] = train_sklearn(x, y, DECAY, truth, ATTRIBUTES)
    limit = 105 * measured["expected"]["request_seconds"]
    retrained[PAPERS_WAY] = train_sgd(x, y, DECAY, zero, limit)
    tell(report, data, original, measured, retrained, truth)


def run_step(step: str, scratch: Path, rows: str) -> dict:
    script = Path(__file__).with_name("multi_attribute_steps.py")
    command = [sys.executable, str(script), step, str(scratch), rows]
    seconds, done = seconds_of(lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True))
    return {**json.loads(done.stdout.splitlines()[-1]), "process_seconds": seconds}


def tell(
    report: Report, data: Faces, original: Trained, measured: dict, opponents: dict[str, Trained], truth: Tensor
) -> None:
    def distance(weights: Tensor) -> float:
        return float((weights - truth).norm() / (original.weights - truth).norm())

    for found in measured.values():
        found["added_bytes"] = found["peak_bytes"] - found["before_bytes"]
        found["distance"] = distance(original.weights + found.pop("step"))
    gib = 2**30
    report.table(
        "Fit and request",
        ("rows", *measured),
        [
            ("fit, s", *(m["fit_seconds"] for m in measured.values())),
            ("save, s", *(m["save_seconds"] for m in measured.values())),
            ("artefact on disk, GiB", *(m["artefact_bytes"] / gib for m in measured.values())),
            ("memory added by the fit, GiB", *(m["added_bytes"] / gib for m in measured.values())),
            ("memory before (Python, torch, data), GiB", *(m["before_bytes"] / gib for m in measured.values())),
            (f"request of {FORGET}: load and verify, s", *(m["load_seconds"] for m in measured.values())),
            (f"request of {FORGET}: erase, s", *(m["erase_seconds"] for m in measured.values())),
            ("whole process of the request, s", *(m["process_seconds"] for m in measured.values())),
            ("distance to the retrained model", *(m["distance"] for m in measured.values())),
        ],
    )
    request = measured["expected"]["request_seconds"]
    erase = measured["expected"]["erase_seconds"]
    report.table(
        "Retraining without the 100 samples",
        ("method", "seconds", "passes", "‖∇L‖", "distance", "× request", "× erase alone"),
        [
            (name, t.seconds, t.passes, t.gradient_norm, distance(t.weights), t.seconds / request, t.seconds / erase)
            for name, t in opponents.items()
        ],
    )
    accuracy = float(((data.test_x @ original.weights.mT > 0) == (data.test_y > 0.5)).float().mean() * 100)
    setup = opponents["Newton, from zero"].setup_seconds
    report.notes += [
        f"Data: {data.source}. Test accuracy {accuracy:.1f} %. ‖∇L(θ*)‖ = {original.gradient_norm:.0e}.",
        f"Requests and retraining in turn, the best of {ROUNDS}; every request in a fresh process, the artefact in the "
        "page cache of the system.",
        "Against solvers made for this problem the request is not a hundred times faster; the table says by how much.",
        f"Newton's seconds contain {setup:.1f} s for the preconditioner, which could be kept between requests.",
    ]
    worst = max(m["added_bytes"] / m["artefact_bytes"] for m in measured.values())
    report.at_most("slower fit", max(m["fit_seconds"] for m in measured.values()) / 60, 10, " min")
    report.at_most("memory added by the fit, against the artefact", worst, 2, "×")
    report.at_most("request from the disk, expected rows", request, 10, " s")
    for name, t in opponents.items():
        if name != PAPERS_WAY:
            report.at_least(f"request faster than retraining: {name}", t.seconds / request, 100, "×")
    behind = distance(opponents[PAPERS_WAY].weights) / measured["expected"]["distance"]
    report.at_least(
        "SGD as in the paper, after 105 × the request: its distance over the erased model's", behind, 1, "×"
    )
    report.numbers = {"measured": measured, "retraining": {name: t.seconds for name, t in opponents.items()}}
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
