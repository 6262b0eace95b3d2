"""SSD: shrink the parameters that matter to the forgotten samples far more than to all."""

from __future__ import annotations

import torch
from torch import nn

from ssse.baselines.update import Updated, check_positive, diagonal_of, read_request
from ssse.curvature.curvature import Curvature
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike

REFERENCE = (
    "Foster, Schoepf & Brintrup 2024, 'Fast machine unlearning without retraining through selective synaptic "
    "dampening', AAAI"
)


def selective_synaptic_dampening(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    selection: float = 10.0,
    dampening: float = 1.0,
) -> Updated:
    """Multiply by a factor below 1 every parameter whose importance lies in the forgotten samples.

    With the importances I_D = (1/n) Σ_D (∇ℓᵢ)² and I_S = (1/k) Σ_S (∇ℓᵢ)², entry by entry,

        θ̂ = min(dampening · I_D/I_S, 1) · θ     where I_S > selection · I_D,     θ̂ = θ elsewhere.

    I_D is the diagonal of the empirical Fisher matrix, so the curvature and S are enough. These are the
    paper's importances, of one sample each; the authors' code squares the gradient of a mini-batch's mean
    instead, which is smaller by up to the batch size and depends on how the loader cuts the data.
    Since I_S/I_D ≤ n/k, a selection of 10 changes nothing unless S is less than a tenth of the data.

    Args:
        curvature: with structure="diagonal", rows="empirical", rows_per_batch=1.
        selection: α of the paper. dampening: λ of the paper.
    """
    check_positive(selection, "selection")
    check_positive(dampening, "dampening")
    held, diagonal = diagonal_of(curvature, "selective_synaptic_dampening", rows="empirical")
    request = read_request(model, held, loss_fn, forget)
    of_all = diagonal.squares / held.n
    of_forgotten = request.squares(held.kind, diagonal.squares.dtype) / request.count
    chosen = of_forgotten > selection * of_all
    factor = (dampening * of_all / of_forgotten).clamp(max=1)  # 0/0 where not chosen
    theta = request.problem.theta()
    theta = torch.where(chosen, factor.to(theta.dtype) * theta, theta)
    notes = [f"{int(chosen.sum())} of {len(theta)} parameters were dampened"]
    if held.erased:
        notes.append(f"I_D was measured before {held.erased} samples were erased, at the θ of then")
    return request.answer(theta, "selective_synaptic_dampening", REFERENCE, notes=notes)
