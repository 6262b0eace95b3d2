"""The step of a network whose rows fit no memory: the kernel from projected gradients, one weighted backward pass.

In the dual form a step is Rᵀβ + eθ, and β needs nothing of the rows but their n×n kernel. A layer's gradient G is
projected on both sides, AGBᵀ with random A and B, which keeps inner products on average. Of a layer y = Wa it is
(A ∂φ/∂y)(Ba)ᵀ, and so the gradient by Z, a matrix for every sample that is zero, of the network with y + AᵀZBa there:
one backward pass for all samples, in which no G is ever formed. Then Rᵀβ = ∇ Σ βᵢφᵢ is one pass over the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from ssse.errors import InvalidModel
from ssse.system.progress import bar

SIDE = 24  # rows of A and of B
GROUP = 500  # samples of a backward pass, each with a Z of its own in every layer
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

    def zero(self, count: int) -> dict[str, Tensor]:
        """Z of so many samples."""
        found = {}
        for name, a in self.left.items():
            b = self.right[name]
            sides = (len(a),) if b is None else (len(a), len(b))
            found[name] = a.new_zeros(count, *sides, requires_grad=True)
        return found

    def changed(self, name: str, layer: nn.Module, given: Tensor, out: Tensor, z: Mapping[str, Tensor]) -> Tensor:
        """What the layer would give with its parameters moved by AᵀZB."""
        for own, value in layer.named_parameters(recurse=False):
            key = f"{name}.{own}"
            a, b, some = self.left[key], self.right[key], z[key]
            if b is not None:  # a weight: ZBa, of shape (n, rows of A, places)
                image = some @ _times(layer, value, b, given)
                out = out + (a.mT @ image).reshape(out.shape)
            else:
                along = (some @ a).reshape(len(out), -1, *[1] * (out.dim() - 2))
                out = out + (along * _normalised(layer, given) if own == "weight" else along)
        return out


def _times(layer: nn.Module, weight: Tensor, b: Tensor, given: Tensor) -> Tensor:
    """B on what the layer's weight is multiplied with: shape (n, rows of B, places)."""
    if isinstance(layer, nn.Linear):
        return F.linear(given, b)[:, :, None]
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str):
        kernels = b.view(-1, *weight.shape[1:])
        return F.conv2d(given, kernels, None, layer.stride, layer.padding, layer.dilation).flatten(2)
    raise InvalidModel(f"Projected gradients are of convolutions, linear layers and BatchNorm, not of {layer}.")


def _normalised(layer: nn.Module, given: Tensor) -> Tensor:
    """What a BatchNorm in eval mode multiplies with its weight."""
    if not isinstance(layer, nn.BatchNorm2d) or layer.running_mean is None or layer.running_var is None:
        raise InvalidModel(f"Projected gradients are of convolutions, linear layers and BatchNorm, not of {layer}.")
    return F.batch_norm(given, layer.running_mean, layer.running_var, eps=layer.eps)


@contextmanager
def _moved(model: nn.Module, projection: Projection, z: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with AᵀZB added to every parameter, for each sample its own."""

    def hook(name: str, layer: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return projection.changed(name, layer, given[0], out, z)

    with ExitStack() as stack:
        for name, layer in model.named_modules():
            if next(layer.parameters(recurse=False), None) is not None:
                handle = layer.register_forward_hook(partial(hook, name))
                stack.callback(handle.remove)
        yield


def margin_of(outputs: Tensor, label: Tensor) -> Tensor:
    """φ = z_y − log Σ_{j≠y} exp z_j of one sample, outputs of shape (classes,)."""
    own = outputs.gather(0, label[None])[0]
    others = outputs.scatter(0, label[None], float("-inf"))
    return own - others.logsumexp(0)


@torch.enable_grad()
def projected_rows(
    model: nn.Module, x: Tensor, y: Tensor, projection: Projection, progress: bool = False
) -> tuple[Tensor, Tensor]:
    """The projected ∇φ of every sample, shape (n, Σ sizes of Z), and φ, shape (n,). The model is in eval mode."""
    rows, phis = [], []
    with bar("projected gradients", len(x), progress) as advance:
        for images, labels in zip(x.split(GROUP), y.split(GROUP), strict=True):
            z = projection.zero(len(images))
            with _moved(model, projection, z):
                phi = vmap(margin_of)(model(images), labels)
            slopes = torch.autograd.grad(phi.sum(), list(z.values()))
            rows.append(torch.cat([slope.flatten(1) for slope in slopes], dim=1))
            phis.append(phi.detach())
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

    def direction(self, forget: Tensor, decay: float, damping: float, push: float = 1.0) -> Tensor:
        """M₋S⁻¹ (k·w·θ − Σ(1−p)^push ∇φ), flat, with the margin rows of what stays and the damping (n−k)λ."""
        n, k = len(self.phi), len(forget)
        ridge = (n - k) * damping
        slope = torch.zeros(n, dtype=torch.float64, device=self.phi.device)
        slope[forget] = -((-self.phi[forget]).sigmoid() ** push)  # g_S = Rᵀ slope, at push = 1
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
