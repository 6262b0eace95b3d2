"""Before the samples of a request are looked at: do its settings make sense, and is the model the curvature's?"""

from __future__ import annotations

from torch import nn

from ssse.curvature.curvature import Curvature, check_scale
from ssse.errors import InvalidSetting, ModelMismatch
from ssse.problem.losses import LossLike
from ssse.problem.problem import Problem

POLICIES = ("rebase", "joint")


def check_request(
    model: nn.Module,
    curvature: Curvature,
    loss_fn: LossLike,
    *,
    scale: float | None = None,
    leave_out: bool = True,
    residual: bool = False,
    policy: str = "rebase",
) -> tuple[Problem, float]:
    """What can be refused before the samples are looked at: settings, and a model that is not the curvature's."""
    scale = check_scale(_stored_scale(curvature, leave_out, residual) if scale is None else scale)
    _check_settings(curvature, leave_out, residual, policy)
    return matching_problem(model, curvature, loss_fn), scale


def _stored_scale(curvature: Curvature, leave_out: bool, residual: bool) -> float:
    """ε as it was calibrated, 1 if it was not; an ε is of one kind of update and wrong, severalfold, for another."""
    stored = curvature.calibrated
    if stored is None:
        return 1.0
    if (stored.leave_out, stored.residual) != (leave_out, residual):
        raise InvalidSetting(
            f"The scale {stored.scale:.3g} that is stored with this curvature was measured for leave_out="
            f"{stored.leave_out}, residual={stored.residual}, and this request has leave_out={leave_out}, "
            f"residual={residual}. Use the same, or pass a scale."
        )
    return stored.scale


def _check_settings(curvature: Curvature, leave_out: bool, residual: bool, policy: str) -> None:
    if policy not in POLICIES:
        raise InvalidSetting(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}.")
    if leave_out and curvature.kind.per_batch > 1:
        raise InvalidSetting(
            f"This curvature has one row per mini-batch of {curvature.kind.per_batch}; a sample's share of such a row "
            "cannot be subtracted. Pass leave_out=False (the paper's update), or fit with rows_per_batch=1."
        )
    if residual and curvature.gradient is None:
        raise InvalidSetting(
            "residual=True needs ∇L(θ*), which is not known after a rebase. Fit a new curvature, or use policy='joint'."
        )
    if curvature.joint is not None and curvature.joint.leave_out != leave_out:
        raise InvalidSetting(
            f"This joint stream was begun with leave_out={curvature.joint.leave_out}; its requests must stay with it."
        )
    if curvature.joint is not None and not leave_out and policy != "joint":
        raise InvalidSetting(
            "A joint stream with leave_out=False keeps the forgotten rows in its curvature, so it cannot go on as a "
            "rebased one. Stay with policy='joint', or fit a new curvature on the data that remains."
        )


def matching_problem(model: nn.Module, curvature: Curvature, loss_fn: LossLike) -> Problem:
    names = dict(model.named_parameters())
    missing = [name for name in curvature.layout.names if name not in names]
    if missing:
        raise ModelMismatch(f"The model has no parameter '{missing[0]}', which is in the curvature.")
    problem = Problem(model, loss_fn, curvature.layout.names)
    curvature.fingerprint.check(problem)
    if problem.loss.name != curvature.loss:
        raise ModelMismatch(f"The curvature is of the loss '{curvature.loss}', not of '{problem.loss.name}'.")
    for tensor in curvature.structure.state().values():
        if tensor.device != problem.device:
            raise ModelMismatch(
                f"The curvature is on {tensor.device}, the model on {problem.device}; move one of them, for instance "
                f'curvature.to("{problem.device}").'
            )
        break
    return problem
