"""ResNet-20 for small images, as in He et al. 2016, section 4.2: 269,722 parameters with BatchNorm.

Three stages of three blocks with 16, 32 and 64 channels; shortcuts of "option A": where a stage begins,
the identity is taken at every second pixel and the new channels are zero, so shortcuts have no parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))) with 3×3 convolutions; more channels: every second pixel."""

    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        self.stride = 1 if channels_in == channels else 2
        self.conv1: nn.Conv2d = nn.Conv2d(channels_in, channels, 3, stride=self.stride, padding=1, bias=False)
        self.bn1: nn.BatchNorm2d = nn.BatchNorm2d(channels)
        self.conv2: nn.Conv2d = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2: nn.BatchNorm2d = nn.BatchNorm2d(channels)
        self.new_channels: int = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new_channels:
            half = self.new_channels // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.new_channels - half))
        return F.relu(out + x)


class ResNet20(nn.Module):
    """With other widths or another number of blocks per stage, a smaller or a larger one of the same kind."""

    def __init__(self, classes: int = 10, channels: int = 3, widths: Sequence[int] = (16, 32, 64), blocks: int = 3):
        super().__init__()
        self.conv: nn.Conv2d = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn: nn.BatchNorm2d = nn.BatchNorm2d(widths[0])
        through = [widths[0], *(width for width in widths for _ in range(blocks))]
        self.blocks: nn.Sequential = nn.Sequential(*(Block(a, b) for a, b in itertools.pairwise(through)))
        self.fc: nn.Linear = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))
