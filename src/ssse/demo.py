"""The whole story on data that comes with scikit-learn: train, fit once, forget twice, compare.

python -m ssse.demo [PAGE]        PAGE: where to write the same as a page, out/demo.html if not given
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import ssse

T = TypeVar("T")
WEIGHT_DECAY = 1e-3
SPLITS = ("D∖S", "S", "T∖T_a", "T_a")


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


def theta(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@torch.no_grad()
def accuracies(model: nn.Module, digits: Digits, keep: Tensor, forget: Tensor, digit: int) -> list[float]:
    """Per cent right on the four splits of the paper."""
    of_class = digits.test_y == digit
    splits = (
        (digits.x[keep], digits.y[keep]),
        (digits.x[forget], digits.y[forget]),
        (digits.test_x[~of_class], digits.test_y[~of_class]),
        (digits.test_x[of_class], digits.test_y[of_class]),
    )
    return [100 * float(model(x).argmax(1).eq(y).double().mean()) for x, y in splits]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


@dataclass(frozen=True)
class Request:
    digit: int
    fraction: float
    words: str


REQUESTS = (Request(3, 0.5, "half of the threes"), Request(8, 0.1, "a tenth of the eights, after that"))

MEANING = (
    "D∖S: training samples that stay; S: those to forget; T_a: test samples of their class; T∖T_a: the other test "
    "samples.",
    "Distance: ‖θ − θ_retrained‖, over that of the original model: 1 is nothing erased, 0 is retrained.",
    "Each erasure is one closed-form step that saw only the curvature and the samples to forget; retraining saw all "
    "the data that stays. The second request went on from the first one's model and curvature.",
)


def main(page: Path) -> None:
    console = Console(record=True, width=100, highlight=False)
    digits = Digits.load()
    n = len(digits.y)
    console.print(f"Softmax regression on {n} images of digits, {len(digits.test_y)} held out.\n")
    original, training = timed(lambda: train(digits.x, digits.y))
    data = [(digits.x, digits.y)]
    curvature, fitting = timed(lambda: ssse.Curvature.fit(original, "cross_entropy", data, weight_decay=WEIGHT_DECAY))
    console.print(f"{curvature}\n{curvature.notes[0]}")
    console.print(f"Trained in {training:.2f} s; curvature in {fitting:.2f} s, once. No training data from here on.\n")
    model, keep, spent = original, torch.ones(n, dtype=torch.bool), training
    for request in REQUESTS:
        erasure, spent = answer(console, digits, request, original, model, spent, curvature, keep)
        model, curvature = erasure.model, erasure.curvature
    console.print("\n".join(MEANING))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(console.export_html(clear=False))
    console.print(f"\nThe same as a page: {page}")


def answer(
    console: Console,
    digits: Digits,
    request: Request,
    original: nn.Module,
    before: nn.Module,
    spent: float,
    curvature: ssse.Curvature,
    keep: Tensor,
) -> tuple[ssse.Erasure, float]:
    """Erase, retrain for comparison, and print both; `keep` loses the forgotten samples.

    `spent` is how long the model before this request took; returned is how long the erased one took.
    """
    forget = digits.members(request.digit, request.fraction)
    total = int(keep.sum())
    keep[forget] = False
    batch = [(digits.x[forget], digits.y[forget])]
    erasure, erasing = timed(lambda: ssse.erase(before, curvature, "cross_entropy", batch))
    retrained, retraining = timed(lambda: train(digits.x[keep], digits.y[keep]))
    title = f"Forget {request.words}: {len(forget)} of {total} samples"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("model", *(f"{split} %" for split in SPLITS), "distance", "seconds"):
        table.add_column(name, justify="left" if name == "model" else "right")
    name = "original" if before is original else "before this request"
    reach = (theta(original) - theta(retrained)).norm()
    found = []
    for label, model, seconds in (
        (name, before, spent),
        ("erased", erasure.model, erasing),
        ("retrained", retrained, retraining),
    ):
        found.append(accuracies(model, digits, keep, forget, request.digit))
        distance = float((theta(model) - theta(retrained)).norm() / reach)
        table.add_row(label, *(f"{value:.2f}" for value in found[-1]), f"{distance:.3f}", f"{seconds:.3f}")
    console.print(table)
    gaps = [sum(abs(a - b) for a, b in zip(row, found[2], strict=True)) / len(SPLITS) for row in found[:2]]
    console.print(
        f"Mean gap to the retrained model over the four splits: {gaps[0]:.2f} points before, {gaps[1]:.2f} after. "
        f"Verdict: {erasure.diagnostics.verdict}. Largest leverage {erasure.diagnostics.leverage_max:.2f}.\n"
    )
    return erasure, erasing


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out/demo.html"))
