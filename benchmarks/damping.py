"""What the damping (n−k)λ costs: a leave-k-out step against the same step with the damping nλ of the stored factor.

One dense block of B parameters in float64, n = 20,000 samples of which k leave. `before`: leaving the rows out with nλ.
`now`: the same and then conjugate gradients to (n−k)λ, each step one solve with the factor. `factor`: a new factor,
which is what (n−k)λ would cost otherwise. `choice` is the library's: iterate, or factorise anew where that is cheaper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from record import Report, best_of, run_alone
from ssse.curvature.dense import DenseStructure
from ssse.curvature.gram import DampedGram
from ssse.curvature.lowered import steps_to_lower, worth_iterating
from ssse.problem.parameters import Block
from ssse.rows.held import ExplicitRows

SIZES, LEAVING, SAMPLES, DAMPING = (2048, 4096), (1, 10, 100, 1000), 20_000, 1e-3
COLUMNS = ("B", "k", "choice", "steps foretold", "before", "now", "factor", "now / before", "now / factor", "residual")


def main(folder: Path) -> None:
    report = Report("damping", "The damping of what remains: (n−k)λ against nλ")
    rows = []
    for size in SIZES:
        x = torch.randn(SAMPLES, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        square, ridge = x.mT @ x, SAMPLES * DAMPING
        gram = DampedGram.factorise(square.clone(), ridge, "all")
        structure = DenseStructure([Block("all", ((0, size),))], [gram], ridge)
        rows += [measure(structure, square, x[:k]) for k in LEAVING]
    report.table("Seconds of a step", COLUMNS, [list(row.values()) for row in rows])
    few = max(row["now / factor"] for row in rows if row["k"] <= 100)
    many = max(row["now / before"] for row in rows if row["k"] >= 100)
    report.at_most("step with (n−k)λ against a new factor, k up to 100", few, 0.5, "×")
    report.at_most("step with (n−k)λ against the same with nλ, k from 100", many, 2, "×")
    report.numbers = {"rows": rows}
    report.finish()


def measure(structure: DenseStructure, square: Tensor, gone: Tensor) -> dict[str, Any]:
    size, k = square.shape[0], len(gone)
    v = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaving, ridge = ExplicitRows(gone), (SAMPLES - k) * DAMPING
    steps = steps_to_lower(structure.ridge, ridge, v.dtype)
    seconds = best_of(
        5 if k < 1000 else 2,
        before=lambda: structure.leave_out(leaving, v, structure.ridge),
        now=lambda: structure.leave_out(leaving, v, ridge),
        factor=lambda: DampedGram.factorise(square - gone.mT @ gone, ridge, "all"),
    )
    found = structure.leave_out(leaving, v, ridge).solution
    residual = v - square @ found + gone.mT @ (gone @ found) - ridge * found
    choice = "iterate" if worth_iterating(steps, size) else "factorise"
    ratios = (seconds["now"] / seconds["before"], seconds["now"] / seconds["factor"])
    return dict(
        zip(
            COLUMNS,
            (size, k, choice, steps, *seconds.values(), *ratios, float(residual.norm() / v.norm())),
            strict=True,
        )
    )


if __name__ == "__main__":
    run_alone(main, __doc__)
