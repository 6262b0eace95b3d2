"""What one step leaves, refined
=============================

A whole class goes from a softmax model: one step falls short, and `refine` goes the rest of the way.

The step reads the forgotten samples alone. Where those that remain can still be read, each further step is one pass
over them, and a few lead to the model that a refit gives.
"""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import ssse

GONE, DECAY = 8, 1e-3
images, digits = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = nn.functional.avg_pool2d(images.reshape(-1, 1, 8, 8) / 16, 2).reshape(-1, 16)  # 4×4 points are left of each image
train = torch.rand(len(x), generator=torch.Generator().manual_seed(0)) < 0.7
x, y, test_x, test_y = x[train], digits[train], x[~train], digits[~train]
gone = y == GONE
forget, retained = [(x[gone], y[gone])], [(x[~gone], y[~gone])]


def fitted(data: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[nn.Module, ssse.Curvature]:
    """The minimum of the training objective: an untrained model, polished by the same function."""
    model = nn.Linear(16, 10).double().eval()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    curvature = ssse.Curvature.fit(model, "cross_entropy", data, weight_decay=DECAY)
    trained = ssse.refine(model, curvature, "cross_entropy", data, steps=100).model
    return trained, ssse.Curvature.fit(trained, "cross_entropy", data, weight_decay=DECAY)


def theta(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


model, curvature = fitted([(x, y)])
refit, _ = fitted(retained)
erasure = ssse.erase(model, curvature, "cross_entropy", forget)
models, passes = {"trained": model, "erased": erasure.model}, {"trained": 0, "erased": 0}
for steps in (1, 2, 3, 5, 10):
    refinement = ssse.refine(erasure.model, erasure.curvature, "cross_entropy", retained, steps=steps)
    name = f"refined, {steps} step{'s' * (steps > 1)}"
    models[name], passes[name] = refinement.model, refinement.passes
models["refit"] = refit

print(f"{int(gone.sum())} of {len(y)} samples go, all of digit {GONE}")
print(f"{'':<18} passes  distance from the refit  answers as the refit on test images")
for name, candidate in models.items():
    share = float((theta(candidate) - theta(refit)).norm() / (theta(model) - theta(refit)).norm())
    same = (candidate(test_x).argmax(1) == refit(test_x).argmax(1)).double().mean()
    print(f"{name:<18} {passes.get(name, '–'):>6} {share:>24.1e} {100 * float(same):>12.1f} %")
print(refinement)

figure = Figure(figsize=(7, 3.6), layout="constrained")
ax = figure.add_subplot()
steps, refined = (0, 1, 2, 3, 5, 10), [name for name in models if name not in ("trained", "refit")]
whole = float((theta(model) - theta(refit)).norm())
ax.semilogy(steps, [float((theta(models[name]) - theta(refit)).norm()) / whole for name in refined], "o-")
ax.axhline(1, color="#666666", linestyle="--")
ax.annotate("the trained model", (10, 1), (0, -12), textcoords="offset points", ha="right", color="#666666")
ax.set(
    xlabel="steps of refine after the erasure",
    ylabel="distance from the refit",
    title="One step, and those that follow",
)
figure.savefig("refine_a_class.svg")
