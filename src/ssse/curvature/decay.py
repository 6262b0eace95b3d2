"""The weight decay that the model was trained with, as its gradient tells it: at a minimum ∇ℓ̄ + wθ = 0.

A wrong one is the most usual mistake, and makes every step wrong: it is taken for curvature (λ) and for slope.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssse.problem.losses import NAMED
from ssse.problem.parameters import Layout
from ssse.problem.token_losses import TOKEN_LOSSES

# Measured on models trained by SGD, Adam and L-BFGS: mini-batches leave a gradient nearly orthogonal to θ, so that ŵ is
# right to 20 % even where it explains little; what training has not finished makes it too large, and never too small.
MATTERS = 1.5  # a factor
ROUNDING = 1e-12  # a weight decay that no training has
EXPLAINED = 0.3  # of ‖∇ℓ̄‖ may be left where ŵ is to be believed, whatever it is
CERTAIN = 3.0  # standard errors below, where it is to be believed to be smaller
NEAR = 0.15  # relative, of a ratio that has a usual cause


@dataclass(frozen=True)
class DecayEstimate:
    """ŵ = −⟨∇ℓ̄, θ⟩/‖θ‖².

    Attributes:
        residual: ‖∇ℓ̄ + ŵθ‖/‖∇ℓ̄‖, what it does not explain. noise: the same over ‖θ‖, to compare with a weight decay.
        error: the standard error of ŵ, were that noise in any direction.
        weights_only: whether biases and the like were left out, which explains more.
        last: ŵ of the last matrix in θ alone, mostly the head; None where it is the only one.
    """

    value: float
    residual: float
    noise: float
    error: float
    weights_only: bool
    last: float | None = None

    @property
    def told(self) -> float:
        """The decay to name to somebody: never below zero, and the head's where a norm hides that of the others."""
        hidden = self.last if self.residual > EXPLAINED else None
        return max(self.value, hidden or 0.0, 0.0)

    def contradicts(self, given: float) -> bool:
        """Whether the model cannot have been trained with the weight decay that was given."""
        if self.value >= given:
            return self.residual <= EXPLAINED and self.value > MATTERS * max(given, ROUNDING)
        # Of a model that was trained at all: the decay given would pull harder than all that holds against it.
        # Weights whose scale a norm takes out again have a gradient orthogonal to them, whatever the decay, and only
        # lower ŵ: then the head has to say so too, for its scale is what makes a network sure.
        trained = self.noise <= given and self.value >= -CERTAIN * self.error
        below = self.value + CERTAIN * self.error < given / MATTERS
        return trained and below and (self.last is None or self.last < given / MATTERS)


@dataclass(frozen=True)
class Circumstances:
    """What a factor between two weight decays may come from: samples, outputs, the loss, its mean class weight."""

    n: int
    outputs: int
    loss: str
    mean_weight: float | None


def estimate_decay(gradient: Tensor, theta: Tensor, layout: Layout) -> DecayEstimate | None:
    """From ∇ℓ̄ without any weight decay; None where there is no direction to tell it from."""
    gradient, theta, sizes = gradient.double(), theta.double(), layout.sizes
    last = _of_last_matrix(gradient, theta, layout)
    weights = torch.cat([torch.full((size,), len(shape) > 1) for size, shape in zip(sizes, layout.shapes, strict=True)])
    whole = _estimate(gradient, theta, False)
    if whole is None:
        return None
    whole = replace(whole, last=last)
    if whole.residual <= EXPLAINED or bool(weights.all()) or not bool(weights.any()):
        return whole
    part = _estimate(gradient, theta * weights.to(theta.device), True)
    return replace(part, last=last) if part is not None and part.residual <= EXPLAINED else whole


def _of_last_matrix(gradient: Tensor, theta: Tensor, layout: Layout) -> float | None:
    starts = [0, *itertools.accumulate(layout.sizes)]
    matrices = [slice(starts[i], starts[i + 1]) for i, shape in enumerate(layout.shapes) if len(shape) > 1]
    if len(matrices) < 2:
        return None
    found = _estimate(gradient[matrices[-1]], theta[matrices[-1]], True)
    return None if found is None else found.value


