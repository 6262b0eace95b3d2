"""What is left of a step in a model that is kept in half precision: digits, a softmax regression and a small network.

A model is trained in float32 and cast; the curvature and the step are computed in float32 from the cast model, and the
erased model is handed back in its own dtype. The less goes, the shorter the step, and the more of it is rounding.
"""

from __future__ import annotations

import statistics
import warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ssse
from record import Report, run_alone

DECAY, SEEDS, GONE = 1e-3, (0, 1, 2), (1, 10, 100)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NETWORKS = {
    "softmax regression, 650": lambda: nn.Linear(64, 10),
    "network, 2,410": lambda: nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
}


def trained(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """To the minimum of the objective, by L-BFGS."""
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=400, history_size=50, tolerance_grad=1e-7, tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        square = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        loss = nn.functional.cross_entropy(model(x), y) + DECAY / 2 * square
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


def main(_: Path) -> None:
    report = Report("rounding", "Steps of models in half precision, digits, w = 0.001")
    warnings.simplefilter("ignore", ssse.DoubtfulSetting)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    rows, few = [], []
    for name, make in NETWORKS.items():
        for k in GONE:
            shares: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
            distances: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
            for seed in SEEDS:
                torch.manual_seed(seed)
                order = torch.randperm(len(y))
                gone, kept = order[:k], order[k:]
                start = make().state_dict()
                original, retrained = make(), make()
                for model in (original, retrained):
                    model.load_state_dict(start)
                trained(original, x, y)
                truth = probabilities(trained(retrained, x[kept], y[kept]), x[gone])
                nothing = (probabilities(original, x[gone]) - truth).norm()
                for dtype, kind in DTYPES.items():
                    model = make().to(kind).eval()
                    model.load_state_dict(original.state_dict())
                    curvature = ssse.Curvature.fit(
                        model, "cross_entropy", [(x, y)], weight_decay=DECAY, rows="expected", progress=False
                    )
                    try:
                        erasure = ssse.erase(
                            model, curvature, forget=[(x[gone], y[gone])], override=ssse.BOUNDS, progress=False
                        )
                    except ssse.Refused:  # the step rounds to nothing
                        shares[dtype].append(1.0)
                        distances[dtype].append(1.0)
                        continue
                    shares[dtype].append(erasure.diagnostics.rounding or 0.0)
                    distances[dtype].append(float((probabilities(erasure.model, x[gone]) - truth).norm() / nothing))
            for dtype in DTYPES:
                share, distance = statistics.median(shares[dtype]), statistics.median(distances[dtype])
                rows.append((name, k, dtype, share, distance))
                if k == GONE[0] and dtype == "bfloat16":
                    few.append(share)
    report.table(
        f"Medians of {len(SEEDS)} seeds", ("model", "samples", "kept in", "share of rounding", "distance"), rows
    )
    report.notes += [
        "share of rounding: ‖rounded step − step‖/‖step‖, `diagnostics.rounding`. distance: of the probabilities on "
        "the forgotten samples to the retrained model's, 1 for the model as it was, in float32.",
        f"One sample of 1,797 in bfloat16: between {min(few):.0%} and {max(few):.0%} of the step is rounding.",
    ]
    report.finish()


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.to(next(model.parameters()).dtype)).float().softmax(1)


if __name__ == "__main__":
    run_alone(main, __doc__)
