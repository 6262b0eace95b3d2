"""Only the last layer
===================

Forget samples by moving only the last layer of a network: cheap, and often enough for a whole class."""

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import ssse

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = (x / 16).float()
model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
for _ in range(300):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
model.eval()

curvature = ssse.Curvature.fit(model, "cross_entropy", [(x, y)], damping=1e-4, parameters="head")
print(curvature)

nines = y == 9
erasure = ssse.erase(model, curvature, "cross_entropy", [(x[nines], y[nines])])
print(erasure.diagnostics)
figure = Figure(figsize=(7, 3.2), layout="constrained")
ax = figure.add_subplot()
with torch.no_grad():
    for name, candidate in (("before", model), ("after", erasure.model)):
        right = candidate(x).argmax(1) == y
        of_nines, of_rest = (100 * float(right[part].float().mean()) for part in (nines, ~nines))
        ax.bar([f"nines, {name}", f"the rest, {name}"], [of_nines, of_rest], color=["#D55E00", "#0072B2"])
        print(f"{name}: {of_nines:.1f} % of the nines right, {of_rest:.1f} % of the rest")
ax.set(ylabel="right, %", ylim=(0, 100), title="The last layer alone forgets the nines")
figure.savefig("head_of_a_network.svg")
