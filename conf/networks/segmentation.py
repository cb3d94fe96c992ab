"""Networks for segmentation: torchvision's DeepLabV3 and LRASPP on MobileNetV3-Large, and a small feature pyramid.

torchvision's networks are without the final upsampling: losses and scores do it. The feature pyramid is on a small
residual network, from random weights. Sources: Rethinking Atrous Convolution for Semantic Image Segmentation (arXiv
1706.05587) §3; Searching for MobileNetV3 (ICCV 2019) §6.4; Feature Pyramid Networks for Object Detection (CVPR 2017)
§3.

Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional
from torchvision.models import segmentation
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from conf.networks.detectors import STAGES, ResidualBlock, convolution

NETWORKS: MappingProxyType[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "mobilenet_v3_large": segmentation.deeplabv3_mobilenet_v3_large,
        "resnet50": segmentation.deeplabv3_resnet50,
        "resnet101": segmentation.deeplabv3_resnet101,
    }
)
"""Networks by backbone."""


class RawDeepLab(nn.Module):
    """(B, C, H, W) images -> logits (B, classes, H / 16, W / 16), or H / 8, W / 8 on a ResNet."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of each class at each position."""
        logits_BKhw: torch.Tensor = self.head(self.backbone(x_BCHW)["out"])
        return logits_BKhw


def deeplab(num_classes: int = 21, in_chans: int = 3, backbone: str = "mobilenet_v3_large") -> nn.Module:
    """The network with random weights. backbone: `mobilenet_v3_large`, `resnet50` or `resnet101`."""
    whole = NETWORKS[backbone](weights=None, weights_backbone=None, num_classes=num_classes)
    if in_chans != 3:
        place, name = (whole.backbone, "conv1") if backbone.startswith("resnet") else (whole.backbone["0"], "0")
        stem = getattr(place, name)
        stem = nn.Conv2d(in_chans, stem.out_channels, stem.kernel_size, stem.stride, stem.padding, bias=False)
        setattr(place, name, stem)
    return RawDeepLab(whole.backbone, whole.classifier)


class RawLRASPP(nn.Module):
    """(B, C, H, W) images -> (B, classes, H / 8, W / 8) logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of each class at each position."""
        logits_BKhw: torch.Tensor = self.head(self.backbone(x_BCHW))
        return logits_BKhw


def lraspp(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    whole = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
    if in_chans != 3:
        stem = whole.backbone["0"]
        width = stem[0].out_channels
        stem[0] = nn.Conv2d(in_chans, width, kernel_size=3, stride=2, padding=1, bias=False)
    return RawLRASPP(whole.backbone, whole.classifier)


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


def pyramid(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    return SegmentationPyramid(ResidualStages(in_chans), num_classes)
