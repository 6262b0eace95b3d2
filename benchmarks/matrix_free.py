"""Half a class of 37, forgotten by conjugate gradients over the training data, against retraining.

A softmax layer over 1,280 features with bias, d = 37 × 1,281, weight decay 1e-4, trained to near stationarity.
Its expected Fisher matrix over D∖S is the Hessian; the classes are coupled, so a block per class is an
approximation and `matrix_free` is not. One step of conjugate gradients costs two products with the features,
4npc operations, and one solve with the preconditioner (a block per class), 2cp².

The gap is the mean over four splits (D∖S, S, test without the class, test of the class) of the absolute
difference in accuracy to the retrained model, in points.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ssse
from features import Pets, pets
from record import Report, best_of, run_alone

DECAY, CLASSES = 1e-4, (0, 12, 24)
REPEATS = 5
STOP = 2e-5  # ‖∇L‖ at which training stops


def main(folder: Path) -> None:
    report = Report("matrix_free", "Matrix-free: half a class of 37 × 1,281 parameters")
    data = pets(folder)
    model, norm = train(data.x[data.train], data.y[data.train])
    batches = [(data.x[part], data.y[part]) for part in data.train.split(1024)]
    settings: dict[str, Any] = {"weight_decay": DECAY, "rows": "expected", "progress": False}
    fits: dict[str, Callable[[], ssse.Curvature]] = {
        "matrix_free": lambda: ssse.Curvature.fit(model, "cross_entropy", batches, structure="matrix_free", **settings),
        "dense": lambda: ssse.Curvature.fit(
            model, "cross_entropy", batches, structure="dense", blocks="output", **settings
        ),
    }
    curvatures = {structure: fit() for structure, fit in fits.items()}
    fit_seconds = best_of(REPEATS, **fits)
    rows, gaps, seconds = [], [], []
    for label in CLASSES:
        of_class = data.train[data.y[data.train] == label]
        forget = of_class[: len(of_class) // 2]
        keep = data.train[~torch.isin(data.train, forget)]
        test_label = data.y[data.test]
        splits = (keep, forget, data.test[test_label != label], data.test[test_label == label])
        request = [(data.x[forget], data.y[forget])]
        actions = {
            "retrain": lambda k=keep: train(data.x[k], data.y[k])[0],
            **{
                structure: lambda c=curvature, r=request: ssse.erase(model, c, "cross_entropy", r)
                for structure, curvature in curvatures.items()
            },
        }
        truth = accuracies(actions["retrain"](), data, splits)
        erasures = {structure: actions[structure]() for structure in curvatures}
        best = best_of(REPEATS, **actions)
        gap = {name: mean_gap(erasure.model, truth, data, splits) for name, erasure in erasures.items()}
        notes = erasures["matrix_free"].diagnostics.notes
        steps = next(note.split()[0] for note in notes if "conjugate" in note)
        gaps.append(gap["matrix_free"])
        seconds.append(best["matrix_free"])
        rows.append(
            (
                f"{label} ({len(forget)} samples)",
                best["retrain"],
                best["matrix_free"],
                gap["matrix_free"],
                steps,
                best["dense"],
                gap["dense"],
                mean_gap(model, truth, data, splits),
            )
        )

    report.table(
        f"Seconds and gaps of requests, best of {REPEATS} interleaved rounds",
        ("class", "retrain s", "matrix-free s", "gap", "CG steps", "dense s", "gap", "gap of the original"),
        rows,
    )
    report.table(
        f"The fit, once, best of {REPEATS} interleaved rounds",
        ("structure", "seconds"),
        list(fit_seconds.items()),
    )
    report.notes += [data.source, f"‖∇L‖ = {norm:.1e}; retraining starts from zero. Dense: a block per class."]
    report.at_most("slowest matrix-free request", max(seconds), 10, " s")
    report.at_most("largest gap, matrix-free", max(gaps), 0.5, " points")
    report.numbers = {"seconds": seconds, "gaps": gaps, "gradient_norm": norm}
    report.finish()


def train(x: Tensor, y: Tensor) -> tuple[nn.Linear, float]:
    """L-BFGS from zero until ‖∇L‖ ≤ STOP; returns the model and ‖∇L‖."""
    model = nn.Linear(x.shape[1], 37)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    parameters = list(model.parameters())
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=10, history_size=30, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * DECAY * sum(p.square().sum() for p in parameters)
        loss = F.cross_entropy(model(x).double(), y) + penalty
        loss.backward()
        return loss

    def gradient_norm() -> float:
        return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())

    for _ in range(40):
        optimizer.step(objective)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
        if gradient_norm() <= STOP:
            break
    objective()
    return model.eval(), gradient_norm()


@torch.no_grad()
def accuracies(model: nn.Module, data: Pets, splits: tuple[Tensor, ...]) -> Tensor:
    """In percent, on each split."""
    return torch.stack([(model(data.x[s]).argmax(1) == data.y[s]).float().mean() * 100 for s in splits])


def mean_gap(model: nn.Module, truth: Tensor, data: Pets, splits: tuple[Tensor, ...]) -> float:
    return float((accuracies(model, data, splits) - truth).abs().mean())


if __name__ == "__main__":
    run_alone(main, __doc__)
