"""IU: one step with a WoodFisher inverse, done right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssse.baselines.update import Updated, check_positive, check_whole, gradient_sum, read_request
from ssse.curvature.curvature import Curvature
from ssse.curvature.lowrank import LowRankBuilder
from ssse.errors import DoesNotFit
from ssse.problem.batches import Batch, join_batches, regroup, take_samples
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem
from ssse.problem.view import ParameterChoice
from ssse.rows.kinds import RowKind, measure_held
from ssse.system.memory import human_bytes, spare_memory

REFERENCE = (
    "Izzo et al. 2021, 'Approximate data deletion'; Jia et al. 2023, 'Model sparsity can simplify machine unlearning'; "
    "Singh & Alistarh 2020, 'WoodFisher'"
)
GROUP = 64  # per-sample gradients formed at a time


def influence_unlearning(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    data: Data,
    scale: float = 1.0,
    samples: int = 1000,
    damping: float = 1.0,
    seed: int = 0,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
) -> Updated:
    """The one-shot influence step of the unlearning literature, with the empirical Fisher matrix of N samples.

        v = (1/n) Σ_S ∇ℓᵢ − k/(n(n−k)) Σ_{D∖S} ∇ℓᵢ
        F = λI + (1/N) Σ_{i∈T} ∇ℓᵢ∇ℓᵢᵀ,     T ⊂ D∖S of N samples, drawn without replacement
        θ̂ = θ + ε · F⁻¹ v

    v is the difference of the mean gradient over D and that over D∖S; at a stationary point, also of a
    loss with weight decay, it is g_S/(n−k). F⁻¹v is exact, in the dual form: one N×N system.

    The version of this step that others publish does not invert F. WoodFisher's recurrence needs
    oᵢ = Fᵢ₋₁⁻¹∇ℓᵢ anew for every sample; in those programs `o_vec` is set to the first gradient and from
    then on only rescaled, o ← (1 − o·∇ℓᵢ/(N + o·∇ℓᵢ))·o, so that it never gets another direction. After
    any number of samples the result is v plus a multiple of the first gradient.

    Args:
        curvature: only to say which parameters are in θ; None will do.
        data: the training data, the forgotten samples among it; read once and held.
        samples: N, or all that remain where those are fewer. seed: of the draw.
        damping: λ; 1 in those programs. parameters, label_key: θ, and where labels are, where no curvature says.
    """
    check_positive(scale, "scale")
    check_positive(damping, "damping")
    check_whole(samples, "samples")
    request = read_request(model, curvature, loss_fn, forget, parameters, label_key)
    problem, k = request.problem, request.count
    kept, n = request.retained(data)
    v = gradient_sum(problem, request.batches) / n - k / (n * (n - k)) * gradient_sum(problem, kept)
    drawn = min(samples, n - k)
    _check_memory(problem, drawn)
    direction = _solve(problem, _draw(kept, drawn, seed), drawn, damping, v)
    theta = problem.theta() + scale * direction
    notes = [f"F from {drawn} of the {n - k} samples that remain"]
    return request.answer(theta, "influence_unlearning", REFERENCE, direction=direction, notes=notes)


def _draw(kept: list[Batch], count: int, seed: int) -> Batch:
    whole = join_batches(kept)
    order = torch.randperm(len(whole[1]), generator=torch.Generator().manual_seed(seed))
    return take_samples(whole, order[:count].to(whole[1].device))


def _solve(problem: Problem, chosen: Batch, count: int, damping: float, v: Tensor) -> Tensor:
    """F⁻¹v = N (GᵀG + NλI)⁻¹ v, with the gradients as the rows G."""
    builder = LowRankBuilder()
    for batch in regroup([chosen], GROUP):
        builder.add(measure_held(problem, RowKind("empirical"), batch)[0])
    return count * builder.build(count * damping).solve(v)


def _check_memory(problem: Problem, count: int) -> None:
    """The gradients of a linear model are not formed, those of a network are, and once more to join them."""
    if problem.linear is not None:
        return
    needed = 2 * count * problem.layout.dim * (torch.finfo(problem.dtype).bits // 8)
    budget = spare_memory(problem.device)
    if needed > budget:
        raise DoesNotFit(
            f"The gradients of {count} samples need {human_bytes(needed)}, of {human_bytes(budget)} that are free. "
            "Use fewer samples."
        )
