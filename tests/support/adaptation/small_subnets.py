"""Small SuperNets of each kind of normalisation, and batches for their SubNets."""

from typing import Any

import timm
import torch
from torch import nn

import tailor_ir
from tailor_ir import Config, SuperNet
from tests.support.ir.networks import small_net


class GroupNet(nn.Module):
    """Two convolutions with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


def supernet(kind: str) -> SuperNet:
    """kind: batch, layer or group. For images (B, 3, 32, 32), 5 classes."""
    torch.manual_seed(0)
    if kind == "batch":
        network: nn.Module = small_net(8, 16)
    elif kind == "layer":
        options: dict[str, Any] = {
            "img_size": 32,
            "patch_size": 8,
            "embed_dim": 24,
            "depth": 2,
            "num_heads": 2,
            "num_classes": 5,
        }
        network = timm.create_model("vit_tiny_patch16_224", **options)
    else:
        network = GroupNet()
    return tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32))


def smallest(net: SuperNet) -> Config:
    """The smallest SubNet for images of 32 pixels."""
    return {**net.min_config, **{name: choice for name, choice in net.max_config.items() if name == "resolution"}}


def batches(count: int, size: int = 8, *, shift: float = 0.0, seed: int = 0) -> list[torch.Tensor]:
    """Batches (B, 3, 32, 32) of noise, moved by `shift`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=generator) + shift for _ in range(count)]
