"""Networks for segmentation: torchvision's DeepLabV3 and LRASPP on MobileNetV3-Large, and a small feature pyramid.

torchvision's networks are without the final upsampling: losses and scores do it. The feature pyramid is on a small
residual network, from random weights. Sources: Rethinking Atrous Convolution for Semantic Image Segmentation (arXiv
1706.05587) §3; Searching for MobileNetV3 (ICCV 2019) §6.4; Feature Pyramid Networks for Object Detection (CVPR 2017)
§3.

Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import segmentation
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from conf.networks.detectors import STAGES, ResidualStages, convolution, with_channels

NETWORKS: MappingProxyType[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "mobilenet_v3_large": segmentation.deeplabv3_mobilenet_v3_large,
        "resnet50": segmentation.deeplabv3_resnet50,
        "resnet101": segmentation.deeplabv3_resnet101,
    }
)
"""Networks by backbone."""


class RawSegmenter(nn.Module):
    """(B, C, H, W) images -> logits (B, classes, h, w). takes: the backbone's output that the head takes; None: all of them.

    DeepLabV3 has strides of 16, on a ResNet of 8; LRASPP of 8.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, takes: str | None = None) -> None:
        super().__init__()
        self.backbone, self.head, self.takes = backbone, head, takes

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of each class at each position."""
        maps = self.backbone(x_BCHW)
        logits_BKhw: torch.Tensor = self.head(maps if self.takes is None else maps[self.takes])
        return logits_BKhw


def deeplab(num_classes: int = 21, in_chans: int = 3, backbone: str = "mobilenet_v3_large") -> nn.Module:
    """The network with random weights. backbone: `mobilenet_v3_large`, `resnet50` or `resnet101`."""
    whole: Any = NETWORKS[backbone](weights=None, weights_backbone=None, num_classes=num_classes)
    return RawSegmenter(with_channels(whole.backbone, in_chans), whole.classifier, "out")


def lraspp(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    whole = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
    return RawSegmenter(with_channels(whole.backbone, in_chans), whole.classifier)


WIDTH = 32
"""Channels of the pyramid."""


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


def pyramid(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    return SegmentationPyramid(ResidualStages(in_chans), num_classes)
