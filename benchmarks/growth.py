"""How the cost of dense blocks grows with the samples n, the block size B and the parameters d.

                fit                          solve
    n           n·d·B + d·B²/3               –           (one number in n: the factor is all that is left)
    B (d = B)   n·B² + B³/3                  2·B²
    d           (n·B + B²/3)·d               2·B·d

Drawn beside the measured points: those laws, scaled to the last point. A solve of a small block is
all overhead, some tens of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

import ssse
from record import RESULTS, Report, best_of, run_alone

DAMPING, ROUNDS, SOLVES = 1e-4, 8, 5


@dataclass(frozen=True)
class Sweep:
    """One quantity varied. size(v) → (n, B, outputs); d = B · outputs."""

    symbol: str
    values: tuple[int, ...]
    size: Callable[[int], tuple[int, int, int]]
    fixed: str


SWEEPS = (
    Sweep("n", (2048, 4096, 8192, 16384, 32768), lambda n: (n, 1024, 1), "B = d = 1,024"),
    Sweep("B", (256, 512, 1024, 2048, 4096), lambda b: (8192, b, 1), "n = 8,192, d = B"),
    Sweep("d", (1024, 2048, 4096, 8192, 16384, 32768), lambda d: (4096, 1024, d // 1024), "n = 4,096, B = 1,024"),
)


def main(_: Path) -> None:
    report = Report("growth", "How the cost of dense blocks grows")
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6.2), layout="constrained")
    numbers: dict[str, dict] = {}
    seconds_at = timed({sweep.size(value) for sweep in SWEEPS for value in sweep.values})
    for column, sweep in enumerate(SWEEPS):
        sizes = [sweep.size(value) for value in sweep.values]
        fits, solves = zip(*(seconds_at[size] for size in sizes), strict=True)
        laws = [n * b * b * c + b**3 / 3 * c for n, b, c in sizes], [2.0 * b * b * c for _, b, c in sizes]
        for row, (seconds, law) in enumerate(zip((fits, solves), laws, strict=True)):
            draw(axes[row][column], sweep, seconds, law, ("fit", "solve")[row])
        numbers[sweep.symbol] = {"values": sweep.values, "fit": fits, "solve": solves, "fixed": sweep.fixed}
        shares = [[value / law[-1] for value in law] for law in laws]
        rows = [
            (f"{v:,}", f, 1e3 * s, *share) for v, f, s, *share in zip(sweep.values, fits, solves, *shares, strict=True)
        ]
        headers = (sweep.symbol, "fit s", "solve ms", "law of fit", "law of solve")
        report.table(f"{sweep.symbol} grows, {sweep.fixed}", headers, rows)
    figure.suptitle("Dense blocks, float32: measured seconds and the law they should follow", fontsize=12)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "growth.svg")
    plt.close(figure)
    report.notes.append("Laws are relative to the last row of each table.")
    report.numbers = numbers
    report.finish()


Size = tuple[int, int, int]


def timed(sizes: set[Size]) -> dict[Size, tuple[float, float]]:
    """Seconds of the fit and of one solve at every size, all sizes in turn, of each the best round."""
    functions = {}
    for size in sorted(sizes):
        functions[f"fit {size}"], functions[f"solve {size}"] = prepared(*size)
    best = best_of(ROUNDS, **functions)
    return {size: (best[f"fit {size}"], best[f"solve {size}"] / SOLVES) for size in sizes}


def prepared(n: int, size: int, outputs: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The fit, and several solves, as functions to be timed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, size, generator=generator) * (3 / size**0.5)
    y = (torch.rand(n, outputs, generator=generator) < 0.5).float()
    model = torch.nn.Linear(size, outputs, bias=False).eval()
    data = list(zip(x.split(1024), y.split(1024), strict=True))

    def fit() -> ssse.Curvature:
        return ssse.Curvature.fit(
            model, "binary_cross_entropy", data, damping=DAMPING, rows="empirical", structure="dense", blocks="output"
        )

    curvature = fit()
    v = torch.randn(size * outputs, generator=generator)
    return fit, lambda: [curvature.solve(v) for _ in range(SOLVES)]


def draw(axes: Axes, sweep: Sweep, seconds: tuple[float, ...], law: list[float], what: str) -> None:
    expected = [value * seconds[-1] / law[-1] for value in law]
    axes.loglog(sweep.values, expected, color="#9aa0a6", linewidth=1.4, linestyle="--", label=exponent(sweep, what))
    axes.loglog(sweep.values, seconds, color="#1f5fa8", marker="o", markersize=5, linewidth=1.6, label="measured")
    low, high = min(*seconds, *expected), max(*seconds, *expected)
    middle, span = (low * high) ** 0.5, max(high / low * 4, 100)  # two decades at least, room for the legend
    axes.set_ylim(middle / span**0.5, middle * span**0.5)
    axes.set_title(f"{what} against {sweep.symbol}", fontsize=11)
    axes.set_xlabel(f"{sweep.symbol}   ({sweep.fixed})", fontsize=9)
    axes.set_ylabel("seconds")
    axes.xaxis.set_major_locator(FixedLocator(sweep.values[::2] if len(sweep.values) > 5 else sweep.values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{int(v):,}"))
    axes.grid(True, which="major", color="#e3e5e8", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def exponent(sweep: Sweep, what: str) -> str:
    """The law in words."""
    laws = {
        ("n", "fit"): "∝ n + B/3",
        ("n", "solve"): "does not grow with n",
        ("B", "fit"): "∝ nB² + B³/3",
        ("B", "solve"): "∝ B²",
    }
    return laws.get((sweep.symbol, what), "∝ d")


if __name__ == "__main__":
    run_alone(main, __doc__)
