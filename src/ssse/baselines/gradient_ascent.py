"""One step up the loss of the forgotten samples: SSSE with the identity for its curvature."""

from __future__ import annotations

from torch import nn

from ssse.baselines.update import Updated, check_positive, decay_of, forget_gradient, read_request
from ssse.curvature.curvature import Curvature
from ssse.problem.loaders import Data
from ssse.problem.losses import LossLike
from ssse.problem.view import ParameterChoice

REFERENCE = (
    "Peste et al. 2021, SSSE, Fig. 6; Graves et al. 2021, 'Amnesiac machine learning'; "
    "Thudi et al. 2022, 'Unrolling SGD'"
)


def gradient_ascent(
    model: nn.Module,
    curvature: Curvature | None,
    loss_fn: LossLike,
    forget: Data,
    *,
    scale: float = 0.1,
    weight_decay: float | None = None,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
) -> Updated:
    """Move against the forgotten samples along their mean gradient.

        θ̂ = θ + scale · (1/k) Σ_{i∈S} (∇ℓᵢ(θ) + wθ)

    This is `ssse.erase(leave_out=False)` with a curvature that is the same number c in every direction,
    at scale = ε·nk / ((n−k)·(c + nλ)). The SSSE paper compares with it in its Figure 6; amnesiac learning
    (Graves et al. 2021) and unrolled SGD (Thudi et al. 2022) add back gradients in the same way.

    Args:
        scale: the learning rate. None is right for all models; the default only keeps small steps small.
        weight_decay: w; that of the curvature if not given, else 0. Nothing else of the curvature is used.
        parameters, label_key: θ, and where labels are, where no curvature says.
    """
    check_positive(scale, "scale")
    decay = decay_of(curvature, weight_decay)
    request = read_request(model, curvature, loss_fn, forget, parameters, label_key)
    direction = forget_gradient(request, decay) / request.count
    theta = request.problem.theta() + scale * direction
    return request.answer(theta, "gradient_ascent", REFERENCE, direction=direction)
