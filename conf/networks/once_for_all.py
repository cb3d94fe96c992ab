"""OFA's MobileNetV3 (w1.0) and ProxylessNAS (w1.3): the largest networks of their SuperNets.

Source: Once-for-All (Cai et al., ICLR 2020), https://arxiv.org/abs/1908.09791, with the layers of MobileNetV3 (Howard
et al., ICCV 2019), https://arxiv.org/abs/1905.02244, and over the space of ProxylessNAS (Cai et al., ICLR 2019),
https://arxiv.org/abs/1812.00332.
"""

from typing import NamedTuple

from torch import nn

from conf.networks import Activation, MBConv, conv_norm, divisible

FIRST = 16
KERNEL = 7
EXPAND = 6
BLOCKS = 4
FINAL = 960
FEATURES = 1280


class Stage(NamedTuple):
    """One dynamic stage: the first block has the stride, the others a shortcut."""

    width: int
    stride: int
    activation: Activation
    squeeze: bool


STAGES = (
    Stage(24, 2, nn.ReLU, False),
    Stage(40, 2, nn.ReLU, True),
    Stage(80, 2, nn.Hardswish, False),
    Stage(112, 1, nn.Hardswish, True),
    Stage(160, 2, nn.Hardswish, True),
)


def mobilenetv3(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    """(B, in_chans, H, W) images -> (B, num_classes) logits. 5 stages of 4 blocks, kernel 7, expansion 6."""
    blocks: list[nn.Module] = [MBConv(FIRST, FIRST, kernel=3, expand=1, activation=nn.ReLU)]
    width = FIRST
    for stage in STAGES:
        for position in range(BLOCKS):
            blocks.append(
                MBConv(
                    width,
                    stage.width,
                    kernel=KERNEL,
                    expand=EXPAND,
                    activation=stage.activation,
                    stride=stage.stride if position == 0 else 1,
                    squeeze=stage.squeeze,
                )
            )
            width = stage.width
    return nn.Sequential(
        conv_norm(in_chans, FIRST, 3, stride=2, activation=nn.Hardswish),
        *blocks,
        conv_norm(width, FINAL, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(FINAL, FEATURES, 1, bias=False),
        nn.Hardswish(),
        nn.Flatten(),
        nn.Linear(FEATURES, num_classes),
    )


WIDTH_MULT = 1.3
PROXYLESS_KERNEL = 7
PROXYLESS_EXPAND = 6
PROXYLESS_FIRST = 32
FIRST_BLOCK = 16
PROXYLESS_FEATURES = 1280


class ProxylessStage(NamedTuple):
    """One stage before `WIDTH_MULT`: the first block has the stride, the others a shortcut."""

    width: int
    stride: int
    blocks: int


PROXYLESS_STAGES = (
    ProxylessStage(24, 2, 4),
    ProxylessStage(40, 2, 4),
    ProxylessStage(80, 2, 4),
    ProxylessStage(96, 1, 4),
    ProxylessStage(192, 2, 4),
    ProxylessStage(320, 1, 1),
)


def proxyless(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    """(B, in_chans, H, W) images -> (B, num_classes) logits. 21 blocks, kernel 7, expansion 6, after a fixed one."""
    first, width = divisible(PROXYLESS_FIRST * WIDTH_MULT), divisible(FIRST_BLOCK * WIDTH_MULT)
    blocks: list[nn.Module] = [MBConv(first, width, kernel=3, expand=1, activation=nn.ReLU6)]
    for stage in PROXYLESS_STAGES:
        outputs = divisible(stage.width * WIDTH_MULT)
        for position in range(stage.blocks):
            stride = stage.stride if position == 0 else 1
            blocks.append(
                MBConv(
                    width, outputs, kernel=PROXYLESS_KERNEL, expand=PROXYLESS_EXPAND, activation=nn.ReLU6, stride=stride
                )
            )
            width = outputs
    features = divisible(PROXYLESS_FEATURES * WIDTH_MULT)
    return nn.Sequential(
        conv_norm(in_chans, first, 3, stride=2, activation=nn.ReLU6),
        *blocks,
        conv_norm(width, features, activation=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(features, num_classes),
    )
