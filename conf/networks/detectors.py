"""Detectors that give one raw output: SSDLite on MobileNetV3, RetinaNet and FCOS on ResNet50, from random weights.

They are torchvision's, without what it does before and after the network: scaling, anchors, losses, decoding and
suppression are outside (`adaptive_runtime.boxes`, `tasks.problems.detection`). Shapes: B batch, C channels, H height,
W width, P anchors. Sources: MobileNetV2 (CVPR 2018) §6.2, Focal Loss for Dense Object Detection (ICCV 2017), FCOS (ICCV 2019).
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models import mobilenet_v3_small
from torchvision.models.detection import fcos_resnet50_fpn, retinanet_resnet50_fpn, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.ssdlite import SSDLiteFeatureExtractorMobileNet, SSDLiteHead

COLUMNS = ("cls_logits", "bbox_regression", "bbox_ctrness")
"""What heads of torchvision give, in the order of columns; the last one with FCOS alone."""


class RawDetector(nn.Module):
    """(B, C, H, W) images -> (B, P, classes + 4), and a column more with FCOS; the background is one of the classes.

    backbone: images -> feature maps by name, the finest first. head: a list of these -> `COLUMNS` by name, each (B, P, …).
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The raw output: a row for each anchor."""
        told: dict[str, torch.Tensor] = self.head(list(self.backbone(x_BCHW).values()))
        return torch.cat([told[name] for name in COLUMNS if name in told], 2)


def ssdlite(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """For the head `ssdlite`, on MobileNetV3-Large."""
    whole = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def ssdlite_small(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """For the head `ssdlite`, on MobileNetV3-Small, with half the channels in the maps that are coarser than the network's."""
    norm = partial(nn.BatchNorm2d, eps=0.001)
    layers = mobilenet_v3_small(weights=None, norm_layer=norm).features
    coarsest = max(place for place, layer in enumerate(layers) if getattr(layer, "_is_cn", False))
    maps = SSDLiteFeatureExtractorMobileNet(layers, coarsest, norm, width_mult=0.5)
    with torch.no_grad():
        channels = [found.shape[1] for found in maps.eval()(torch.zeros(1, 3, 64, 64)).values()]
    head = SSDLiteHead(channels, [6] * len(channels), num_classes, norm)
    return _raw(maps.train(), head, in_chans)


def retinanet(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """For the head `retinanet`."""
    whole = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def fcos(num_classes: int = 91, in_chans: int = 3) -> nn.Module:
    """For the head `fcos`."""
    whole = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=num_classes)
    return _raw(whole.backbone, whole.head, in_chans)


def _raw(backbone: nn.Module, head: nn.Module, channels: int) -> RawDetector:
    """With a first convolution for images of so many channels."""
    if channels != 3:
        name, first = next(pair for pair in backbone.named_modules() if isinstance(pair[1], nn.Conv2d))
        shape: dict[str, Any] = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
        backbone.set_submodule(name, nn.Conv2d(channels, first.out_channels, **shape, bias=False))
    return RawDetector(backbone, head)
