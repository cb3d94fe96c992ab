"""Networks for the presets that timm lacks, each the largest SubNet of a published SuperNet, and shared layers.

Presets name them as model=callable. Shapes: B batch, C channels, H height, W width.
"""

from collections.abc import Callable

import torch
from torch import nn

Activation = Callable[[], nn.Module]

SHARE_OF_SQUEEZE = 4


def divisible(value: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `value`, not below 90 % of it. Source: MobileNetV2 (CVPR 2018), reference code."""
    result = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return result if result >= 0.9 * value else result + divisor


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: Activation | None = None,
) -> nn.Sequential:
    """Convolution without bias, BatchNorm, and an optional activation; the output has ⌈H / stride⌉ rows."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class SqueezeExcitation(nn.Module):
    """Scales each channel by a function of all channels' means. Source: SENet (CVPR 2018), as in MobileNetV3 (ICCV 2019)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = divisible(channels / SHARE_OF_SQUEEZE)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW * self.gate(self.expand(self.activation(self.reduce(self.pool(x_BCHW)))))


class MBConv(nn.Module):
    """Pointwise expansion, depthwise convolution, pointwise projection; a shortcut if the shape stays the same.

    `expand` 1 leaves out the expansion. Source: MobileNetV2 (CVPR 2018); with squeeze-excitation, MobileNetV3 (ICCV 2019).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        expand: int,
        activation: Activation,
        stride: int = 1,
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand > 1:
            layers.append(conv_norm(inputs, hidden, activation=activation))
        layers.append(conv_norm(hidden, hidden, kernel, stride=stride, groups=hidden, activation=activation))
        if squeeze:
            layers.append(SqueezeExcitation(hidden))
        layers.append(conv_norm(hidden, outputs))
        self.body = nn.Sequential(*layers)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        y_BCHW: torch.Tensor = self.body(x_BCHW)
        return x_BCHW + y_BCHW if self.shortcut else y_BCHW
