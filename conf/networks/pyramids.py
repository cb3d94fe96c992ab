"""A feature pyramid on a small residual network, for segmentation, from random weights.

Legend: B batch, C channels, H height, W width. Source: Feature Pyramid Networks for Object Detection (CVPR 2017) §3.
"""

import torch
from torch import nn
from torch.nn import functional

from conf.networks.detectors import STAGES, ResidualBlock, convolution

WIDTH = 32
"""Channels of the pyramid."""


class ResidualStages(nn.Module):
    """Three feature maps with strides 4, 8 and 16: stages of two residual blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = convolution(channels, STAGES[0] // 2)
        widths = zip((STAGES[0] // 2, *STAGES), STAGES, strict=False)
        self.stages = nn.ModuleList(
            nn.Sequential(convolution(before, width), ResidualBlock(width), ResidualBlock(width))
            for before, width in widths
        )

    def forward(self, x_BCHW: torch.Tensor) -> list[torch.Tensor]:
        """The feature maps, the finest first."""
        maps = [self.stem(x_BCHW)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


class SegmentationPyramid(nn.Module):
    """(B, C, H, W) images -> (B, classes, H / 4, W / 4) logits; losses and scores upsample them."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.lateral = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in STAGES)
        self.smooth, self.head = convolution(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, classes, 1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of each class at each position."""
        finest, *coarser = (layer(one) for layer, one in zip(self.lateral, self.backbone(x_BCHW), strict=True))
        for one in coarser:
            finest = finest + functional.interpolate(one, size=finest.shape[2:], mode="nearest")
        logits_BKhw: torch.Tensor = self.head(self.smooth(finest))
        return logits_BKhw


def network(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    return SegmentationPyramid(ResidualStages(in_chans), num_classes)
