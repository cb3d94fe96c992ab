"""DeepLabV3 for segmentation: torchvision's without the final upsampling, which losses and scores do.

Source: Rethinking Atrous Convolution for Semantic Image Segmentation (arXiv 1706.05587) §3.
"""

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import nn
from torchvision.models import segmentation

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


def network(num_classes: int = 21, in_chans: int = 3, backbone: str = "mobilenet_v3_large") -> nn.Module:
    """The network with random weights. backbone: `mobilenet_v3_large`, `resnet50` or `resnet101`."""
    whole = NETWORKS[backbone](weights=None, weights_backbone=None, num_classes=num_classes)
    if in_chans != 3:
        place, name = (whole.backbone, "conv1") if backbone.startswith("resnet") else (whole.backbone["0"], "0")
        stem = getattr(place, name)
        stem = nn.Conv2d(in_chans, stem.out_channels, stem.kernel_size, stem.stride, stem.padding, bias=False)
        setattr(place, name, stem)
    return RawDeepLab(whole.backbone, whole.classifier)
