"""Models that were left in training mode: refused where they do something else there."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ssse.errors import InvalidModel
from ssse.problem.batch_forms import Inputs
from ssse.problem.view import arguments, tensor_output
from ssse.problem.wrappers import copied


def refuse_training_mode(model: nn.Module) -> None:
    """Of torch's own layers, those that do something else in training mode; `refuse_difference` sees the others."""
    for name, module in model.named_modules():
        label = f"{type(module).__name__} '{name}'"
        if isinstance(module, _BatchNorm) and not module.training and not module.track_running_stats:
            raise InvalidModel(
                f"{label} keeps no running statistics, so even in eval mode one sample's gradient depends on "
                "its batch. Train with track_running_stats=True or use another norm."
            )
        if not module.training:
            continue
        if isinstance(module, _BatchNorm):
            raise InvalidModel(
                f"{label} is in training mode, where one sample's gradient depends on its batch. "
                "Call model.eval() first."
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise InvalidModel(
                f"{label} is in training mode, where it uses a sample's own statistics and not those it learned. Call "
                "model.eval() first."
            )
        if _drops(module):
            raise InvalidModel(f"{label} is in training mode and drops at random. Call model.eval() first.")


def _drops(module: nn.Module) -> bool:
    """Layers of torch's own whose output is random in training mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RReLU) or (
        isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    )


@torch.no_grad()
def refuse_difference(model: nn.Module, x: Inputs) -> None:
    """A model that was left in training mode may stay there if it does the same in eval mode: here that is seen.

    On copies: what a layer counts or draws in training mode must not happen to the user's model.
    """
    if not any(module.training for module in model.modules()):
        return
    args, kwargs = arguments(x)
    training, calm = copied(model), copied(model).eval()
    with torch.random.fork_rng():
        state = _random_states()
        output = tensor_output(training(*args, **kwargs))
        drawn = any(not torch.equal(now, then) for now, then in zip(_random_states(), state, strict=True))
        wanted = tensor_output(calm(*args, **kwargs))
    buffers = dict(model.named_buffers())
    counted = any(not torch.equal(value, buffers[name]) for name, value in training.named_buffers())
    scale = float(wanted.abs().max()) + torch.finfo(wanted.dtype).tiny
    same = output.shape == wanted.shape and float((output - wanted).abs().max()) <= repeatable(wanted.dtype) * scale
    if drawn or counted or not same:
        what = "draws random numbers" if drawn else "changes its buffers" if counted else "gives other outputs"
        raise InvalidModel(
            f"The model ({type(model).__name__}) is in training mode and {what} there, unlike in eval mode; curvature "
            "and erasure are defined for the model as it predicts. Call model.eval() first."
        )


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def repeatable(dtype: torch.dtype) -> float:
    """Relative difference of the same outputs, computed twice."""
    return {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, 5e-3)
