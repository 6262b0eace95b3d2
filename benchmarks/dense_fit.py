"""Fit one dense block of 4,096 parameters from 8,192 samples, against the paper's recurrence.

One logistic output over 4,096 features, empirical rows R, float32, through the public `Curvature.fit`.

    recurrence   F⁻¹ ← F⁻¹ − F⁻¹g gᵀF⁻¹ / (n + gᵀF⁻¹g) for every row g: 4nB² operations at the speed of memory
    fit          RᵀR on and below the diagonal, then one Cholesky factor: nB² + B³/3 operations at the speed of
                 arithmetic; checks of the data, of the model and of the precision of the result are part of it

The floor of a fit is half of a full product RᵀR plus one Cholesky factor. A recurrence of n steps takes
minutes to tens of minutes, so a few steps of it are timed and multiplied by n: every step does the same work.
"""

from __future__ import annotations

from pathlib import Path

import torch

import ssse
from record import Report, best_of, run_alone
from ssse.curvature.recurrence import rank_one_update

SAMPLES, SIZE, DAMPING = 8_192, 4_096, 1e-4
STEPS_IN_PLACE, STEPS_PLAIN = 20, 4


def main(_: Path) -> None:
    report = Report("dense_fit", f"Fit of one dense block, B = {SIZE:,}, n = {SAMPLES:,}, float32")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, SIZE, generator=generator) * (3 / SIZE**0.5)
    y = (torch.rand(SAMPLES, generator=generator) < 0.5).float()
    model = torch.nn.Linear(SIZE, 1, bias=False).eval()
    data = list(zip(x.split(1024), y.split(1024), strict=True))
    rows = (torch.sigmoid(model(x).detach()) - y[:, None]) * x

    def fit() -> ssse.Curvature:
        return ssse.Curvature.fit(
            model, "binary_cross_entropy", data, damping=DAMPING, rows="empirical", structure="dense", blocks="one"
        )

    def product() -> torch.Tensor:
        return rows.mT @ rows

    def product_and_factor() -> torch.Tensor:
        square = product()
        square.diagonal().add_(SAMPLES * DAMPING)
        return torch.linalg.cholesky(square)

    inverse = torch.eye(SIZE) / DAMPING

    def in_place() -> None:
        for g in rows[:STEPS_IN_PLACE]:
            rank_one_update(inverse, g, SAMPLES)

    def plainly() -> None:
        f = inverse
        for g in rows[:STEPS_PLAIN]:
            f = f - torch.outer(f @ g, g @ f) / (SAMPLES + g @ f @ g)

    best = best_of(7, fit=fit, product=product, both=product_and_factor, in_place=in_place, plainly=plainly)
    step, plain_step = best["in_place"] / STEPS_IN_PLACE, best["plainly"] / STEPS_PLAIN
    recurrence, plain = step * SAMPLES, plain_step * SAMPLES
    floor = 0.5 * best["product"] + (best["both"] - best["product"])

    report.table(
        "Seconds, best of 7 interleaved rounds",
        ("what", "seconds", "× the fit"),
        [
            ("Curvature.fit", best["fit"], 1.0),
            ("full RᵀR and Cholesky", best["both"], best["both"] / best["fit"]),
            ("of it, RᵀR", best["product"], best["product"] / best["fit"]),
            ("floor: half of RᵀR, and Cholesky", floor, floor / best["fit"]),
            (f"recurrence in place, {step * 1e3:.1f} ms × n", recurrence, recurrence / best["fit"]),
            (f"recurrence as plainly written, {plain_step * 1e3:.0f} ms × n", plain, plain / best["fit"]),
        ],
    )
    report.notes.append(
        f"The recurrence is extrapolated to n steps from {STEPS_IN_PLACE} (in place) and {STEPS_PLAIN} (plain)."
    )
    report.at_least("faster than the recurrence in place", recurrence / best["fit"], 30, "×")
    report.at_least("faster than the recurrence as plainly written", plain / best["fit"], 300, "×")
    report.at_most("time of a full RᵀR and Cholesky", best["fit"] / best["both"], 0.8, "×")
    report.numbers = {**best, "floor": floor}
    report.finish()


if __name__ == "__main__":
    run_alone(main, __doc__)
