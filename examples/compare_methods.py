"""Methods side by side
====================

A network forgets half of the threes: SSSE beside its baselines, and everything beside the noise floor.

Three retrained models of different seeds say how much two honest retrainings differ: a gap below that floor means
nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import ssse
from ssse import baselines
from ssse.demo import Digits

DECAY = 1e-3
digits = Digits.load()
train, test = TensorDataset(digits.x, digits.y), TensorDataset(digits.test_x, digits.test_y)
forget, same = digits.members(3, 0.5), digits.test_y == 3


def fit_network(batches, seed=0):
    """Near a minimum of (1/n) Σ ℓᵢ + (w/2)‖θ‖², where second-order steps are at home."""
    torch.manual_seed(seed)
    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    model = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10)).double()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=200, history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        penalty = sum((p * p).sum() for p in model.parameters())
        loss = F.cross_entropy(model(inputs), labels) + DECAY / 2 * penalty
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


data = [(digits.x, digits.y)]
request = [(digits.x[forget], digits.y[forget])]
model = fit_network(data)
arguments = (model, None, "cross_entropy", request)

curvature = ssse.Curvature.fit(model, "cross_entropy", data, weight_decay=DECAY)
diagonal = ssse.Curvature.fit(
    model, "cross_entropy", data, weight_decay=DECAY, structure="diagonal", rows="empirical", progress=False
)
retrained = [
    baselines.retrain(*arguments, train=lambda kept, seed=seed: fit_network(kept, seed), data=data) for seed in range(3)
]
models = {
    "original": model,
    "SSSE": ssse.erase(model, curvature, "cross_entropy", request).model,
    "gradient ascent": baselines.gradient_ascent(*arguments, scale=0.3, weight_decay=DECAY).model,
    "IU": baselines.influence_unlearning(*arguments, data=data).model,
    "fine-tuning": baselines.fine_tuning(*arguments, data=data, epochs=5, weight_decay=DECAY).model,
    "SSD": baselines.selective_synaptic_dampening(model, diagonal, "cross_entropy", request).model,
    "retrained": [each.model for each in retrained],
}
table = ssse.evaluate(models, ssse.four_splits(train, forget, test, same), loss_fn="cross_entropy", weight_decay=DECAY)
print(table)
table.figure().savefig("compare_methods.svg")
