"""Which layer raised, and what it said, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LONGEST = 160


def layer_that_raises(model: nn.Module, attempt: Callable[[], Any]) -> str | None:
    """The innermost layer whose forward is not over when `attempt`, done once more, raises; None: in no forward."""
    running: list[tuple[str, nn.Module]] = []

    def entered(label: str) -> Callable[..., None]:
        return lambda module, _: running.append((label, module))

    def left(module: nn.Module, *_: Any) -> None:
        while running and running.pop()[1] is not module:
            pass

    watched = _watchable(model)
    handles = [module.register_forward_pre_hook(entered(name)) for name, module in watched]
    handles += [module.register_forward_hook(left) for _, module in watched]
    try:
        attempt()
    except Exception:
        return _label(*running[-1]) if running else None
    finally:
        for handle in handles:
            handle.remove()
    return None


def layer_without_backward(model: nn.Module, run: Callable[[], Any], twice: bool) -> str | None:
    """The first layer whose own backward pass raises, or, if `twice`, the derivative of that."""
    calls: list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = []

    def note(label: str) -> Callable[..., None]:
        return lambda module, args, kwargs: calls.append((label, module, args, kwargs))

    leaves = [(name, module) for name, module in _watchable(model) if not list(module.children())]
    handles = [module.register_forward_pre_hook(note(name), with_kwargs=True) for name, module in leaves]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    for name, module, args, kwargs in calls:
        try:
            _differentiate(module, args, kwargs, twice)
        except Exception:
            return _label(name, module)
    return None


@torch.enable_grad()
def _differentiate(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], twice: bool) -> None:
    sources: list[Tensor] = [p for p in module.parameters() if p.requires_grad]

    def source(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        sources.append(value.detach().requires_grad_())
        return sources[-1].clone()  # a layer may work in place

    output = module(*map(source, args), **{key: source(value) for key, value in kwargs.items()})
    if not isinstance(output, Tensor) or not output.requires_grad:
        return
    u = torch.ones_like(output, requires_grad=twice)
    pulled = torch.autograd.grad(output, sources, u, create_graph=twice, allow_unused=True)
    parts = [part for part in pulled if part is not None and part.requires_grad]
    if parts:
        torch.autograd.grad(parts, u, [torch.ones_like(part) for part in parts], allow_unused=True)


def _watchable(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, m) for name, m in model.named_modules() if not isinstance(m, torch.jit.ScriptModule)]


def _label(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} '{name}'" if name else f"the model ({type(module).__name__})"


def first_sentence(error: Exception) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    end = words.find(". ")
    words = words.rstrip(".") if end < 0 else words[:end]
    return words if len(words) <= LONGEST else words[: LONGEST - 1].rstrip() + "…"
