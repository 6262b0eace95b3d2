"""Training many logistic attributes at once: the opponent that erasing has to beat.

    L(A) = (1/n) Σᵢ Σ_a log(1 + exp(−y_ia z_ia)) + (w/2)‖A‖²,      z = XAᵀ,  A of shape (attributes, features)

Two ways to the minimum. `train_lbfgs` is what one would usually write. `train_newton` is the best we found:
Newton steps, each attribute with its own step length, solved by conjugate gradients that all attributes run
together, preconditioned by one matrix that all share, P = XᵀX/(8n) + wI: half of the bound H ≤ XᵀX/(4n) + wI.
Every product with X then serves all attributes, and P is factorised once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor


@dataclass(frozen=True)
class Trained:
    """Attributes: passes: products with X and Xᵀ, counted in pairs. seconds: setup (factorising P) included."""

    weights: Tensor
    gradient_norm: float
    passes: int
    seconds: float
    setup_seconds: float = 0.0


def gradient(x: Tensor, y: Tensor, weights: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """∇L, shape (a, p), and the probabilities, shape (n, a)."""
    p = torch.sigmoid(x @ weights.mT)
    return (p - y).mT @ x / len(x) + decay * weights, p


def train_lbfgs(x: Tensor, y: Tensor, decay: float, start: Tensor, tolerance: float, passes: int = 3000) -> Trained:
    """torch's L-BFGS with strong Wolfe line search and 20 pairs of history, until ‖∇L‖ ≤ tolerance."""
    began = time.perf_counter()
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=5, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )
    done, norm, best, best_at = 0, torch.inf, torch.inf, 0

    def objective() -> Tensor:
        nonlocal done, norm, best, best_at
        done += 1
        optimizer.zero_grad()
        # The sum in float64: in float32 the line search stalls on rounding before ‖∇L‖ is small.
        data = F.binary_cross_entropy_with_logits((x @ weights.mT).double(), y.double(), reduction="sum") / len(x)
        loss = data + 0.5 * decay * weights.double().square().sum()
        loss.backward()
        assert weights.grad is not None
        norm = float(weights.grad.norm())
        if norm < best:
            best, best_at = norm, done
        return loss

    # ‖∇L‖ does not fall at every step; 300 passes without a new low mean that float32 gives no more.
    while norm > tolerance and done < passes and done - best_at < 300:
        optimizer.step(objective)  # type: ignore[arg-type]  # torch wants a float, and takes the tensor
    final = float(gradient(x, y, weights.detach(), decay)[0].norm())
    return Trained(weights.detach(), final, done, time.perf_counter() - began)


def train_sgd(x: Tensor, y: Tensor, decay: float, start: Tensor, seconds: float) -> Trained:
    """As the paper trains: mini-batches, momentum 0.9, a fixed rate; for so many seconds.

    Batches of 1,024 at rate 2 came nearest of those tried. At a fixed rate the noise of the batches stays.
    """
    began, passes = time.perf_counter(), 0
    weights, velocity = start.clone(), torch.zeros_like(start)
    generator = torch.Generator().manual_seed(0)
    while time.perf_counter() - began < seconds:
        for index in torch.randperm(len(x), generator=generator).split(1024):
            slope, _ = gradient(x[index], y[index], weights, decay)
            velocity.mul_(0.9).add_(slope)
            weights.sub_(velocity, alpha=2.0)
        passes += 1
    used = time.perf_counter() - began
    return Trained(weights, float(gradient(x, y, weights, decay)[0].norm()), passes, used)


def train_sklearn(x: Tensor, y: Tensor, decay: float, start: Tensor, attributes: Sequence[int]) -> Trained:
    """scikit-learn's LogisticRegression, some attributes one after another; seconds and passes scaled to all."""
    weights, passes, began = start.clone(), 0, time.perf_counter()
    for a in attributes:
        model = LogisticRegression(C=1 / (len(x) * decay), fit_intercept=False, tol=1e-7, max_iter=3000)
        model.fit(x.numpy(), y[:, a].numpy())
        weights[a] = torch.from_numpy(model.coef_[0])
        passes += int(model.n_iter_[0])
    share = len(start) / len(attributes)
    used = (time.perf_counter() - began) * share
    return Trained(weights, float("nan"), round(passes * share), used)


def factorise_shared(x: Tensor, decay: float) -> Tensor:
    """The Cholesky factor of P."""
    square = (x.mT @ x).mul_(1 / (8 * len(x)))
    square.diagonal().add_(decay)
    return torch.linalg.cholesky(square)


def train_newton(
    x: Tensor, y: Tensor, decay: float, start: Tensor, tolerance: float, factor: Tensor | None = None
) -> Trained:
    """Newton's method as described above, until ‖∇L‖ ≤ tolerance or no step lowers it any more."""
    began = time.perf_counter()
    factor = factorise_shared(x, decay) if factor is None else factor
    setup = time.perf_counter() - began
    weights, passes, norm, best = start.clone(), 0, torch.inf, torch.inf
    for _ in range(50):
        slope, p = gradient(x, y, weights, decay)
        passes, norm = passes + 1, float(slope.norm())
        if norm <= tolerance or norm > 0.9 * best:
            break
        best = min(best, norm)
        forcing = min(0.1, norm**0.5)
        target = max(forcing * norm, 0.5 * tolerance)
        step, used = _newton_direction(x, p * (1 - p) / len(x), decay, -slope, factor, target)
        passes += used
        weights = weights + _step_lengths(x, y, weights, step, decay)[:, None] * step
        passes += 1
    return Trained(weights, norm, passes, time.perf_counter() - began, setup)


def _newton_direction(
    x: Tensor, curvature: Tensor, decay: float, right: Tensor, factor: Tensor, target: float
) -> tuple[Tensor, int]:
    """(Xᵀ diag(v_a) X + wI) d_a = right_a for every attribute a, by conjugate gradients side by side."""
    d, r = torch.zeros_like(right), right.clone()
    z = torch.cholesky_solve(r.mT, factor).mT
    q, rz = z.clone(), (r * z).sum(1)
    for count in range(1, 101):
        product = (curvature * (x @ q.mT)).mT @ x + decay * q
        alpha = (rz / (q * product).sum(1).clamp_min(1e-30))[:, None]
        d, r = d + alpha * q, r - alpha * product
        if r.norm() <= target:
            return d, count
        z = torch.cholesky_solve(r.mT, factor).mT
        rz, previous = (r * z).sum(1), rz
        q = z + (rz / previous.clamp_min(1e-30))[:, None] * q
    return d, 100


def _step_lengths(x: Tensor, y: Tensor, weights: Tensor, step: Tensor, decay: float) -> Tensor:
    """For every attribute the best of 1, ½, ¼, ⅛ along its own Newton direction."""
    z, dz = x @ weights.mT, x @ step.mT
    lengths = torch.tensor([1.0, 0.5, 0.25, 0.125])
    losses = [
        F.binary_cross_entropy_with_logits(z + t * dz, y, reduction="none").double().mean(0)
        + 0.5 * decay * (weights + t * step).double().square().sum(1)
        for t in lengths
    ]
    return lengths[torch.stack(losses).argmin(0)]
