"""The setting of the paper's Figure 1: two Gaussian classes in the plane, what is removed, every update measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor, nn

from ssse.baselines import influence
from ssse.curvature.curvature import Curvature
from ssse.metrics.distance import remaining_distance
from ssse.metrics.gaps import divergences
from ssse.paper.steps import erase

LOSS = "binary_cross_entropy"
PER_CLASS, SEPARATION, DECAY = 40, 2.0, 1e-3
OUTLIER = (-1.5, 4.0)  # a blue sample on the red side and far along the boundary: much leverage, much loss
GROUP = 10  # a quarter of the blue class
FRESH = 2000  # new points of each class, to count where two boundaries disagree
SMALLEST = 1e-2  # of ε; a projection can be negative, a scale cannot

REMOVALS = {
    "one": "one sample",
    "group": f"the {GROUP} highest of a class",
    "random": f"{GROUP} of a class at random",
    "plain": "one sample, none placed",
}
METHODS = {
    "influence_all": "influence, H over D",
    "influence_rest": "influence, H over D∖S",
    "ssse_all": "SSSE, F̂ over D, best ε",
    "ssse_rest": "SSSE, F̂ over D∖S, best ε",
    "ssse_all_fixed": "SSSE, F̂ over D, ε fixed before",
    "ssse_rest_fixed": "SSSE, F̂ over D∖S, ε fixed before",
    "default": "default of ssse: expected rows, D∖S",
}
PLACES = {"all": False, "rest": True}  # curvature over D, over D∖S: leave_out
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Removal:
    """One request: which samples go, the model before and after retraining, and every update's (ε, θ̂)."""

    chosen: np.ndarray  # of n, True where removed
    original: np.ndarray  # θ = (w₁, w₂, b)
    retrained: np.ndarray
    updates: dict[str, tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Plane:
    """One draw of the data, blue is class 1; x of shape (n, 2), y of shape (n, 1)."""

    x: Tensor
    y: Tensor
    fresh: np.ndarray

    def batch(self, chosen: np.ndarray) -> Batch:
        index = torch.from_numpy(np.flatnonzero(chosen))
        return self.x[index], self.y[index]


def draw_plane(seed: int, index: int, placed: bool = True) -> Plane:
    """placed: with the outlier where we want it. Without, the very same draw as it came."""
    rng = np.random.default_rng([seed, index])
    x, y = _gaussians(rng, PER_CLASS)
    if placed:
        x[PER_CLASS] = OUTLIER  # the first blue one
    return Plane(torch.from_numpy(x), torch.from_numpy(y)[:, None], _gaussians(rng, FRESH)[0])


def choose_removals(plane: Plane, seed: int, index: int) -> dict[str, np.ndarray]:
    """Masks over the samples. The highest blue ones pull the boundary to their side, so that without them it turns."""
    blue = np.flatnonzero(plane.y[:, 0].numpy() == 1)
    highest = blue[np.argsort(-plane.x[blue, 1].numpy())[:GROUP]]
    anyone = np.random.default_rng([seed, index, 1]).choice(blue, GROUP, replace=False)
    return {
        name: np.isin(np.arange(len(plane.y)), which)
        for name, which in (("one", [PER_CLASS]), ("group", highest), ("random", anyone))
    }


def choose_deepest(plane: Plane) -> dict[str, np.ndarray]:
    """The blue sample farthest on the red side: influential by a rule, not by our hand."""
    blue = np.flatnonzero(plane.y[:, 0].numpy() == 1)
    return {"plain": np.arange(len(plane.y)) == blue[np.argmin(plane.x[blue, 0].numpy())]}


def measure_draw(plane: Plane, removals: Mapping[str, np.ndarray], seed: int, index: int) -> dict[str, Removal]:
    """Train, remove, retrain and update, for each removal. The fixed ε is chosen once, on other samples."""
    model = train(plane.x, plane.y)
    everything = [(plane.x, plane.y)]
    curvatures = {
        rows: Curvature.fit(
            model, LOSS, everything, weight_decay=DECAY, rows=rows, structure="dense", blocks="one", progress=False
        )
        for rows in ("empirical", "expected")
    }
    n = len(plane.y)
    tenth = np.isin(np.arange(n), np.random.default_rng([seed, index, 2]).choice(n, n // 10, replace=False))
    wanted = theta_of(train(*plane.batch(~tenth))) - theta_of(model)
    directions = _paper_directions(plane, model, curvatures["empirical"], tenth)
    fixed = {place: best_scale(u, wanted) for place, u in directions.items()}
    return {name: _remove(plane, model, curvatures, chosen, fixed) for name, chosen in removals.items()}


def _remove(
    plane: Plane,
    model: nn.Linear,
    curvatures: Mapping[str, Curvature],
    chosen: np.ndarray,
    fixed: Mapping[str, float],
) -> Removal:
    start, goal = theta_of(model), theta_of(train(*plane.batch(~chosen)))
    forget, everything = [plane.batch(chosen)], [(plane.x, plane.y)]
    updates: dict[str, tuple[float, np.ndarray]] = {}
    for place in PLACES:
        update = influence(model, None, LOSS, forget, data=everything, leave_out=PLACES[place], weight_decay=DECAY)
        updates[f"influence_{place}"] = (1.0, theta_of(update.model))
    for place, u in _paper_directions(plane, model, curvatures["empirical"], chosen).items():
        for name, scale in ((f"ssse_{place}", best_scale(u, goal - start)), (f"ssse_{place}_fixed", fixed[place])):
            updates[name] = (scale, start + scale * u)
    updates["default"] = (1.0, theta_of(erase(model, curvatures["expected"], LOSS, forget, progress=False).model))
    return Removal(chosen, start, goal, updates)


def _paper_directions(
    plane: Plane, model: nn.Linear, empirical: Curvature, chosen: np.ndarray
) -> dict[str, np.ndarray]:
    """SSSE's step at ε = 1, with the empirical FIM over D and over D∖S."""
    forget = [plane.batch(chosen)]
    return {
        place: erase(model, empirical, LOSS, forget, scale=1.0, leave_out=leave_out, progress=False).direction.numpy()
        for place, leave_out in PLACES.items()
    }


def best_scale(direction: np.ndarray, wanted: np.ndarray) -> float:
    """The ε that brings θ* + εu nearest to the retrained θ₋S: a projection, so no grid is needed."""
    return max(float(direction @ wanted / (direction @ direction)), SMALLEST)


def measures(theta: np.ndarray, removal: Removal, plane: Plane) -> dict[str, float]:
    """How far one model is from the retrained one: in parameters, as a boundary, in its predictions on S."""
    goal, (x, y) = removal.retrained, plane.batch(removal.chosen)
    kl = divergences(_logits(theta, x.numpy()), [_logits(goal, x.numpy())], y.numpy())
    return {
        "distance": float(remaining_distance(theta, removal.original, goal)),
        "angle": angle_between(theta, goal),
        "offset": abs(_offset(theta) - _offset(goal)),
        "kl": float(kl.mean()),
        "disagreement": disagreement(theta, goal, plane.fresh),
    }


def all_measures(removal: Removal, plane: Plane) -> dict[str, dict[str, Any]]:
    """By method; the original model too. And how far SSSE's boundary is from the Hessian's, ε being the right one."""
    measured: dict[str, dict[str, Any]] = {"original": {"scale": 0.0, **measures(removal.original, removal, plane)}}
    for name, (scale, theta) in removal.updates.items():
        measured[name] = {"scale": scale, **measures(theta, removal, plane), "theta": theta.tolist()}
    for place in PLACES:
        pair = [removal.updates[f"{method}_{place}"][1] for method in ("ssse", "influence")]
        measured[f"ssse_{place}"]["from_influence"] = disagreement(pair[0], pair[1], plane.fresh)
        measured[f"ssse_{place}"]["angle_from_influence"] = angle_between(pair[0], pair[1])
    return measured


def angle_between(first: np.ndarray, second: np.ndarray) -> float:
    """Of the two boundaries' normals, in degrees."""
    cross, dot = first[0] * second[1] - first[1] * second[0], first[:2] @ second[:2]
    return float(np.degrees(np.abs(np.arctan2(cross, dot))))


def disagreement(first: np.ndarray, second: np.ndarray, points: np.ndarray) -> float:
    """Points that fall on different sides of the two boundaries, in per cent."""
    return 100 * float(((_logits(first, points) > 0) != (_logits(second, points) > 0)).mean())


def train(x: Tensor, y: Tensor) -> nn.Linear:
    """The minimum of the mean loss + (w/2)‖θ‖², bias included, to a gradient of 1e-9 or less."""
    features = np.column_stack([x.numpy(), np.ones(len(x))])
    labels = y[:, 0].numpy()

    def value(theta: np.ndarray) -> float:
        z = features @ theta
        return float(np.mean(np.logaddexp(0, z) - labels * z) + DECAY / 2 * theta @ theta)

    def gradient(theta: np.ndarray) -> np.ndarray:
        return features.T @ (expit(features @ theta) - labels) / len(labels) + DECAY * theta

    def hessian(theta: np.ndarray) -> np.ndarray:
        p = expit(features @ theta)
        return (features.T * (p * (1 - p))) @ features / len(labels) + DECAY * np.eye(3)

    start = np.zeros(3)
    theta = minimize(value, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-9}).x
    theta = theta - np.linalg.solve(hessian(theta), gradient(theta))  # one more Newton step: to rounding
    model = nn.Linear(2, 1).double().eval()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(theta[None, :2]))
        model.bias.copy_(torch.from_numpy(theta[2:]))
    return model


def theta_of(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def _gaussians(rng: np.random.Generator, each: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat([0.0, 1.0], each)
    x = rng.normal(size=(2 * each, 2))
    x[:, 0] += SEPARATION * (y - 0.5)
    return x, y


def _logits(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x @ theta[:2] + theta[2]


def _offset(theta: np.ndarray) -> float:
    """The boundary's signed distance from the origin."""
    return float(-theta[2] / np.linalg.norm(theta[:2]))
