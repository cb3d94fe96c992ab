"""A small network that makes images larger: residual blocks in the size of the image, a pixel shuffle, and one layer more.

The last layer sees the image itself, too, enlarged by bilinear interpolation, and begins near it: the network learns what that
lacks. Legend: B batch, C channels, H height, W width.
Sources: Real-Time Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network (CVPR 2016), SRResNet (CVPR 2017).
"""

import torch
from torch import nn

from conf.networks.detectors import ResidualBlock, convolution

WIDTH, DETAIL = 32, 16
"""Channels in the size of the image, and in the larger size."""
BLOCKS = 6
FIRST_DETAIL = 0.001
"""Deviation of the last layer's first weights of details."""


class SubPixelNet(nn.Module):
    """(B, C, H, W) images -> (B, restored, upscale x H, upscale x W), with values near [0, 1]; of any H and W."""

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


def network(num_classes: int = 3, in_chans: int = 3, upscale: int = 2) -> nn.Module:
    """With random weights. num_classes: channels of the images that it gives. upscale: how many times as high and as wide."""
    return SubPixelNet(in_chans, num_classes, upscale)
