"""The losses by name, and those of the user's own; what each of them has to know is in `loss.py`.

The named losses are negative log-likelihoods of one sample: summed over outputs, not averaged. Those of sequences
are in `token_losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

from ssse.errors import InvalidData, InvalidSetting
from ssse.problem.cores import Cores, DiagonalCores
from ssse.problem.loss import Loss, Margins, Response
from ssse.problem.softmax_cores import SoftmaxCores
from ssse.problem.token_losses import TOKEN_LOSSES
from ssse.system.digests import digest_bytes

LossLike = str | Callable[[Tensor, Tensor], Tensor]


class CrossEntropy(Loss):
    """Softmax: ℓ = −log p_y, y a class index. (Of class probabilities: `SoftCrossEntropy`.)"""

    name = "cross_entropy"
    response: Response = "softmax"
    one_margin = True

    def check(self, y: Tensor, shape: torch.Size) -> None:
        if y.is_floating_point() or y.dim() != 1:
            raise InvalidData(
                f"cross_entropy needs one integer class index a sample, shape ({shape[0]},); got {y.dtype} of shape "
                f"{tuple(y.shape)}. {instead_of_indices(y, shape)}"
            )
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= shape[1]:
            raise InvalidData(
                f"Labels must lie in 0 … {shape[1] - 1}, the model's {shape[1]} outputs; found {low} … {high}."
            )

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y.long(), reduction="none")

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return z.softmax(1) - F.one_hot(y.long(), z.shape[1]).to(z.dtype)

    def factor(self, z: Tensor, y: Tensor) -> Tensor:
        return self.cores(z, y).dense()

    def cores(self, z: Tensor, y: Tensor) -> Cores:
        return SoftmaxCores(z.softmax(1))

    def core_numbers(self, outputs: int) -> int:
        return outputs

    def sampled(self, z: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
        p = z.softmax(1)
        drawn = (p.cumsum(1) < uniform[:, :1]).sum(1).clamp(max=z.shape[1] - 1)
        return p - F.one_hot(drawn, z.shape[1]).to(z.dtype)

    def draws(self, outputs: int) -> int:
        return 1

    def margins(self, outputs: int) -> int:
        return 1

    def margin(self, z: Tensor, y: Tensor) -> Margins:
        """φ = z_y − log Σ_{j≠y} e^{z_j}, so that p_y = σ(φ), and e_y − softmax of the others."""
        label = torch.arange(z.shape[1], device=z.device) == y.long()[:, None]
        others = z.masked_fill(label, -math.inf)  # never 1 − p_y, which is rounding alone where p_y is near 1
        phi = (z.masked_fill(~label, 0).sum(1) - others.logsumexp(1)).unsqueeze(1)
        if z.shape[1] == 1:  # p = 1 whatever z: φ is infinite and nothing moves it
            return Margins(phi, torch.zeros_like(z).unsqueeze(1))
        return Margins(phi, (label.to(z.dtype) - others.softmax(1)).unsqueeze(1))


class BinaryCrossEntropy(Loss):
    """Independent logistic attributes on logits: ℓ = −Σ_a log p(y_a), y ∈ {0, 1} per attribute."""

    name = "binary_cross_entropy"
    response: Response = "logistic"
    coupled = False

    def check(self, y: Tensor, shape: torch.Size) -> None:
        _check_same_shape(shape, y, "0/1 value")
        if not bool(((y == 0) | (y == 1)).all()):
            raise InvalidData(
                f"binary_cross_entropy needs labels 0 or 1; found values from {float(y.min()):g} to "
                f"{float(y.max()):g}. For class indices use the loss 'cross_entropy'."
            )

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        target = _like(z, y)
        return F.binary_cross_entropy_with_logits(z, target, reduction="none").sum(1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return z.sigmoid() - _like(z, y)

    def factor(self, z: Tensor, y: Tensor) -> Tensor:
        return self.cores(z, y).dense()

    def cores(self, z: Tensor, y: Tensor) -> Cores:
        return DiagonalCores((z.sigmoid() * (-z).sigmoid()).sqrt())

    def core_numbers(self, outputs: int) -> int:
        return outputs

    def sampled(self, z: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
        p = z.sigmoid()
        return p - (uniform < p).to(z.dtype)

    def margins(self, outputs: int) -> int:
        return outputs

    def margin(self, z: Tensor, y: Tensor) -> Margins:
        """±z of every attribute: nothing is left to linearise, and margin rows are the expected ones up to sign."""
        sign = 2 * _like(z, y) - 1
        return Margins(sign * z, sign.unsqueeze(2))


class SquaredError(Loss):
    """ℓ = ½‖z − y‖², the negative log-likelihood of a unit Gaussian (F.mse_loss is 2/c of this)."""

    name = "mse"
    response: Response = "constant"
    coupled = False

    def check(self, y: Tensor, shape: torch.Size) -> None:
        _check_same_shape(shape, y, "number")
        if not bool(torch.isfinite(y).all()):
            raise InvalidData("A target is NaN or infinite. Remove or repair that sample.")

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (z - _like(z, y)).square().sum(1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return z - _like(z, y)

    def factor(self, z: Tensor, y: Tensor) -> Tensor:
        return self.cores(z, y).dense()

    def cores(self, z: Tensor, y: Tensor) -> Cores:
        return DiagonalCores(torch.ones_like(z))

    def core_numbers(self, outputs: int) -> int:
        return outputs

    def sampled(self, z: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
        # z − y with y ~ N(z, 1): minus a standard normal, by its inverse distribution function.
        tiny = torch.finfo(uniform.dtype).eps
        return -torch.special.ndtri(uniform.clamp(tiny, 1 - tiny))


class CustomLoss(Loss):
    """The user's own function of (model(x), y), differentiated by torch.func on batches of one."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...] | None = None):
        self.function = function
        self.shape = shape  # of one sample's output, as the user's function expects it
        name = getattr(function, "__qualname__", type(function).__qualname__)
        # A loss module's settings (reduction and the like) are part of which loss it is.
        public = [(k, v) for k, v in getattr(function, "__dict__", {}).items() if k[0] != "_" and k != "training"]
        settings = ", ".join(f"{k}={v}" for k, v in public if isinstance(v, (str, int, float)))
        if isinstance(function, nn.Module):
            settings += "".join(f", {k}:{_short_digest(v)}" for k, v in function.state_dict().items())
        self.name: str = f"custom:{name}" + (f"({settings})" if settings else "")
        self.response: Response = _response_of(function)

    def _of_one(self, z: Tensor, y: Tensor) -> Tensor:
        output = z if self.shape is None else z.view(self.shape)
        value = self.function(output[None], y[None])
        if not isinstance(value, Tensor):
            raise InvalidSetting(f"The loss {self.name} must return a tensor, not a {type(value).__name__}.")
        return value.sum()  # a mean or a sum over one sample is the sample; check_batch sees to it

    def check(self, y: Tensor, shape: torch.Size) -> None:
        """What labels may be, only the user's function knows; but for those of torch that compare entry by entry.

        (n, 1) with (n,) they refuse, or broadcast to (n, n).
        """
        output = (len(y), *(shape[1:] if self.shape is None else self.shape))
        if not isinstance(self.function, nn.BCEWithLogitsLoss | nn.MSELoss) or output == y.shape:
            return
        column = "y[:, None].float()" if output[1:] == (1,) else "one number an output"
        named = "binary_cross_entropy" if isinstance(self.function, nn.BCEWithLogitsLoss) else "mse"
        raise InvalidData(
            f"{type(self.function).__name__} needs labels of the outputs' shape {output}; got {tuple(y.shape)}. Pass "
            f"{column}, or use the loss '{named}', which takes them and sums over a sample's outputs."
        )

    def class_weights(self, y: Tensor) -> Tensor | None:
        function = self.function
        if not isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss) or function.weight is None:
            return None
        return None if y.is_floating_point() or y.dim() != 1 else function.weight.detach().to(y.device)[y.long()]

    @torch.no_grad()
    def check_batch(self, z: Tensor, y: Tensor) -> None:
        """Raise where the loss of a batch is not the sum or the mean of its samples' losses."""
        output = z if self.shape is None else z.view(len(z), *self.shape)
        whole, each = self.function(output, y), self.values(z, y)
        if whole.dim() and len(whole) == len(each):
            ways = [(whole.reshape(len(each), -1).sum(1), each)]
        else:
            ways = [(whole.sum(), each.sum()), (whole.sum(), each.mean())]
        rtol = 1e-7 if z.dtype == torch.float64 else 1e-3
        if not any(torch.allclose(a, b.to(a), rtol=rtol, atol=rtol) for a, b in ways):
            raise InvalidSetting(
                f"The loss {self.name} of a batch is neither the sum nor the mean of its samples' losses: class "
                f"weights or ignore_index with reduction='mean', or terms between samples? {self._as_a_sum(y)}"
            )

    def _as_a_sum(self, y: Tensor) -> str:
        """Σ w_y ℓ / Σ w_y + (w/2)‖θ‖² has its minimum where (1/n) Σ w_y ℓ + (w·mean(w_y)/2)‖θ‖² has it."""
        weights = self.class_weights(y)
        if weights is None:
            return "Use reduction='sum'."
        return (
            "Use reduction='sum', and as weight_decay the one of the training × the mean of the class weights over all "
            f"training samples, loss.weight[labels].mean(): of these {len(y)} it is {float(weights.mean()):.3g}."
        )

    def values(self, z: Tensor, y: Tensor) -> Tensor:
        return vmap(self._of_one)(z, y)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return vmap(grad(self._of_one))(z, y)

    def factor(self, z: Tensor, y: Tensor) -> Tensor:
        curvature = vmap(hessian(self._of_one))(z, y)
        values, vectors = torch.linalg.eigh(curvature)
        top = values.abs().amax().clamp_min(torch.finfo(z.dtype).tiny)
        if bool((values < -1e-4 * top).any()):
            raise InvalidSetting(
                f'rows="expected" needs a loss that is convex in the model\'s output; {self.name} has an output '
                f'Hessian with eigenvalue {float(values.min()):.3g}. Use rows="empirical".'
            )
        return values.clamp_min(0).sqrt()[:, :, None] * vectors.mT

    def sampled(self, z: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
        raise InvalidSetting(
            f'rows="sampled" draws labels from the model, and {self.name} does not say how. '
            'Use a named loss, or rows="expected".'
        )


NAMED: dict[str, Loss] = {loss.name: loss for loss in (CrossEntropy(), BinaryCrossEntropy(), SquaredError())}
NAMED |= TOKEN_LOSSES


def as_loss(loss: LossLike | Loss) -> Loss:
    """A name, torch's own default cross-entropy, or any callable of (model(x), y)."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in NAMED:
            raise InvalidSetting(f"Unknown loss {loss!r}; the named ones are {', '.join(NAMED)}.")
        return NAMED[loss]
    if loss is F.cross_entropy or _is_plain_cross_entropy(loss):
        return NAMED["cross_entropy"]
    if isinstance(loss, type):
        raise InvalidSetting(f"The loss {loss.__name__} is a class; pass one made of it, {loss.__name__}().")
    if callable(loss):
        return CustomLoss(loss)
    raise InvalidSetting(f"The loss must be a name or a function of (model(x), y), not {type(loss).__name__}.")


def total_loss(loss: Loss, z: Tensor, y: Any) -> float:
    """Σ ℓ over a batch, whose outputs and losses must be finite."""
    if not bool(torch.isfinite(z).all()):
        raise InvalidData("The model's output is NaN or infinite on a sample; check the inputs' scale.")
    total = float(loss.values(z, y).sum(dtype=torch.float64))
    if not math.isfinite(total):
        raise InvalidData(f"The loss {loss.name} is NaN or infinite on a sample.")
    return total


def _is_plain_cross_entropy(loss: object) -> bool:
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.label_smoothing == 0.0
        and loss.ignore_index < 0
    )


def _response_of(function: object) -> Response:
    """Of torch's own losses, whatever their settings: weights and reductions scale a curvature, but not its answer."""
    while isinstance(function, partial):
        function = function.func
    kind = type(function)  # a subclass may compute something else
    if function is F.mse_loss or kind is nn.MSELoss:
        return "constant"
    if function is F.cross_entropy or kind is nn.CrossEntropyLoss:
        return "softmax"
    if function is F.binary_cross_entropy_with_logits or kind is nn.BCEWithLogitsLoss:
        return "logistic"
    return "unknown"


def _short_digest(tensor: Tensor) -> str:
    return digest_bytes(tensor.detach().cpu().double().numpy().tobytes())[:8]


def _like(z: Tensor, y: Tensor) -> Tensor:
    return y.reshape(z.shape).to(z.dtype)


def instead_of_indices(y: Tensor, shape: torch.Size) -> str:
    """What labels of that form are for."""
    if y.shape != shape or shape[1] < 2:
        return "Pass y.long() of that shape." if y.numel() == shape[0] else "Pass one label a sample."
    rows, binary = y.double().sum(1), bool(((y == 0) | (y == 1)).all())
    if bool((rows - 1).abs().max() > 1e-3):
        return "For 0/1 attributes use the loss 'binary_cross_entropy'." if binary else "For numbers use 'mse'."
    return "These are one-hot: pass y.argmax(1). (If they are 0/1 attributes: the loss 'binary_cross_entropy'.)"


def _check_same_shape(shape: torch.Size, y: Tensor, what: str) -> None:
    if y.numel() != shape.numel():
        raise InvalidData(
            f"Each output needs its {what}: the model returns {tuple(shape)}, the labels are {tuple(y.shape)}."
        )
