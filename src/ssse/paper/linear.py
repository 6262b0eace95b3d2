"""Linear models, trained to the minimum: the gold standard that a convex experiment compares with.

    L(A) = (1/n) Σᵢ ℓ(Axᵢ, yᵢ) + (w/2)‖A‖²,      A of shape (outputs, features), no bias

Retraining eighty times has to be quick, and exact, or the comparison measures the optimiser. So: Newton's method, its
steps by conjugate gradients, in the basis where XᵀX/n = UΛUᵀ is diagonal. There a good preconditioner is diagonal as
well, m_a·Λ + w for the output a with m_a = mean p(1−p), and U, found once for a data set, serves every retraining on a
part of it. Attributes do not meet: each has its own steps. Classes move together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssse.curvature.conjugate_gradients import conjugate_gradients
from ssse.errors import SSSEError

TOLERANCE = 1e-7  # of ‖∇L‖
LENGTHS = (1.0, 0.5, 0.25, 0.125, 0.03)


class NotTrained(SSSEError, ArithmeticError):
    """Training did not reach the minimum."""


@dataclass(frozen=True)
class Trained:
    """Attributes: passes: products with X and Xᵀ, counted in pairs."""

    weights: Tensor  # (outputs, features), float64
    gradient_norm: float
    passes: int
    seconds: float


@dataclass(frozen=True)
class Linear:
    """A data set in its own basis, to train on any part of it."""

    x: Tensor  # (n, p), float64
    y: Tensor  # (n,) classes or (n, a) attributes
    decay: float
    basis: Tensor  # U
    spectrum: Tensor  # Λ
    rotated: Tensor  # XU

    @classmethod
    def of(cls, x: Tensor, y: Tensor, decay: float) -> Linear:
        x = x.double()
        spectrum, basis = torch.linalg.eigh((x.mT @ x).div_(len(x)))
        return cls(x, y, decay, basis, spectrum.clamp_min(0), x @ basis)

    @property
    def outputs(self) -> int:
        return self.y.shape[1] if self.y.dim() == 2 else int(self.y.max()) + 1

    def train(self, keep: Tensor, start: Tensor | None = None, tolerance: float = TOLERANCE) -> Trained:
        """Minimise over the samples `keep` (indices), from `start` or from zero, until ‖∇L‖ ≤ tolerance."""
        began = time.perf_counter()
        part = _Part(self.rotated[keep], self.y[keep], self.decay, self.spectrum, self.outputs)
        weights = part.x.new_zeros(self.outputs, part.x.shape[1]) if start is None else start.double() @ self.basis
        passes, norm = 0, torch.inf
        for _ in range(60):
            p, slope = part.slope(weights)
            passes, norm = passes + 1, float(slope.norm())
            if norm <= tolerance:
                return Trained((weights @ self.basis.mT).contiguous(), norm, passes, time.perf_counter() - began)
            step, used = part.newton_step(p, slope, target=max(min(0.1, norm**0.5) * norm, 0.3 * tolerance))
            weights = weights + part.lengths(weights, step) * step
            passes += used + 1
        raise NotTrained(f"‖∇L‖ is {norm:.1e} after {passes} passes over the data, not {tolerance:.0e}.")

    def train_sgd(self, keep: Tensor, seed: int, epochs: int = 60, batch: int = 256, rate: float = 0.5) -> Trained:
        """As the paper trains: mini-batches, momentum, a fixed rate. Its noise is what two seeds differ by."""
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(seed)
        weights = 0.01 * torch.randn(self.outputs, self.x.shape[1], generator=generator, dtype=torch.float64)
        velocity = torch.zeros_like(weights)
        for _ in range(epochs):
            for index in keep[torch.randperm(len(keep), generator=generator)].split(batch):
                x = self.x[index]
                away = probabilities(x @ weights.mT, self.y) - _one_hot(self.y[index], self.outputs)
                velocity.mul_(0.9).add_(away.mT @ x / len(x) + self.decay * weights)
                weights.sub_(velocity, alpha=rate)
        _, slope = _Part(self.x[keep], self.y[keep], self.decay, self.spectrum, self.outputs).slope(weights)
        return Trained(weights, float(slope.norm()), epochs, time.perf_counter() - began)


@dataclass
class _Part:
    """The samples that are trained on."""

    x: Tensor
    y: Tensor
    decay: float
    spectrum: Tensor
    outputs: int

    def __post_init__(self) -> None:
        self.target = _one_hot(self.y, self.outputs)
        self.rough = self.x.float()  # conjugate gradients need no more: the next gradient is exact again

    def slope(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and ∇L."""
        p = probabilities(self.x @ weights.mT, self.y)
        return p, (p - self.target).mT @ self.x / len(self.x) + self.decay * weights

    def newton_step(self, p: Tensor, slope: Tensor, target: float) -> tuple[Tensor, int]:
        """−H⁻¹∇L up to a residual of norm `target`, and the passes that it took."""
        p, right = p.float(), -slope.float()
        scale = (p * (1 - p)).mean(0)[:, None] * self.spectrum.float() + self.decay

        def product(q: Tensor) -> Tensor:
            u = self.rough @ q.mT
            inner = p * (u - (p * u).sum(1, keepdim=True)) if self.y.dim() == 1 else p * (1 - p) * u
            return inner.mT @ self.rough / len(self.x) + self.decay * q

        solved = conjugate_gradients(
            product,
            right,
            tolerance=target / max(float(right.norm()), torch.finfo(right.dtype).tiny),
            max_iterations=200,
            precondition=lambda r: r / scale,
            inner=self._inner,
            check=False,  # the next gradient tells
        )
        return solved.x.double(), solved.iterations

    def lengths(self, weights: Tensor, step: Tensor) -> Tensor:
        """How far to go: 1 near the minimum, less far from it; each attribute for itself."""
        z, dz = self.x @ weights.mT, self.x @ step.mT
        losses = torch.stack([self._losses(z + t * dz, weights + t * step) for t in LENGTHS])
        return torch.tensor(LENGTHS, dtype=torch.float64)[losses.argmin(0)].view(-1, 1)

    def _losses(self, z: Tensor, weights: Tensor) -> Tensor:
        if self.y.dim() == 1:
            return F.cross_entropy(z, self.y) + 0.5 * self.decay * weights.square().sum()
        data = F.binary_cross_entropy_with_logits(z, self.target, reduction="none").mean(0)
        return data + 0.5 * self.decay * weights.square().sum(1)

    def _inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Attributes are systems of their own; classes are one."""
        return (a * b).sum() if self.y.dim() == 1 else (a * b).sum(1, keepdim=True)


def probabilities(z: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(z, 1) if y.dim() == 1 else torch.sigmoid(z)


def as_model(weights: Tensor, dtype: torch.dtype = torch.float64) -> nn.Linear:
    """The weights as a module, as a user of the library has them."""
    outputs, features = weights.shape
    model = nn.Linear(features, outputs, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(weights)
    return model.eval()


def _one_hot(y: Tensor, outputs: int) -> Tensor:
    return F.one_hot(y, outputs).double() if y.dim() == 1 else y.double()
