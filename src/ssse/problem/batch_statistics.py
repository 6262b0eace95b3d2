"""BatchNorm's stored statistics: which layers have some, and estimating them anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssse.errors import InvalidData
from ssse.problem.batch_forms import Inputs
from ssse.problem.problem import first_call
from ssse.problem.view import arguments

ONE_VALUE = "Expected more than 1 value per channel"  # torch's words where a batch has no variance


def statistics_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The layers that normalise by statistics of the training data, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.running_mean is not None
    }


def is_frozen(layer: _BatchNorm) -> bool:
    """One whose own parameters are not trained, as in a part of a model that is used as it is."""
    own = list(layer.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


@torch.no_grad()
def reestimate(model: nn.Module, layers: Iterable[_BatchNorm], batches: Iterable[Inputs]) -> None:
    """The statistics of these layers from these inputs alone, in place; nothing else of the model changes.

    Each is the average over the batches, in each of which the layers before it normalise by that batch, as in training;
    a batch counts by its size, and by its length where sequences have several. Everything else is in eval mode, so that
    nothing is dropped at random.

    Raises:
        InvalidData: a batch of one sample has no variance, or a statistic becomes NaN or infinite.
    """
    chosen = list(layers)
    modes = {module: module.training for module in model.modules()}
    with _averaging(chosen):
        try:
            model.eval()
            for layer in chosen:
                layer.reset_running_stats()
                layer.train()
            seen = False
            for x in batches:
                args, kwargs = arguments(x)
                with nullcontext() if seen else first_call(x), told_of_one_value():
                    model(*args, **kwargs)
                seen = True
            if not seen:
                raise InvalidData("There are no samples to estimate BatchNorm's statistics from.")
        finally:
            for module, training in modes.items():
                module.training = training
    if not all(bool(torch.isfinite(value).all()) for layer in chosen for value in layer.buffers(recurse=False)):
        raise InvalidData("BatchNorm's statistics of these samples are NaN or infinite; the model's outputs are, too.")


@contextmanager
def _averaging(layers: list[_BatchNorm]) -> Iterator[None]:
    """While each layer's momentum is such that its statistics are the mean over all values that it has seen."""
    momenta = [layer.momentum for layer in layers]
    seen = dict.fromkeys(layers, 0)

    def weigh(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        values = inputs[0].numel() // max(inputs[0].shape[1], 1)  # of each channel
        seen[layer] += values
        layer.momentum = values / max(seen[layer], 1)

    handles = [layer.register_forward_pre_hook(weigh) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def told_of_one_value() -> Iterator[None]:
    """What torch says of a batch without a variance, as ours."""
    try:
        yield
    except ValueError as error:
        if ONE_VALUE not in str(error):
            raise
        raise InvalidData(
            "BatchNorm cannot take a batch of a single sample in training mode: it has no variance. Use larger batches."
        ) from error


def even_parts(n: int, size: int) -> list[Tensor]:
    """0 … n−1 in as many parts as `size` needs, all as large as possible alike: never one sample left over alone."""
    return list(torch.arange(n).tensor_split(max(1, -(-n // size))))