def _estimate(gradient: Tensor, theta: Tensor, weights_only: bool) -> DecayEstimate | None:
    square, norm = float(theta @ theta), float(gradient.norm())
    if square == 0 or norm == 0:
        return None
    value = -float(gradient @ theta) / square
    left = float((gradient + value * theta).norm())
    freedom = max(int((theta != 0).sum()) - 1, 1)
    noise = left / square**0.5
    return DecayEstimate(value, left / norm, noise, noise / freedom**0.5, weights_only)


def as_setting(decay: float) -> str:
    """For a sentence on how to fit again: without any decay there must be a damping, which is its default."""
    if decay <= ROUNDING:
        return "weight_decay=0 and a small damping of your own, if the model was trained to the end without any"
    return f"weight_decay={decay:.3g}"


def note_on_decay(found: DecayEstimate, given: float, around: Circumstances) -> str:
    """A sentence for somebody who gave another one; its cause, as far as the ratio tells."""
    value = f"{found.told:.3g}"
    where = " of the weights alone, without biases" if found.weights_only else ""
    if found.residual <= EXPLAINED:
        told = (
            f"θ* is stationary for a weight decay of {value}{where}, and not for the {given:.3g} given: it explains "
            f"{1 - found.residual**2:.1%} of ‖∇ℓ̄‖²."
        )
    else:
        told = f"The gradient at θ* speaks for a weight decay of about {value}{where}, far below the {given:.3g} given."
    cause = _cause(found, given, around)
    return f"{told}{f' {cause}' if cause else ''} Is weight_decay={value} what the training amounts to?"


def _cause(found: DecayEstimate, given: float, around: Circumstances) -> str:
    if given == 0:
        return "None was given."
    ratio, c, n = found.told / given, around.outputs, around.n
    averages = "torch's own averages over the outputs, this one sums over them"
    sums = "this one averages over the outputs, a sum over them was trained with"
    causes: list[tuple[float, str]] = [
        (1 / n, f"The loss was summed over the {n} samples, and not averaged: divide the weight decay by n."),
        (n, f"It was divided by n = {n}, and the training averaged the loss already."),
        (2.0, "The penalty was w‖θ‖², and not (w/2)‖θ‖²: give twice as much."),
    ]
    if around.loss == "mse":
        causes.append((c / 2, f"The loss was scaled by the number of outputs, {c}: torch's own is 2/c of this one."))
    elif around.loss == "binary_cross_entropy" and c > 1:
        causes.append((c, f"The loss was scaled by the number of attributes, {c}: {averages}."))
    elif around.loss not in NAMED and c > 1:
        causes.append((1 / c, f"The loss was scaled by the number of outputs, {c}: {sums}."))
    if around.mean_weight is not None:
        weight = around.mean_weight
        mean = f"A mean with class weights divides by their mean, {weight:.4g} over these samples."
        if around.loss in TOKEN_LOSSES:
            mean = (
                f"The training took the mean over all tokens of a batch, and '{around.loss}' is a sequence's sum: "
                f"multiply the weight decay by the mean number of labels, {weight:.4g}."
            )
        causes.append((weight, mean))
    near = min(max(NEAR, found.error / max(found.told, 1e-300)), 2 * NEAR)
    fitting = sorted((abs(ratio / usual - 1), text) for usual, text in causes if abs(ratio / usual - 1) <= near)
    if fitting:
        return f"{fitting[0][1]} (The ratio is {ratio:.3g}.)"
    if found.told <= CERTAIN * found.error:
        return (
            "AdamW decouples the decay from the loss, a loss summed over batches outweighs it, and some models are "
            "trained without any."
        )
    size = f", as of batches of {1 / ratio:.0f} samples" if 1.5 < 1 / ratio <= n else ""
    return (
        f"The ratio is {ratio:.3g}: a loss that was summed and not averaged{size}, one scaled by class weights or by "
        "the number of outputs, or AdamW, whose decay is decoupled from the loss and no constant multiple of this one?"
    )
