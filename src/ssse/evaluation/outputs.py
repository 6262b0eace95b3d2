"""What models say: logits of a module, or of any function of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ssse.errors import InvalidData, InvalidModel
from ssse.metrics.scores import as_logits
from ssse.problem.batch_forms import Inputs
from ssse.problem.batches import map_inputs, named_inputs
from ssse.problem.training_mode import refuse_difference, refuse_training_mode
from ssse.problem.unusable import HALF, refuse_autocast
from ssse.problem.view import arguments, tensor_output

Model = nn.Module | Callable[[Any], Any]
T = TypeVar("T")


def check_model(model: Model, name: str) -> None:
    if isinstance(model, nn.Module):
        try:
            refuse_training_mode(model)
        except InvalidModel as error:
            raise InvalidModel(f"'{name}': {error}") from None
    elif not callable(model):
        raise InvalidModel(f"'{name}' must be a torch module or a function from inputs to logits, not {type(model)}.")


def logits_of(model: Model, x: Inputs, name: str) -> np.ndarray:
    """Logits as float64, shape (n, outputs), of a module or of any function of the inputs."""
    return read_outputs(model, x, name, as_logits)


@torch.no_grad()
def read_outputs(model: Model, x: Inputs, name: str, read: Callable[[Any, str], T]) -> T:
    """What `read` makes of a model's outputs and its name."""
    try:
        if not isinstance(model, nn.Module):
            return read(model(x), name)
        parameter = next(iter(model.parameters()), None)
        if parameter is not None:
            refuse_autocast(parameter.device)
            x = _as_halves(model, map_inputs(lambda value: value.to(parameter.device), x))
        args, kwargs = arguments(x)
        refuse_difference(model, x)
        return read(tensor_output(model(*args, **kwargs)), name)
    except Exception as error:  # whatever it is, it is passed on: with the name of the model, one of many perhaps
        _refuse_other_dtype(model, x, name, error)
        error.add_note(f"This came from the model '{name}'.")
        raise


def _as_halves(model: nn.Module, x: Inputs) -> Inputs:
    """Inputs for a model in half precision, as it takes them; they are not asked for in its dtype anywhere else."""
    kept = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    wanted = {p.dtype for p in model.parameters()}
    if kept not in HALF:
        return x

    def cast(value: Tensor) -> Tensor:
        return value.to(kept) if value.is_floating_point() and value.dtype not in wanted else value

    return map_inputs(cast, x)


def _refuse_other_dtype(model: Model, x: Inputs, name: str, error: Exception) -> None:
    """The usual reason for a module to fail on good data, in words."""
    given = {str(value.dtype) for value in named_inputs(x).values() if value.is_floating_point()}
    wanted = {str(p.dtype) for p in model.parameters()} if isinstance(model, nn.Module) else given
    if isinstance(error, RuntimeError) and given and wanted and given.isdisjoint(wanted):
        raise InvalidData(
            f"'{name}' has parameters of {', '.join(sorted(wanted))} and the inputs are {', '.join(sorted(given))}; "
            "cast one of them, for instance model.to(x.dtype)."
        ) from error
