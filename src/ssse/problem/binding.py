"""A loss, as the outputs and the labels of a model need it."""

from __future__ import annotations

from torch import Tensor

from ssse.errors import InvalidModel
from ssse.problem.labels import Labels, WeightedLabels, label_values
from ssse.problem.loss import Loss
from ssse.problem.losses import NAMED, CrossEntropy, CustomLoss
from ssse.problem.soft_labels import SoftCrossEntropy, are_probabilities
from ssse.problem.token_losses import TokenLoss
from ssse.problem.weighted_loss import WeightedLoss, unweighted


def bind_loss(loss: Loss, output: Tensor, y: Labels) -> Loss:
    """The loss for outputs as the model gives them, shape (n, …), and labels like these: soft, weighted, or neither."""
    bound = _bind(unweighted(loss), output, label_values(y))
    return WeightedLoss(bound) if isinstance(y, WeightedLabels) else bound


def _bind(loss: Loss, output: Tensor, y: Tensor) -> Loss:
    if isinstance(loss, CustomLoss):
        return CustomLoss(loss.function, tuple(output.shape[1:]))
    if isinstance(loss, TokenLoss):
        return loss.bound(tuple(output.shape), y)
    if output.dim() > 2:
        by_token = " For a label a token pass 'causal_lm' or 'token_cross_entropy', else"
        instead = by_token if output.dim() == 3 else " Pass"
        raise InvalidModel(
            f"The named loss '{loss.name}' needs outputs of shape (samples, outputs); the model returns "
            f"{tuple(output.shape)}.{instead} a loss function of your own."
        )
    if isinstance(loss, CrossEntropy):
        return SoftCrossEntropy() if are_probabilities(y, output.shape) else NAMED["cross_entropy"]
    return loss
