"""A model as it was given, and as it is worked on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ssse.errors import InvalidModel
from ssse.problem.unusable import HALF, refuse_unusable
from ssse.problem.wrappers import copied, unwrapped


@dataclass(frozen=True)
class Working:
    """Three views of one model.

    Attributes:
        given: as the user passed it in, and as erased ones are handed back.
        inner: without its wrappers; its tensors are those of `given`, its names those without wrappers.
        model: what is computed with. `inner` itself; of a model in half precision, wholly or partly, a copy in float32,
            which takes inputs in half precision too. Its values are exactly the same.
    """

    given: nn.Module
    inner: nn.Module
    model: nn.Module

    @classmethod
    def of(cls, given: nn.Module) -> Self:
        """Raises InvalidModel: nothing can be computed with it."""
        refuse_unusable(given)
        inner = unwrapped(given)
        return cls(given, inner, _in_float32(inner) if _has_halves(inner) else inner)

    @property
    def rounds(self) -> bool:
        """Whether what is handed back is coarser than what was computed."""
        return self.model is not self.inner


def _has_halves(model: nn.Module) -> bool:
    return any(value.dtype in HALF for value in [*model.parameters(), *model.buffers()])


def _in_float32(model: nn.Module) -> nn.Module:
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidModel(
            "The model is TorchScript in half precision, and its code may name that dtype. Trace or script it again "
            "from the model in float32."
        )
    working = copied(model)
    halves = [m for m in working.modules() if any(p.dtype in HALF for p in m.parameters(recurse=False))]
    working._apply(_widened)  # as .float(), but of halves alone; transformers refuses .float() of some models
    for module in {working, *halves}:  # inputs in half precision, and what forward() casts to it for such a layer
        module.register_forward_pre_hook(_widen_inputs, with_kwargs=True)
    return working


def _widen_inputs(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return _widened(args), _widened(kwargs)


def _widened(value: Any) -> Any:
    """Halves as float32, in tuples, lists and mappings too; all else as it is."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_widened(one) for one in value)
    if isinstance(value, Mapping):
        return {key: _widened(one) for key, one in value.items()}
    return value
