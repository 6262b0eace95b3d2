"""A stream of requests
====================

A stream of deletion requests: with policy="joint" their order and grouping do not matter."""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import nn

import ssse

features, labels = load_breast_cancer(return_X_y=True)
x = torch.as_tensor(features)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(labels, dtype=torch.float64)[:, None]
model, decay = nn.Linear(30, 1).double(), 1e-2
optimiser = torch.optim.LBFGS(model.parameters(), max_iter=1000, tolerance_grad=1e-10, line_search_fn="strong_wolfe")


def objective() -> torch.Tensor:
    optimiser.zero_grad()
    penalty = sum((p**2).sum() for p in model.parameters())
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y) + decay / 2 * penalty
    loss.backward()
    return loss


optimiser.step(objective)
model.eval()
curvature = ssse.Curvature.fit(model, "binary_cross_entropy", [(x, y)], weight_decay=decay)


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


current, left, moved, differences = model, curvature, [], []
for request in range(20):
    part = slice(2 * request, 2 * request + 2)
    erasure = ssse.erase(current, left, "binary_cross_entropy", [(x[part], y[part])], policy="joint")
    current, left = erasure.model, erasure.curvature
    so_far = [(x[: part.stop], y[: part.stop])]
    together = ssse.erase(model, curvature, "binary_cross_entropy", so_far, policy="joint")
    moved.append(apart(current, model))
    differences.append(apart(current, together.model))
difference = differences[-1]
print(f"20 requests one by one: {left}")
print(f"largest difference to one request of all 40 samples: {difference:.1e}")

figure = Figure(figsize=(7, 3.6), layout="constrained")
ax = figure.add_subplot()
ax.semilogy(range(1, 21), moved, "s--", color="#666666", label="moved from the trained model")
ax.semilogy(range(1, 21), differences, "o-", color="#0072B2", label="difference to one request for all of them")
ax.set(xlabel="requests", ylabel="largest change of a coefficient", xticks=range(2, 21, 2))
ax.legend(frameon=False, loc="center right")
ax.set_title("Twenty requests one by one, or as one")
figure.savefig("many_requests.svg")
