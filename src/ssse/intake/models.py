"""The user's model: built by the user's code, filled with the user's weights, checked against each other."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ssse.errors import InvalidData, InvalidModel, InvalidSetting, SSSEError
from ssse.intake.importing import import_object, searching
from ssse.intake.messages import cause, did_you_mean, listing
from ssse.intake.weights import read_weights, without_shared_memory, write_weights

__all__ = ["build_model", "load_weights", "read_weights", "weights_of", "write_weights"]

PREFIX = "module."  # what DataParallel puts before every name
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def build_model(factory: str, arguments: Mapping[str, Any], search: Path | None) -> nn.Module:
    """Call pkg.module:factory with the arguments; a model that stands there ready is copied.

    Raises:
        InvalidSetting: no such factory, or not with these arguments. InvalidModel: it raised, or made no nn.Module.
    """
    imported = import_object(factory, search, "model")
    if isinstance(imported, nn.Module):
        if arguments:
            raise InvalidSetting(f"'{factory}' is a model already and takes no arguments; got {listing(arguments)}.")
        try:
            return copy.deepcopy(imported)
        except Exception as error:
            raise InvalidModel(f"The model '{factory}' cannot be copied: {cause(error)}.") from error
    if not callable(imported):
        raise InvalidModel(
            f"'{factory}' must be a function or class that makes a model, or a model, not a {type(imported).__name__}."
        )
    check_arguments(factory, imported, arguments)
    try:
        with searching(search):
            model = imported(**arguments)
    except SSSEError:
        raise
    except Exception as error:
        raise InvalidModel(f"'{factory}' raised {cause(error)} when it was called with {_shown(arguments)}.") from error
    if not isinstance(model, nn.Module):
        raise InvalidModel(f"'{factory}' must return a torch.nn.Module; it returned a {type(model).__name__}.")
    return model


def check_arguments(factory: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C; the call will tell
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InvalidSetting(
            f"'{factory}' takes {signature}, and was called with {_shown(arguments)}: {error}. Set its arguments in "
            "[model.arguments]."
        ) from error


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], name: str) -> nn.Module:
    """Put the weights into the model, in the weights' dtype; every name and shape must fit. Returns it in eval mode.

    Args:
        name: of the weights, for messages.
    Raises:
        InvalidModel: not initialised, or its state is more than tensors. InvalidData: the weights are not this model's,
        are not finite, or mix dtypes; the model is then as it was.
    """
    state = _state(model)
    given = _without_prefix(weights, state)
    given = _with_tied(given, state)
    _check_names(given, state, name)
    _check_values(given, state, name)
    dtype = _dtype(given, name)
    _check_tied(given, state, name)
    if dtype is not None:
        model.to(dtype)
    try:
        model.load_state_dict(given, strict=True)
    except Exception as error:  # a model may load in its own way
        raise InvalidModel(f"The model does not take the weights of '{name}': {cause(error)}.") from error
    return model.eval()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, as `write_weights` takes them; on the CPU they may share the model's memory."""
    return without_shared_memory(_state(model))


def _state(model: nn.Module) -> dict[str, Tensor]:
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value) or value.is_meta:
            raise InvalidModel(
                f"'{name}' of the model is not initialised (a lazy layer, or the meta device?). Give every layer its "
                "sizes in the factory."
            )
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InvalidModel(
                f"The model's state holds '{name}', a {type(value).__name__}; only tensors can be kept. Keep it as a "
                "buffer, or give it to the factory as an argument."
            )
        if value.is_complex():
            raise InvalidModel(f"'{name}' of the model is {value.dtype}; parameters and buffers must be real numbers.")
    return state


def _without_prefix(weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if weights and all(name.startswith(PREFIX) for name in weights) and not any(name in state for name in weights):
        return {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return dict(weights)


def _with_tied(given: dict[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file may hold tied tensors under one of their names only; the others are no less known."""
    held = {_memory(state[name]): value for name, value in given.items() if name in state and state[name].numel()}
    return given | {
        name: held[_memory(value)] for name, value in state.items() if name not in given and _memory(value) in held
    }


def _memory(value: Tensor) -> tuple[Any, ...]:
    return value.device, value.data_ptr(), value.shape, value.stride()


def _check_names(given: Mapping[str, Tensor], state: Mapping[str, Tensor], name: str) -> None:
    missing = [key for key in state if key not in given]
    unexpected = [key for key in given if key not in state]
    if not missing and not unexpected:
        return
    parts = []
    if missing:
        parts.append(f"lack {listing(missing, 5)}")
    if unexpected:
        hint = did_you_mean(unexpected[0], missing or state)
        parts.append(f"hold {listing(unexpected, 5)}, which the model does not have")
    else:
        hint = ""
    raise InvalidData(
        f"The weights of '{name}' are not this model's: they {' and '.join(parts)}.{hint} Build the model as it was "
        "built for training."
    )


def _check_values(given: Mapping[str, Tensor], state: Mapping[str, Tensor], name: str) -> None:
    for key, value in given.items():
        expected = state[key]
        if value.shape != expected.shape:
            raise InvalidData(
                f"'{key}' has the shape {tuple(value.shape)} in '{name}' and {tuple(expected.shape)} in the model. "
                "Build the model as it was built for training."
            )
        fits = value.is_floating_point() if expected.is_floating_point() else value.dtype == expected.dtype
        if not fits:
            raise InvalidData(f"'{key}' is {value.dtype} in '{name}' and {expected.dtype} in the model.")


def _dtype(given: Mapping[str, Tensor], name: str) -> torch.dtype | None:
    """The dtype of all floating weights, which must be finite."""
    floating = {key: value for key, value in given.items() if value.is_floating_point()}
    first: dict[torch.dtype, str] = {}
    for key, value in floating.items():
        first.setdefault(value.dtype, key)
    if len(first) > 1 or not set(first) <= set(DTYPES):
        came = ", ".join(f"'{key}' is {dtype}" for dtype, key in first.items())
        raise InvalidData(
            f"The weights of '{name}' must all be of one dtype, {' or '.join(str(d) for d in DTYPES)}; {came}. Convert "
            "them and save them again."
        )
    for key, value in floating.items():
        if not bool(torch.isfinite(value).all()):
            raise InvalidData(f"'{key}' in '{name}' holds NaN or infinity; the model did not train properly.")
    return next(iter(first), None)


def _check_tied(given: Mapping[str, Tensor], state: Mapping[str, Tensor], name: str) -> None:
    """One tensor of the model cannot hold two values, and the last would win without a word."""
    seen: dict[tuple[Any, ...], str] = {}
    for key, value in state.items():
        other = seen.setdefault(_memory(value), key) if value.numel() else key
        if other != key and not torch.equal(given[key], given[other]):
            raise InvalidData(
                f"'{other}' and '{key}' are one tensor in the model, but differ in '{name}'. Build the model as it was "
                "built for training."
            )
