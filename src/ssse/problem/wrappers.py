"""Wrappers around a model: DataParallel, DistributedDataParallel, torch.compile. They are taken off for the work."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ssse.errors import InvalidModel


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside its wrappers, with the same tensors and names without theirs; the same object where possible.

    Layers that are wrapped or compiled inside a model leave it only in a copy of its modules, not of its tensors.
    """
    while (inside := _inside(model)) is not None:
        model = inside
    modules = list(model.modules())
    if not any(_inside(m) is not None or getattr(m, "_compiled_call_impl", None) is not None for m in modules):
        return model
    shared: dict[int, Any] = {id(t): t for t in itertools.chain(model.parameters(), model.buffers())}
    for module in reversed(modules):  # the innermost first
        if (inside := _inside(module)) is not None:
            shared[id(module)] = copied(inside, shared)
    return copied(model, shared)  # what Module.compile() put there is not copied


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, in the same wrappers. `memo`: as of `copy.deepcopy`."""
    if any(isinstance(m, DistributedDataParallel) for m in model.modules()) and not _in_a_group():
        raise InvalidModel(
            "The model is in DistributedDataParallel and its process group is gone, so that a copy cannot be wrapped "
            "again. Pass model.module."
        )
    try:
        with torch.no_grad():  # torch copies the parameters of TorchScript by operations that autograd would record
            copy_of_it = copy.deepcopy(model, memo)
    except Exception as error:
        raise InvalidModel(
            f"The model ({type(model).__name__}) cannot be copied, and an erased model is a copy: "
            f"{type(error).__name__}: {error}. Take what cannot be copied (a trainer, a file, a cached output) off it "
            "first."
        ) from error
    for parameter, original in zip(copy_of_it.parameters(), model.parameters(), strict=True):
        parameter.requires_grad_(original.requires_grad)
    return copy_of_it


def _inside(module: nn.Module) -> nn.Module | None:
    """What a wrapper is around; None of a module that is no wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return module.module
    # By its name: importing the class imports the compiler, which takes seconds.
    return module.get_submodule("_orig_mod") if type(module).__name__ == "OptimizedModule" else None


def _in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def aliases(model: nn.Module, inner: nn.Module) -> dict[str, str]:
    """Names of parameters in the wrapped model → their names inside."""
    pairs = zip(_named(model), _named(inner), strict=True)
    return {outer: name for (outer, _), (name, _) in pairs}


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.named_parameters())
