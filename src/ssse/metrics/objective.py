"""L₋S and ‖∇L₋S‖: how near a model is to a minimum of the loss on the data that stays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ssse.curvature.fit import Sums
from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.batches import check_repeatable, count_samples, peek, read_batch
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike, as_loss
from ssse.problem.problem import Problem
from ssse.problem.training_mode import refuse_training_mode
from ssse.problem.view import ModelView, ParameterChoice
from ssse.rows.kinds import RowKind, measure
from ssse.system.progress import track


@dataclass(frozen=True)
class Objective:
    """L(θ) = (1/n) Σ ℓᵢ(θ) + (w/2)‖θ‖² over some samples, and the norm of its gradient in θ."""

    loss: float
    gradient_norm: float
    count: int


def objective(
    model: nn.Module,
    loss_fn: LossLike,
    data: Data,
    *,
    weight_decay: float = 0.0,
    parameters: ParameterChoice = "all",
    label_key: str | None = None,
    progress: bool = False,
) -> Objective:
    """L₋S and ‖∇L₋S‖ if the data is D∖S: the training objective on the data that stays.

    The named losses sum over a sample's outputs. The paper's Table 1 averages over attributes: divide by their
    number to compare with it. Samples with weights v count as in (1/n) Σ vᵢℓᵢ. Data and label_key: as in
    `ssse.Curvature.fit`.
    """
    if not 0 <= weight_decay < float("inf"):
        raise InvalidSetting(f"weight_decay must be zero or positive, not {weight_decay}.")
    data = as_batches(data, label_key)
    check_repeatable(data)
    as_loss(loss_fn)  # an unknown one is refused before the samples are read
    view = ModelView(model, parameters)
    refuse_training_mode(view.model)
    first, data = peek(data, view.device)
    if first is None:
        raise InvalidData("There are no samples; the objective of an empty split has no meaning.")
    problem = Problem(view.working, loss_fn, parameters, first)
    sums, kind = Sums(), RowKind("empirical")
    batches = (read_batch(batch, problem.device) for batch in data)  # as they come: these fit the memory
    for batch in track(batches, count_samples(data), "objective", progress):
        if not len(batch[1]):
            continue
        sums.add(measure(problem, kind, batch))
    theta = problem.theta().double()
    gradient = sums.checked_gradient() / sums.count + weight_decay * theta
    loss = sums.loss / sums.count + weight_decay / 2 * float(torch.dot(theta, theta))
    return Objective(loss, float(gradient.norm()), sums.count)
