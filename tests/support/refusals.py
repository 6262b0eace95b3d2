"""Shared by the tests of what must be refused: in words, with the repair, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor, nn

import ssse
from ssse.system.digests import bytes_of
from tests.support import problems

NAN, INF = float("nan"), float("inf")


def fit(sample: problems.Sample, **options: Any) -> ssse.Curvature:
    loss, data = options.pop("loss", sample.loss), options.pop("data", sample.data)
    return ssse.Curvature.fit(sample.model, loss, data, **{"damping": 1e-2, "progress": False, **options})


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a module that a call must not change; NaN compares by its bits."""
    seen: dict[str, Any] = {
        name: bytes_of(value.reshape(1, -1)).tobytes() for name, value in model.state_dict().items()
    }
    for name, parameter in model.named_parameters():
        seen[f"{name}?"] = (parameter.requires_grad, parameter.grad is None)
    for name, module in model.named_modules():
        seen[f"{name}!"] = (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
    return seen


@contextmanager
def refused(error: type[Exception], match: str, *models: nn.Module) -> Iterator[pytest.ExceptionInfo]:
    """The block raises `error`, the message reads like `match`, and no model has changed."""
    before = [snapshot(model) for model in models]
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert [snapshot(model) for model in models] == before


def attempt(call: Callable[[], Any]) -> Any:
    """What the call gives, or the error of ours that it raises."""
    try:
        return call()
    except ssse.SSSEError as error:
        return error


def put(tensor: Tensor, index: Any, value: float) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed
