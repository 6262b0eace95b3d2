"""ResNet-20 for 32×32 images, as in He et al. 2016, section 4.2: 269,722 parameters with BatchNorm.

Three stages of three blocks with 16, 32 and 64 channels; shortcuts of "option A": where a stage begins,
the identity is taken at every second pixel and the new channels are zero, so shortcuts have no parameters.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))) with 3×3 convolutions."""

    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        self.stride = 1 if channels_in == channels else 2
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.new_channels = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new_channels:
            half = self.new_channels // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.new_channels - half))
        return F.relu(out + x)


class ResNet20(nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in itertools.pairwise(widths)))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))


def settled_resnet20(seed: int = 0) -> ResNet20:
    """Random weights, and BatchNorm statistics from a few batches of noise, so that activations are of order one."""
    torch.manual_seed(seed)
    model = ResNet20()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(128, 3, 32, 32))
    return model.eval()
