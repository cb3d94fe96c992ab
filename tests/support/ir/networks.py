"""Networks for tests: timm's with BatchNorm statistics and scales that are all different, and small hand-made ones."""

from typing import Any, TypeVar

import timm
import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)

FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "resnet18": ({}, 64),
    "resnet26": ({}, 32),
    "mobilenetv2_050": ({}, 64),
    "mobilenetv2_100": ({}, 64),
    "mobilenetv3_small_050": ({}, 64),
    "mobilenetv3_large_100": ({}, 64),
    "vit_tiny_patch16_224": ({"img_size": 64}, 64),
    "deit_tiny_distilled_patch16_224": ({"img_size": 64}, 64),
}


def perturb(model: Network) -> Network:
    """Give every BatchNorm its own statistics, scale and bias, and weights that start at zero small values."""
    generator = torch.Generator().manual_seed(1)

    def uniform(like: torch.Tensor, low: float, high: float) -> torch.Tensor:
        return torch.rand(like.shape, generator=generator) * (high - low) + low

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(uniform(module.running_mean, -0.2, 0.2))
                module.running_var.copy_(uniform(module.running_var, 0.5, 1.5))
                module.weight.copy_(uniform(module.weight, 0.5, 1.5))
                module.bias.copy_(uniform(module.bias, -0.2, 0.2))
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.copy_(uniform(weight, -0.05, 0.05))
    return model.eval()


def from_timm(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A perturbed timm network of FAMILIES and one sample for it."""
    options, size = FAMILIES[name]
    torch.manual_seed(0)
    return perturb(timm.create_model(name, num_classes=10, **options)), torch.randn(1, 3, size, size)


class ResidualBlock(nn.Module):
    """1×1 to `hidden`, 3×3, back, added to the input."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x + self.body(x))


class DownsamplingBlock(nn.Module):
    """3×3 with stride 2 to `hidden`, 3×3 to `after`, added to a 1×1 of the input with stride 2."""

    def __init__(self, before: int, hidden: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, hidden, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.Conv2d(hidden, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=2, bias=False), nn.BatchNorm2d(after))
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.shortcut(x) + self.body(x))


class SmallNet(nn.Module):
    """Stem, three residual blocks, classifier: small enough to enumerate every SubNet.

    downsampling: the last block but one halves the resolution, and doubles the channels.
    """

    def __init__(self, channels: int = 16, hidden: int = 32, blocks: int = 3, *, downsampling: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(channels, hidden) for _ in range(blocks)))
        if downsampling:
            later = (DownsamplingBlock(channels, hidden, 2 * channels), ResidualBlock(2 * channels, hidden))
            self.blocks = nn.Sequential(*self.blocks[:-2], *later)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2 * channels if downsampling else channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.blocks(self.stem(x))).flatten(1))


def small_net(channels: int = 16, hidden: int = 32, blocks: int = 3, *, downsampling: bool = False) -> SmallNet:
    """A perturbed SmallNet."""
    torch.manual_seed(0)
    return perturb(SmallNet(channels, hidden, blocks, downsampling=downsampling))
