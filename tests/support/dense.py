"""The readable O(d³) truth that every fast path is tested against: plain loops, float64, no cleverness."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "binary_cross_entropy": lambda z, y: F.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="sum"),
    "mse": lambda z, y: 0.5 * ((z - y) ** 2).sum(),
}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors]).detach()


def theta(model: nn.Module) -> Tensor:
    return flat(trainable(model))  # type: ignore[arg-type]


def gradient(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return flat(torch.autograd.grad(loss(model(x), y), trainable(model)))


def jacobian_of_one(model: nn.Module, x: Tensor) -> Tensor:
    z = model(x[None])[0]
    return torch.stack([flat(torch.autograd.grad(zc, trainable(model), retain_graph=True)) for zc in z])


def softmax_minimum(x: Tensor, y: Tensor, classes: int, decay: float) -> Tensor:
    """Weights (classes × features) that minimise the mean cross-entropy plus (decay/2)‖W‖², by damped Newton steps."""
    n, p = x.shape
    hot, weights = F.one_hot(y, classes).to(x), x.new_zeros(classes, p)

    def objective(w: Tensor) -> float:
        return float(F.cross_entropy(x @ w.T, y) + decay / 2 * (w**2).sum())

    for _ in range(100):
        chance = (x @ weights.T).softmax(1)
        slope = ((chance - hot).T @ x / n + decay * weights).reshape(-1)
        hessian = decay * torch.eye(classes * p, dtype=x.dtype)
        for a in range(classes):
            for b in range(classes):
                weight = chance[:, a] * ((a == b) * 1.0 - chance[:, b])
                hessian[a * p : (a + 1) * p, b * p : (b + 1) * p] += x.T @ (weight[:, None] * x) / n
        step = -torch.linalg.solve(hessian, slope)
        fall, length, here = float(slope @ step), 1.0, objective(weights)
        if -fall < 1e-22:
            return weights + step.view_as(weights)
        while objective(weights + length * step.view_as(weights)) > here + 1e-4 * length * fall + 1e-15 * here:
            length /= 2
        weights = weights + length * step.view_as(weights)
    raise AssertionError("no minimum was reached")


def empirical_rows(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([gradient(model, LOSSES[loss], x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


def expected_rows(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    rows = []
    for i in range(len(x)):
        z, jacobian = model(x[i : i + 1])[0].detach(), jacobian_of_one(model, x[i])
        if loss == "cross_entropy":
            p = z.softmax(0)
            mean = sum(p[j] * jacobian[j] for j in range(len(p)))
            rows += [p[c].sqrt() * (jacobian[c] - mean) for c in range(len(p))]
        elif loss == "binary_cross_entropy":
            p = z.sigmoid()
            rows += [(p[a] * (1 - p[a])).sqrt() * jacobian[a] for a in range(len(p))]
        else:
            rows += list(jacobian)
    return torch.stack(rows)


def margin_rows(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    """√(p(1−p))∇φ for each margin φ of each sample, where the loss is Σ log(1 + e^−φ)."""
    rows = []
    for i in range(len(x)):
        z = model(x[i : i + 1])[0]
        if loss == "cross_entropy":
            others = [j for j in range(len(z)) if j != int(y[i])]
            margins = [z[y[i]] - z[others].exp().sum().log()]
        else:
            margins = [z[a] if y[i, a] == 1 else -z[a] for a in range(len(z))]
        for phi in margins:
            p = phi.detach().sigmoid()
            slope = flat(torch.autograd.grad(phi, trainable(model), retain_graph=True))
            rows.append((p * (1 - p)).sqrt() * slope)
    return torch.stack(rows)


ROWS = {"empirical": empirical_rows, "expected": expected_rows, "margin": margin_rows}


def gram(rows: Tensor, n: int, damping: float) -> Tensor:
    """C = λI + RᵀR/n."""
    return damping * torch.eye(rows.shape[1], dtype=rows.dtype) + rows.T @ rows / n


def keep_blocks(matrix: Tensor, blocks: list[list[int]]) -> Tensor:
    """Zero outside the diagonal blocks."""
    out = torch.zeros_like(matrix)
    for block in blocks:
        index = torch.tensor(block)
        out[index[:, None], index[None, :]] = matrix[index[:, None], index[None, :]]
    return out


def erased(
    model: nn.Module,
    loss: str,
    rows_all: Tensor,
    rows_forget: Tensor,
    forget: tuple[Tensor, Tensor],
    n: int,
    damping: float,
    weight_decay: float,
    scale: float = 1.0,
    leave_out: bool = True,
) -> Tensor:
    """θ̂, by forming and inverting everything."""
    x, y = forget
    k, start = len(x), theta(model)
    g = gradient(model, LOSSES[loss], x, y) + k * weight_decay * start
    m, eye = rows_all.T @ rows_all, torch.eye(len(start), dtype=start.dtype)
    if leave_out:
        return start + scale * torch.linalg.solve(m - rows_forget.T @ rows_forget + (n - k) * damping * eye, g)
    return start + scale * n / (n - k) * torch.linalg.solve(m + n * damping * eye, g)
