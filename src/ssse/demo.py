"""The whole story on data that comes with scikit-learn: train, fit once, forget twice, compare.

python -m ssse.demo [PAGE]        PAGE: where to write the same as a page, out/demo.html if not given
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import ssse

T = TypeVar("T")
WEIGHT_DECAY = 1e-3
LOSS = "cross_entropy"


@dataclass(frozen=True)
class Digits:
    """8×8 images of digits, a fifth of them held out (seed 0)."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls) -> Digits:
        x, y = load_digits(return_X_y=True)
        parts = train_test_split(x / 16.0, y, test_size=0.2, random_state=0, stratify=y)
        train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
        return cls(train_x, train_y, test_x, test_y)

    def members(self, digit: int, fraction: float) -> Tensor:
        """The first part of a digit's training samples."""
        members = (self.y == digit).nonzero()[:, 0]
        return members[: round(fraction * len(members))]

    def splits(self, gone: Tensor, forget: Tensor, digit: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """The paper's four: what stays, what this request forgets, and the test samples of other digits and of this."""
        keep, same = torch.ones(len(self.y), dtype=torch.bool), self.test_y == digit
        keep[gone] = False
        return {
            "retained": [(self.x[keep], self.y[keep])],
            "forgotten": [(self.x[forget], self.y[forget])],
            "test_other": [(self.test_x[~same], self.test_y[~same])],
            "test_same": [(self.test_x[same], self.test_y[same])],
        }


def train(x: Tensor, y: Tensor) -> nn.Linear:
    """Softmax regression: minimise (1/n) Σ ℓᵢ + (w/2)‖θ‖² to stationarity."""
    model = nn.Linear(64, 10).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=2000, history_size=20, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        penalty = sum((p * p).sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y) + WEIGHT_DECAY / 2 * penalty
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


@dataclass(frozen=True)
class Request:
    digit: int
    fraction: float
    words: str


REQUESTS = (Request(3, 0.5, "half of the threes"), Request(4, 0.1, "a tenth of the fours, after that"))

MEANING = (
    "D∖S: training samples that stay; S: those to forget; T_a: test samples of their class; T∖T_a: the other test "
    "samples.",
    "Each erasure is one closed-form step that saw only the curvature and the samples to forget; retraining saw all "
    "the data that stays. The second request went on from the first one's model and curvature.",
    "An audit asks whether confidence tells S from held-out samples of the same digits; a model that never saw S "
    "passes with probability 95 %. Training here is convex and exact, so there is one retrained model and no noise.",
)


def main(page: Path) -> None:
    console = Console(record=True, width=100, highlight=False)
    digits = Digits.load()
    n = len(digits.y)
    console.print(f"Softmax regression on {n} images of digits, {len(digits.test_y)} held out.\n")
    original, training = timed(lambda: train(digits.x, digits.y))
    data = [(digits.x, digits.y)]
    curvature, fitting = timed(lambda: ssse.Curvature.fit(original, LOSS, data, weight_decay=WEIGHT_DECAY))
    console.print(f"{curvature}\n{curvature.notes[0]}")
    console.print(f"Trained in {training:.2f} s; curvature in {fitting:.2f} s, once. No training data from here on.\n")
    model, gone, figures = original, torch.empty(0, dtype=torch.long), []
    for request in REQUESTS:
        gone = torch.cat([gone, digits.members(request.digit, request.fraction)])
        erasure, evaluation = answer(console, digits, request, original, model, curvature, gone)
        model, curvature = erasure.model, erasure.curvature
        figures.append((f"Forget {request.words}", evaluation.figure()))
    title = (
        "Half of the threes with the paper's empirical rows, at every scale ε: the curve that calibration decides from"
    )
    figures.append((title, scanned(digits)))
    console.print("\n".join(MEANING))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(with_figures(console.export_html(clear=False), figures))
    console.print(f"\nThe same as a page, with figures: {page}")


def answer(
    console: Console,
    digits: Digits,
    request: Request,
    original: nn.Module,
    before: nn.Module,
    curvature: ssse.Curvature,
    gone: Tensor,
) -> tuple[ssse.Erasure, ssse.Evaluation]:
    """Erase, retrain for comparison, and print both; `gone` are all samples forgotten so far, these among them."""
    forget = digits.members(request.digit, request.fraction)
    keep = torch.ones(len(digits.y), dtype=torch.bool)
    keep[gone] = False
    batch = [(digits.x[forget], digits.y[forget])]
    erasure, erasing = timed(lambda: ssse.erase(before, curvature, LOSS, batch))
    retrained, retraining = timed(lambda: train(digits.x[keep], digits.y[keep]))
    console.print(
        f"[bold]Forget {request.words}: {len(forget)} of {len(digits.y) - len(gone) + len(forget)} samples[/]"
    )
    models: dict[str, nn.Module] = {"original": original}
    if before is not original:
        models["before"] = before
    models |= {"erased": erasure.model, "retrained": retrained}
    evaluation = ssse.evaluate(
        models, digits.splits(gone, forget, request.digit), loss_fn=LOSS, weight_decay=WEIGHT_DECAY
    )
    console.print(evaluation)
    console.print(
        f"Erased in {erasing:.3f} s, retrained in {retraining:.3f} s. Verdict: {erasure.diagnostics.verdict}. Largest "
        f"leverage {erasure.diagnostics.leverage_max:.2f}.\n"
    )
    return erasure, evaluation


def scanned(digits: Digits) -> Figure:
    """The first request once more, as if ε had to be chosen: by the paper's way, from one retrained model."""
    forget = digits.members(REQUESTS[0].digit, REQUESTS[0].fraction)
    keep = torch.ones(len(digits.y), dtype=torch.bool)
    keep[forget] = False
    model = train(digits.x, digits.y)
    curvature = ssse.Curvature.fit(model, LOSS, [(digits.x, digits.y)], weight_decay=WEIGHT_DECAY, rows="empirical")
    retrained = train(digits.x[keep], digits.y[keep])
    batch = [(digits.x[forget], digits.y[forget])]
    return ssse.calibrate(model, curvature, LOSS, batch, retrained=retrained, leave_out=False).figure()


def with_figures(html: str, figures: list[tuple[str, Figure]]) -> str:
    parts = []
    for title, figure in figures:
        svg = StringIO()
        figure.savefig(svg, format="svg")
        parts.append(f"<h3>{title}</h3>\n{svg.getvalue()[svg.getvalue().index('<svg') :]}")
    return html.replace("</body>", "\n".join(parts) + "\n</body>")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out/demo.html"))
