"""Detectors with a single raw output and random weights: SSDLite, RetinaNet and FCOS.

They are torchvision's on MobileNetV3-Large and ResNet50, and SSDLite and FCOS on a small residual network. Steps before and
after the network are not included: scaling, anchors, losses, decoding and suppression (`adaptive_runtime.samples.boxes` and
`tasks.data.problems`).

Shapes: B batch, C channels, H height, W width, P anchors. Sources: MobileNetV2 (CVPR 2018) §6.2, Focal Loss for Dense Object
Detection (ICCV 2017), FCOS (ICCV 2019).
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchvision.models.detection import fcos_resnet50_fpn, retinanet_resnet50_fpn, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.ssdlite import SSDLiteHead

COLUMNS = ("cls_logits", "bbox_regression", "bbox_ctrness")
"""Outputs of torchvision's heads, in the order of columns; only FCOS has the last one."""

STAGES = (32, 48, 64)
WIDTH = STAGES[-1]
"""Channels of the small residual network."""


Maps = Any
"""Feature maps: a list, or by position as torchvision's heads take them."""


class RawDetector(nn.Module):
    """(B, C, H, W) images -> (B, P, classes + 4), with one more column for FCOS; the background is one of the classes.

    backbone: images -> feature maps by name, the finest first. head: a list of these -> `COLUMNS` by name, each (B, P, …).
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The raw output: a row for each anchor."""
        answers: dict[str, torch.Tensor] = self.head(list(self.backbone(x_BCHW).values()))
        return torch.cat([answers[name] for name in COLUMNS if name in answers], 2)


def convolution(before: int, after: int, stride: int = 2) -> nn.Sequential:
    """A convolution, BatchNorm and ReLU; a stride of 2 halves height and width."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = convolution(width, width, 1), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The sum after a ReLU."""
        return torch.relu(x_BCHW + self.norm(self.second(self.first(x_BCHW))))


class ResidualStages(nn.Module):
    """Three feature maps with strides 4, 8 and 16, the finest first: stages of two residual blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = convolution(channels, STAGES[0] // 2)
        self.stages = nn.ModuleList(
            nn.Sequential(convolution(before, width), ResidualBlock(width), ResidualBlock(width))
            for before, width in zip((STAGES[0] // 2, *STAGES), STAGES, strict=False)
        )

    def forward(self, x_BCHW: torch.Tensor) -> Maps:
        """The feature maps."""
        maps = [self.stem(x_BCHW)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


class ResidualMaps(ResidualStages):
    """Six feature maps with strides 16 to 512 and `WIDTH` channels, the finest first: the last stage, then convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.coarser = nn.ModuleList(convolution(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x_BCHW: torch.Tensor) -> Maps:
        """The feature maps by position."""
        return _continued(super().forward(x_BCHW)[-1:], self.coarser)


class PyramidMaps(ResidualStages):
    """Five feature maps with strides 8 to 128 and `WIDTH` channels: the last two stages in a pyramid, then convolutions.

    Source: Feature Pyramid Networks for Object Detection (CVPR 2017) §3.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.lateral = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in STAGES[1:])
        self.smooth = nn.ModuleList(convolution(WIDTH, WIDTH, 1) for _ in STAGES[1:])
        self.coarser = nn.ModuleList(convolution(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x_BCHW: torch.Tensor) -> Maps:
        """The feature maps by position."""
        last = super().forward(x_BCHW)[-2:]
        finer, coarser = (layer(one) for layer, one in zip(self.lateral, last, strict=True))
        finer = finer + functional.interpolate(coarser, size=finer.shape[2:], mode="nearest")
        return _continued([layer(one) for layer, one in zip(self.smooth, (finer, coarser), strict=True)], self.coarser)


def _continued(maps: list[torch.Tensor], layers: nn.ModuleList) -> dict[str, torch.Tensor]:
    """The maps and further ones, each made by a layer from the one before, by position."""
    for layer in layers:
        maps = [*maps, layer(maps[-1])]
    return {str(place): each for place, each in enumerate(maps)}


def ssdlite(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """SSDLite on MobileNetV3-Large, for the head `ssdlite`."""
    whole = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def ssdlite_small(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """SSDLite on a small residual network, for the head `ssdlite`; it learns from random weights in minutes."""
    return RawDetector(ResidualMaps(in_chans), SSDLiteHead([WIDTH] * 6, [6] * 6, num_classes, nn.BatchNorm2d))


def retinanet(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """RetinaNet on ResNet50, for the head `retinanet`."""
    whole = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def fcos(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """FCOS on ResNet50, for the head `fcos`."""
    whole = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def fcos_small(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """FCOS on a small residual network, for the head `fcos`; the positions near a box's centre, 8 pixels apart, find it.

    The maps share only the layers of the head: each map has its own statistics in the layer that smooths it.
    """
    return RawDetector(PyramidMaps(in_chans), FCOSHead(WIDTH, 1, num_classes, num_convs=0))


def _raw(backbone: nn.Module, head: nn.Module, channels: int) -> RawDetector:
    """The detector for images with this number of channels."""
    return RawDetector(with_channels(backbone, channels), head)


def with_channels(backbone: nn.Module, channels: int) -> nn.Module:
    """The backbone with a new first convolution, for images with this number of channels, unless there are 3."""
    if channels != 3:
        name, first = next(pair for pair in backbone.named_modules() if isinstance(pair[1], nn.Conv2d))
        shape: dict[str, Any] = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
        backbone.set_submodule(name, nn.Conv2d(channels, first.out_channels, **shape, bias=False))
    return backbone
