"""Methods side by side
====================

A network forgets half of the threes: SSSE beside its baselines, and everything beside the noise floor.

Three retrained models of different seeds say how much two honest retrainings differ: a gap below that floor means
nothing. The same from the command line is `ssse compare`.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import ssse
from ssse.demo import Digits

DECAY = 1e-3


def fit_network(batches):
    """Near a minimum of (1/n) Σ ℓᵢ + (w/2)‖θ‖², where second-order steps are at home."""
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


digits = Digits.load()
train, test = TensorDataset(digits.x, digits.y), TensorDataset(digits.test_x, digits.test_y)
torch.manual_seed(0)
model = fit_network([(digits.x, digits.y)])

comparison = ssse.compare(
    model,
    "cross_entropy",
    ssse.four_splits(train, digits.members(3, 0.5), test, digits.test_y == 3),
    weight_decay=DECAY,
    retrain=fit_network,
    seeds=3,
    settings={"gradient ascent": {"scale": 0.3}, "fine-tuning": {"epochs": 5}},
)
print(comparison)
comparison.figure().savefig("compare_methods.svg")
