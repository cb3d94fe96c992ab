"""A small super-resolution network: residual blocks at the input size, a pixel shuffle, and one more layer.

The last layer also gets the image itself, enlarged by bilinear interpolation, and starts close to it: the network learns the
missing details. Legend: B batch, C channels, H height, W width.

Sources: Real-Time Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network (CVPR 2016), SRResNet (CVPR 2017).

A small U-Net that removes noise from images; its last layer also gets the image itself.

Legend: B batch, C channels, H height, W width. Source: U-Net (MICCAI 2015).
"""

from itertools import pairwise

import torch
from torch import nn

from conf.networks.detectors import ResidualBlock, convolution

WIDTH, DETAIL = 32, 16
"""Channels at the input size, and at the larger size."""
BLOCKS = 6
FIRST_DETAIL = 0.001
"""Standard deviation of the last layer's initial weights for details."""


class SubPixelNet(nn.Module):
    """(B, C, H, W) images -> (B, restored, upscale x H, upscale x W), with values near [0, 1]; any H and W."""

    def __init__(self, channels: int, restored: int, upscale: int) -> None:
        super().__init__()
        self.stem = convolution(channels, WIDTH, 1)
        self.blocks = nn.Sequential(*(ResidualBlock(WIDTH) for _ in range(BLOCKS)))
        self.larger = nn.Sequential(
            nn.Conv2d(WIDTH, DETAIL * upscale**2, 3, padding=1), nn.PixelShuffle(upscale), nn.ReLU()
        )
        self.enlarged = nn.Upsample(scale_factor=upscale, mode="bilinear")
        self.head = nn.Conv2d(DETAIL + channels, restored, 3, padding=1)
        weight = self.head.weight.detach()
        nn.init.normal_(weight[:, :DETAIL], std=FIRST_DETAIL)
        nn.init.dirac_(weight[:, DETAIL:])

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The larger image."""
        detail = self.larger(self.blocks(self.stem(x_BCHW)))
        restored: torch.Tensor = self.head(torch.cat((detail, self.enlarged(x_BCHW)), 1))
        return restored


def super_resolution(num_classes: int = 3, in_chans: int = 3, upscale: int = 2) -> nn.Module:
    """The network with random weights. num_classes: output channels. upscale: factor of height and width."""
    return SubPixelNet(in_chans, num_classes, upscale)


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


def unet(num_classes: int = 3, in_chans: int = 3) -> nn.Module:
    """The network with random weights. num_classes: output channels."""
    return DenoisingUNet(in_chans, num_classes)
