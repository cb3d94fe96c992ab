"""A small U-Net that removes noise from images; its last layer also gets the image itself.

Legend: B batch, C channels, H height, W width. Source: U-Net (MICCAI 2015).
"""

from itertools import pairwise

import torch
from torch import nn

from conf.networks.detectors import ResidualBlock, convolution

WIDTHS = (16, 32, 48)


class DenoisingUNet(nn.Module):
    """(B, C, H, W) images -> (B, restored, H, W) without noise, with values near [0, 1]; H and W are multiples of 4."""

    def __init__(self, channels: int, restored: int) -> None:
        super().__init__()
        pairs = list(pairwise(WIDTHS))
        self.stem = nn.Sequential(convolution(channels, WIDTHS[0], 1), ResidualBlock(WIDTHS[0]))
        self.smaller = nn.ModuleList(
            nn.Sequential(convolution(before, after), ResidualBlock(after), ResidualBlock(after))
            for before, after in pairs
        )
        self.larger = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(after, before, 1)) for before, after in pairs
        )
        self.joined = nn.ModuleList(
            nn.Sequential(convolution(2 * before, before, 1), ResidualBlock(before)) for before, _ in pairs
        )
        self.head = nn.Conv2d(WIDTHS[0] + channels, restored, 1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The image without noise."""
        levels = [self.stem(x_BCHW)]
        for smaller in self.smaller:
            levels.append(smaller(levels[-1]))
        found = levels.pop()
        for larger, joined in zip(reversed(self.larger), reversed(self.joined), strict=True):
            found = joined(torch.cat((levels.pop(), larger(found)), 1))
        restored_BCHW: torch.Tensor = self.head(torch.cat((found, x_BCHW), 1))
        return restored_BCHW


def network(num_classes: int = 3, in_chans: int = 3) -> nn.Module:
    """The network with random weights. num_classes: output channels."""
    return DenoisingUNet(in_chans, num_classes)
