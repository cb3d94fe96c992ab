"""LRASPP on MobileNetV3-Large for segmentation: torchvision's without the final upsampling, which losses and scores do.

Source: Searching for MobileNetV3 (ICCV 2019) §6.4.
"""

import torch
from torch import nn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


class RawLRASPP(nn.Module):
    """(B, C, H, W) images -> (B, classes, H / 8, W / 8) logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of each class at each position."""
        logits_BKhw: torch.Tensor = self.head(self.backbone(x_BCHW))
        return logits_BKhw


def network(num_classes: int = 21, in_chans: int = 3) -> nn.Module:
    """The network with random weights."""
    whole = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)
    if in_chans != 3:
        stem = whole.backbone["0"]
        width = stem[0].out_channels
        stem[0] = nn.Conv2d(in_chans, width, kernel_size=3, stride=2, padding=1, bias=False)
    return RawLRASPP(whole.backbone, whole.classifier)
