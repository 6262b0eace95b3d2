"""The samples to forget, read and checked: by `ssse.erase` and by the methods that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ssse.curvature.curvature import Curvature
from ssse.curvature.settings import check_scale
from ssse.erasure.policy import check_policy
from ssse.errors import InvalidData, InvalidSetting, ModelMismatch
from ssse.problem.batches import Batch, check_repeatable, read_batch, regroup
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import NAMED, Loss, LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.sample_counts import count_at_hand
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView
from ssse.problem.working import Working
from ssse.problem.wrappers import aliases


@dataclass(frozen=True)
class Samples:
    """Not empty, in batches of the size that we work in."""

    batches: list[Batch]
    count: int


def read_samples(
    forget: Data | None,
    device: torch.device,
    curvature: Curvature | None,
    group: int,
    label_key: str | None = None,
) -> Samples:
    """The samples to forget, on the device. `label_key`: as in `Curvature.fit`, where no curvature says.

    Raises:
        InvalidData: there are none, or as many as the curvature stands for.
    """
    if forget is None:
        raise InvalidSetting("Pass the samples to forget: forget=batches.")
    forget = as_batches(forget, label_key if curvature is None else curvature.label_key)
    check_repeatable(forget)
    batches = [batch for batch in (read_batch(b, device) for b in forget) if len(batch[1])]
    if not batches:
        raise InvalidData("The forget set is empty; there is nothing to erase.")
    count = sum(len(y) for _, y in batches)
    if curvature is not None and count >= curvature.n:
        raise InvalidData(
            f"The forget set has {count} samples and the curvature stands for {curvature.n}; something must remain."
        )
    if curvature is not None and curvature.repeats is not None:
        repeats = count_at_hand(batches).repeats
        if repeats > curvature.repeats:
            raise InvalidData(
                f"{repeats} of the {count} samples to forget repeat another one, in inputs and label, and of the "
                f"training data {curvature.repeats or 'none'} did. Name each sample as often as it was trained on."
            )
    return Samples(list(regroup(batches, group)), count)


def read_matching(
    view: ModelView, curvature: Curvature, loss_fn: LossLike | None, forget: Data | None
) -> tuple[Problem, Samples]:
    """The problem that the curvature is of, and the samples; a named loss need not be given again."""
    loss = matching_loss(curvature, loss_fn)
    samples = read_samples(forget, view.device, curvature, curvature.group)
    problem = Problem(view.working, loss, curvature.layout.names, samples.batches[0])
    check_form(curvature, problem)
    return problem, samples


def check_form(curvature: Curvature, problem: Problem) -> None:
    """Samples that counted w times must not go, or stay, as if they had counted once; nor with other labels."""
    if problem.soft != curvature.soft:
        then, now = ("class probabilities", "class indices") if curvature.soft else ("class indices", "probabilities")
        raise InvalidData(
            f"The curvature was fitted on samples with {then} for labels, and these have {now}: pass them as they were "
            "then."
        )
    if curvature.weighted and not problem.weighted:
        raise InvalidData(
            "The curvature was fitted on samples with weights, and these have none: pass them as they were then, "
            "(x, y, weight)."
        )
    if problem.weighted and not curvature.weighted:
        raise InvalidData(
            "The curvature was fitted on samples without weights, and these have some: pass them as they were then, "
            "(x, y), or fit with the weights."
        )


def matching_loss(curvature: Curvature, loss_fn: LossLike | None) -> Loss:
    if loss_fn is None and curvature.loss not in NAMED:
        raise InvalidSetting(f"The curvature is of a loss of your own, '{curvature.loss}': pass it as loss_fn.")
    loss = as_loss(curvature.loss if loss_fn is None else loss_fn)
    if loss.name != curvature.loss:
        raise ModelMismatch(f"The curvature is of the loss '{curvature.loss}', not of '{loss.name}'.")
    return loss


def matching_view(model: nn.Module, curvature: Curvature) -> ModelView:
    """The model, if it is the one that the curvature is of: this is where it is hashed.

    Raises:
        ModelMismatch: the model or its device is not the curvature's.
    """
    working = Working.of(model)
    refuse_training_mode(working.model)
    called = aliases(working.given, working.inner)
    missing = [name for name in curvature.layout.names if name not in called and name not in called.values()]
    if missing:
        raise ModelMismatch(f"The model has no parameter '{missing[0]}', which is in the curvature.")
    view = ModelView(working, curvature.layout.names)
    curvature.fingerprint.check(view)
    for tensor in curvature.structure.state().values():
        if tensor.device != view.device:
            raise ModelMismatch(
                f"The curvature is on {tensor.device}, the model on {view.device}; move one of them, for instance "
                f'curvature.to("{view.device}").'
            )
        break
    return view


def check_settings(curvature: Curvature, *, scale: float | None, leave_out: bool, residual: bool, policy: str) -> float:
    """What can be refused before the samples are looked at. Returns ε."""
    check_policy(policy)
    scale = check_scale(_stored_scale(curvature, leave_out, residual) if scale is None else scale)
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
    return scale


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
