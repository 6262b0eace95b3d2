"""Influence functions: one Newton step with the true Hessian of the training loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ssse.baselines.update import Updated, check_positive, check_whole, decay_of, forget_gradient, read_request
from ssse.curvature.conjugate_gradients import conjugate_gradients, usual_tolerance
from ssse.curvature.curvature import Curvature
from ssse.curvature.settings import check_damping
from ssse.errors import InvalidSetting, NotPositiveDefinite
from ssse.problem.batches import Batch
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem
from ssse.problem.view import ParameterChoice

REFERENCE = (
    "Koh & Liang 2017, 'Understanding black-box predictions via influence functions'; Guo et al. 2020, "
    "'Certified data removal'; Cook & Weisberg 1982"
)


def influence(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    leave_out: bool = False,
    scale: float = 1.0,
    damping: float | None = None,
    weight_decay: float | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
) -> Updated:
    """The step of a Newton method towards the minimum without S, solved by conjugate gradients.

    With g_S = Σ_{i∈S} (∇ℓᵢ(θ) + wθ) and ε the scale,

        θ̂ = θ + ε · n/(n−k) · (Σ_D ∇²ℓᵢ + nλI)⁻¹ g_S       leave_out=False, Koh & Liang
        θ̂ = θ + ε · (Σ_{D∖S} ∇²ℓᵢ + (n−k)λI)⁻¹ g_S          leave_out=True, Guo et al.'s Newton step

    A product with the Hessian is one double backward pass over the data. On a model linear in θ the
    Hessian is the Gauss–Newton matrix, so leave_out=True is `ssse.erase` with rows="expected" in one block.

    Args:
        data: the training data, the forgotten samples among it; read once and held.
        damping: λ; that of the curvature if there is one, else the weight decay.
        weight_decay: w; that of the curvature if not given, else 0.
        tolerance: ‖g_S − Ax‖/‖g_S‖ to stop at; 1e-10 in float64, 1e-4 else. max_iterations: to stop after.
        parameters, label_key: θ, and where labels are, where no curvature says.

    Raises:
        NotPositiveDefinite: conjugate gradients met a direction of negative curvature, as they may on a
            network; what they return would then be no solution.
    """
    check_positive(scale, "scale")
    check_whole(max_iterations, "max_iterations")
    if tolerance is not None and not 0 < tolerance < 1:
        raise InvalidSetting(f"tolerance is a relative residual between 0 and 1, not {tolerance}.")
    decay = decay_of(curvature, weight_decay)
    asked = curvature.damping if damping is None and curvature is not None else damping
    strength = check_damping(asked, decay)
    request = read_request(model, curvature, loss_fn, forget, parameters, label_key)
    problem = request.problem
    kept, n = request.retained(data)
    seen = kept if leave_out else [*kept, *request.batches]
    right = forget_gradient(request, decay)
    precision = tolerance or usual_tolerance(problem.dtype)
    count = n - request.count if leave_out else n
    solution, note = _solve(problem, seen, count, strength, right, precision, max_iterations)
    direction = solution if leave_out else n / (n - request.count) * solution
    theta = problem.theta() + scale * direction
    return request.answer(theta, "influence", REFERENCE, direction=direction, notes=(note,))


def hessian_product(problem: Problem, batches: Sequence[Batch], v: Tensor) -> Tensor:
    """Σ ∇²ℓᵢ(θ) v, in float64: ∇(vᵀ∇ℓ) by differentiating twice."""
    leaves = {name: value.clone().requires_grad_() for name, value in problem.parameters().items()}
    along = problem.layout.unflatten(v.to(problem.dtype))
    total = torch.zeros_like(v, dtype=torch.float64)
    inputs = [leaves[name] for name in problem.layout.names]
    for x, y in batches:
        problem.check_labels(y)
        with torch.enable_grad():
            loss = problem.loss.values(problem.call(leaves, x), y).sum()
            slopes = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
            inner = sum((s * along[name]).sum() for name, s in zip(problem.layout.names, slopes, strict=True))
        assert isinstance(inner, Tensor)
        if inner.requires_grad:  # else the loss is linear in θ, and its Hessian zero
            curved = torch.autograd.grad(inner, inputs, materialize_grads=True)
            total += problem.layout.flatten(dict(zip(problem.layout.names, curved, strict=True)))
    return total


def _solve(
    problem: Problem, batches: Sequence[Batch], n: int, damping: float, right: Tensor, tolerance: float, limit: int
) -> tuple[Tensor, str]:
    """A⁻¹ right with A = Σ∇²ℓ + nλI over n samples; vectors in float64, products in the model's own precision."""
    steps = 0

    def product(p: Tensor) -> Tensor:
        return hessian_product(problem, batches, p) + n * damping * p

    def refuse_negative(p: Tensor, curvature: float) -> None:
        """What conjugate gradients return where pᵀAp is not positive is no solution."""
        nonlocal steps
        steps += 1
        per_sample = curvature / float(p @ p) / n
        if not per_sample > 0:
            raise NotPositiveDefinite(
                f"The damped Hessian is not positive definite: in step {steps} conjugate gradients met a direction "
                f"with curvature {per_sample:.4g} a sample, damping {damping:.4g} included. Use a damping above "
                f"{damping - per_sample:.4g}, or ssse.erase with rows='expected', structure='matrix_free', whose "
                "Gauss–Newton matrix cannot be indefinite."
            )

    solved = conjugate_gradients(
        product, right.double(), tolerance=tolerance, max_iterations=limit, observe=refuse_negative
    )
    repair = "" if solved.converged else ": raise max_iterations or the damping"
    return solved.x.to(right), f"{solved}{repair}"
