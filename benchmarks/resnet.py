"""A ResNet-20 with random weights whose activations are of order one."""

from __future__ import annotations

import torch

from ssse.paper.resnet import ResNet20

__all__ = ["ResNet20", "settled_resnet20"]


def settled_resnet20(seed: int = 0) -> ResNet20:
    """Random weights, and BatchNorm statistics from a few batches of noise, so that activations are of order one."""
    torch.manual_seed(seed)
    model = ResNet20()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(128, 3, 32, 32))
    return model.eval()
