"""What torch computes with while we differentiate: its usual kernels, or plainer ones that every derivative knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def kernels(model: nn.Module, portable: bool) -> Iterator[None]:
    """The kernels of one way.

    Always without the fast path of torch's own encoder, which is for predictions alone. `portable`: attention as
    plain products, recurrent layers as plain steps (without oneDNN and cuDNN), and embeddings with dense gradients.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            if portable:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                stack.enter_context(_without([torch.backends.mkldnn, torch.backends.cudnn], "enabled"))
                # A sparse gradient cannot be differentiated again, nor be one of many.
                embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
                stack.enter_context(_without(embeddings, "sparse"))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _without(owners: list[Any], setting: str) -> Iterator[None]:
    """A setting switched off, where it is on, and on again."""
    having = [owner for owner in owners if getattr(owner, setting)]
    try:
        for owner in having:
            setattr(owner, setting, False)
        yield
    finally:
        for owner in having:
            setattr(owner, setting, True)
