"""float32 against float64: the relative error of `solve` and of a whole erasure at B = 4,096, λ = 1e-4.

One attribute of the faces, n = 16,277, g the sum of 100 gradients. To first order rounding enters as
ε·κ(C) with ε = 6e-8 and κ(C) = (λ + ‖RᵀR/n‖)/λ, and the bound is met only if g lies along the smallest
eigenvalues. The truth is the same computed in float64 from the rows on. What the library itself says
about the float32 curvature (`solve_error`, one step of refinement, which needs no float64 twin) stands beside it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import ssse
from features import faces
from logistic import train_newton
from multi_attribute_steps import DECAY, linear
from record import Report, run_alone, seconds_of
from ssse.curvature.dense import DenseStructure
from ssse.rows.kinds import RowChoice

ATTRIBUTE, FORGET = 20, 100  # 20: Male


def main(folder: Path) -> None:
    report = Report("precision", "float32 against float64, B = 4,096, λ = 1e-4")
    data = faces(folder)
    x, y = data.x, data.y[:, ATTRIBUTE : ATTRIBUTE + 1]
    start = torch.zeros(1, x.shape[1])
    weights = train_newton(x, y, DECAY, start, 1e-6).weights
    forget = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:FORGET]

    rows = []
    errors = []
    for kind in ("empirical", "expected"):
        seconds, single = seconds_of(lambda k=kind: fit(x, y, weights, k))
        double_seconds, double = seconds_of(lambda k=kind: fit(x.double(), y.double(), weights.double(), k))
        g = (torch.sigmoid(x[forget].double() @ weights.double().mT) - y[forget]).mT @ x[forget].double()
        g = g[0] + FORGET * DECAY * weights[0].double()
        solved = relative(single.solve(g.float()), double.solve(g))
        steps = [
            ssse.erase(linear(w).to(w.dtype), curvature, "binary_cross_entropy", [(x[forget].to(w.dtype), y[forget])])
            for w, curvature in ((weights, single), (weights.double(), double))
        ]
        assert isinstance(single.structure, DenseStructure)
        own = single.structure.solve_error(g.float())[0]
        top = largest_eigenvalue(double)
        condition = top / DECAY
        errors.append(solved)
        step_error = relative(steps[0].direction, steps[1].direction)
        rows.append((kind, condition, solved, own, step_error, seconds, double_seconds))

    report.table(
        "Relative errors",
        ("rows", "κ(C)", "solve", "as measured by itself", "erasure, leave-out", "fit float32 s", "fit float64 s"),
        rows,
    )
    report.notes.append(f"Data: {data.source}, attribute {ATTRIBUTE}.")
    report.at_most("relative error of solve in float32", max(errors), 1e-3)
    report.numbers = {"errors": errors, "conditions": [row[1] for row in rows]}
    report.finish()


def fit(x: Tensor, y: Tensor, weights: Tensor, rows: RowChoice) -> ssse.Curvature:
    model = linear(weights).to(weights.dtype)
    with torch.no_grad():
        model.weight.copy_(weights)
    data = list(zip(x.split(1024), y.split(1024), strict=True))
    return ssse.Curvature.fit(
        model, "binary_cross_entropy", data, weight_decay=DECAY, rows=rows, structure="dense", blocks="one"
    )


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


def largest_eigenvalue(curvature: ssse.Curvature) -> float:
    """Of C, by power iteration on its Gram matrix."""
    structure = curvature.structure
    assert isinstance(structure, DenseStructure)
    lower = structure.grams[0].gram()
    v = torch.ones(len(lower), dtype=lower.dtype)
    value = torch.zeros(())
    for _ in range(30):
        v = v / v.norm()
        v = lower @ v + lower.mT @ v - lower.diagonal() * v
        value = v.norm()
    return float(value) / curvature.n + curvature.damping


if __name__ == "__main__":
    run_alone(main, __doc__)
