"""A small network for segmentation in the form of a feature pyramid (Lin et al., CVPR 2017), which trains in seconds."""

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (16, 24, 32)
PYRAMID = 16


def _conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=False)
    )


class Residual(nn.Module):
    """Two convolutions, with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.norm(self.second(self.first(x))))


class SmallFPN(nn.Module):
    """(B, C, H, W) images -> (B, classes, H / 2, W / 2) logits."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        before = (channels, *WIDTHS)
        self.stages = nn.ModuleList(
            nn.Sequential(_conv(narrow, width, stride=2), Residual(width), Residual(width))
            for narrow, width in zip(before, WIDTHS, strict=False)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in WIDTHS)
        self.smooth, self.head = _conv(PYRAMID, PYRAMID), nn.Conv2d(PYRAMID, classes, 1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        found = []
        for stage in self.stages:
            x_BCHW = stage(x_BCHW)
            found.append(x_BCHW)
        pyramid = self.lateral[2](found[2])
        for level in (1, 0):
            pyramid = functional.interpolate(pyramid, scale_factor=2.0, mode="nearest") + self.lateral[level](
                found[level]
            )
        logits_BKhw: torch.Tensor = self.head(self.smooth(pyramid))
        return logits_BKhw


def network(num_classes: int, in_chans: int) -> nn.Module:
    return SmallFPN(num_classes, in_chans)
