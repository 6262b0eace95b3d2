"""The step of a network whose rows fit no memory: the kernel from projected gradients, one weighted backward pass.

In the dual form a step is Rᵀβ + eθ, and β needs nothing of the rows but their n×n kernel. A layer's gradient G is
projected on both sides, AGBᵀ with random A and B, which keeps inner products on average; these few thousand numbers a
sample are the gradient by Z of the network at W + AᵀZB, so that G itself is held for a few samples only. Then
Rᵀβ = ∇ Σ βᵢφᵢ is one pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from ssse.system.progress import bar

SIDE = 24  # rows of A and of B
GROUP = 128  # samples whose gradients are held at a time
PASS = 1_000


@dataclass(frozen=True)
class Projection:
    """A and B of every parameter; B is None for vectors. Where a side is no longer than `side`, it is not projected."""

    left: Mapping[str, Tensor]
    right: Mapping[str, Tensor | None]

    @classmethod
    def of(cls, model: nn.Module, side: int = SIDE, seed: int = 0) -> Projection:
        generator = torch.Generator().manual_seed(seed)

        def matrix(length: int, like: Tensor) -> Tensor:
            if length <= side:
                return torch.eye(length).to(like)
            return (torch.randn(side, length, generator=generator) / side**0.5).to(like)

        left, right = {}, {}
        for name, value in model.named_parameters():
            left[name] = matrix(len(value), value)
            right[name] = None if value.dim() < 2 else matrix(value[0].numel(), value)
        return cls(left, right)

    def zero(self) -> dict[str, Tensor]:
        """Z = 0, in its shapes."""
        found = {}
        for name, a in self.left.items():
            b = self.right[name]
            found[name] = a.new_zeros(len(a) if b is None else (len(a), len(b)))
        return found

    def moved(self, parameters: Mapping[str, Tensor], z: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W + AᵀZB of every parameter."""
        found = {}
        for name, value in parameters.items():
            a, b = self.left[name], self.right[name]
            change = a.mT @ z[name] if b is None else a.mT @ z[name] @ b
            found[name] = value + change.reshape(value.shape)
        return found


def margin_of(outputs: Tensor, label: Tensor) -> Tensor:
    """φ = z_y − log Σ_{j≠y} exp z_j of one sample, outputs of shape (classes,)."""
    own = outputs.gather(0, label[None])[0]
    others = outputs.scatter(0, label[None], float("-inf"))
    return own - others.logsumexp(0)


@torch.no_grad()
def projected_rows(
    model: nn.Module, x: Tensor, y: Tensor, projection: Projection, progress: bool = False
) -> tuple[Tensor, Tensor]:
    """The projected ∇φ of every sample, shape (n, Σ sizes of Z), and φ, shape (n,). The model is in eval mode."""
    parameters, zero = dict(model.named_parameters()), projection.zero()

    def margin(z: Mapping[str, Tensor], image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        outputs = functional_call(model, projection.moved(parameters, z), (image[None],))[0]
        phi = margin_of(outputs, label)
        return phi, phi

    rows, phis = [], []
    with bar("projected gradients", len(x), progress) as advance:
        for images, labels in zip(x.split(GROUP), y.split(GROUP), strict=True):
            slopes, phi = vmap(grad(margin, has_aux=True), (None, 0, 0))(zero, images, labels)
            rows.append(torch.cat([slopes[name].flatten(1) for name in zero], dim=1))
            phis.append(phi)
            advance(len(images))
    return torch.cat(rows), torch.cat(phis).double()


@dataclass(frozen=True)
class ProjectedKernel:
    """Of one network on its training samples. rows: projected ∇φ; along: ∇φᵢ·θ, exact; theta: flat, float64."""

    model: nn.Module
    x: Tensor
    y: Tensor
    rows: Tensor
    phi: Tensor
    along: Tensor
    theta: Tensor

    @classmethod
    def fit(
        cls, model: nn.Module, x: Tensor, y: Tensor, projection: Projection, progress: bool = False
    ) -> ProjectedKernel:
        rows, phi = projected_rows(model, x, y, projection, progress)
        along = torch.cat([_along(model, *part) for part in _parts(x, y)]).double()
        theta = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
        return cls(model, x, y, rows, phi, along, theta)

    def direction(self, forget: Tensor, decay: float, damping: float) -> Tensor:
        """M₋S⁻¹ (g_S + k·w·θ), flat, with the margin rows of what stays and the damping (n−k)λ."""
        n, k = len(self.phi), len(forget)
        ridge = (n - k) * damping
        slope = torch.zeros(n, dtype=torch.float64, device=self.phi.device)
        slope[forget] = -(-self.phi[forget]).sigmoid()  # g_S = Rᵀ slope
        weights = (self.phi.sigmoid() * (-self.phi).sigmoid()).sqrt()
        weights[forget] = 0
        rows = self.rows.double()
        image = rows @ (rows.mT @ slope) + k * decay * self.along  # R v, of the right-hand side v
        weighted = weights[:, None] * rows
        small = weighted.mT @ weighted
        small.diagonal().add_(ridge)
        right = weights * image
        # (WKW + ridge·I)⁻¹ by its low rank: (right − Z(ZᵀZ + ridge·I)⁻¹Zᵀ right) / ridge
        inner = torch.linalg.solve(small, weighted.mT @ right)
        dual = weights * (right - weighted @ inner) / ridge
        beta = (slope - dual) / ridge
        return self._gradient(beta) + k * decay / ridge * self.theta

    @torch.enable_grad()
    def _gradient(self, beta: Tensor) -> Tensor:
        """∇_θ Σ βᵢφᵢ: one pass over the data."""
        parameters = list(self.model.parameters())
        total = torch.zeros_like(self.theta)
        for images, labels, some in zip(
            self.x.split(PASS), self.y.split(PASS), beta.to(self.x.dtype).split(PASS), strict=True
        ):
            phi = vmap(margin_of)(self.model(images), labels)
            parts = torch.autograd.grad((some * phi).sum(), parameters)
            total += torch.cat([part.flatten() for part in parts])
        return total


def _along(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """∇φᵢ·θ by one forward pass with tangents."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def margins(values: Mapping[str, Tensor]) -> Tensor:
        return vmap(margin_of)(functional_call(model, dict(values), (images,)), labels)

    return jvp(margins, (parameters,), (parameters,))[1].detach()


def _parts(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(PASS), y.split(PASS), strict=True)
