"""Gradients that a backward pass computes apart from the graph of the outputs: nobody who asks for them sees them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ssse.errors import InvalidModel
from ssse.problem.batch_forms import Inputs
from ssse.problem.derivatives.ways import differentiable_outputs, own_parameters
from ssse.problem.view import ModelView
from ssse.problem.wrappers import copied


@torch.enable_grad()
def refuse_hidden_gradients(view: ModelView, x: Inputs) -> None:
    """Of functions written in Python, such as reentrant checkpoints, a backward pass may do a whole one of its own.

    It then adds to .grad what torch.autograd.grad takes to be zero. A copy of the model shows it.
    """
    z = differentiable_outputs(view, x)
    if not _has_python_functions(z):
        return
    parts = torch.autograd.grad(z.sum(), own_parameters(view), allow_unused=True)
    unseen = [name for name, part in zip(view.layout.names, parts, strict=True) if part is None]
    if not unseen:
        return
    other = view.on(copied(view.model))
    other.model.zero_grad()
    differentiable_outputs(other, x).sum().backward()
    named = dict(other.model.named_parameters())
    for name in unseen:
        if named[name].grad is not None:
            raise InvalidModel(
                f"The gradient of parameter '{name}' is computed apart from the graph of the outputs, so that no "
                "single sample's can be seen. torch.utils.checkpoint with use_reentrant=True does that: pass "
                "use_reentrant=False."
            )


def _has_python_functions(z: Tensor) -> bool:
    seen, waiting = set(), [z.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False
