"""A small network of a backbone, whose alternatives can be trained alone, and a head. Legend: B batch, C channels."""

import torch
from torch import nn

from tasks.evaluation.models import ModelSettings


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Backbone(nn.Module):
    """Images -> feature maps (B, 16, H / 4, W / 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(_block(channels, 8), _block(8, 16))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        maps_BCHW: torch.Tensor = self.stages(x_BCHW)
        return maps_BCHW


class TwoParts(nn.Module):
    """Images -> a number for each class."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(channels), nn.Linear(16, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK: torch.Tensor = self.head(self.backbone(x_BCHW).mean((2, 3)))
        return logits_BK


def network(num_classes: int, in_chans: int) -> nn.Module:
    """The same weights in each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TwoParts(num_classes, in_chans)


MODEL = ModelSettings(kind="callable", name=f"{__file__}:network", trained=True)
