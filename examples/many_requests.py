"""A stream of deletion requests: with policy="joint" their order and grouping do not matter."""

import torch
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

current, left = model, curvature
for request in range(20):
    part = slice(2 * request, 2 * request + 2)
    erasure = ssse.erase(current, left, "binary_cross_entropy", [(x[part], y[part])], policy="joint")
    current, left = erasure.model, erasure.curvature
together = ssse.erase(model, curvature, "binary_cross_entropy", [(x[:40], y[:40])], policy="joint")

pairs = zip(current.parameters(), together.model.parameters(), strict=True)
difference = max(float((a - b).detach().abs().max()) for a, b in pairs)
print(f"20 requests one by one: {left}")
print(f"largest difference to one request of all 40 samples: {difference:.1e}")
