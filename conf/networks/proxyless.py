"""OFA's ProxylessNAS network (w1.3): the largest network of its SuperNet.

Source: Once-for-All (Cai et al., ICLR 2020), https://arxiv.org/abs/1908.09791, over the space of ProxylessNAS (Cai et
al., ICLR 2019), https://arxiv.org/abs/1812.00332.
"""

from typing import NamedTuple

from torch import nn

from conf.networks.layers import MBConv, conv_norm, divisible

WIDTH_MULT = 1.3
KERNEL = 7
EXPAND = 6
FIRST = 32
FIRST_BLOCK = 16
FEATURES = 1280


class Stage(NamedTuple):
    """One stage before `WIDTH_MULT`: the first block has the stride, the others a shortcut."""

    width: int
    stride: int
    blocks: int


STAGES = (Stage(24, 2, 4), Stage(40, 2, 4), Stage(80, 2, 4), Stage(96, 1, 4), Stage(192, 2, 4), Stage(320, 1, 1))


def network(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    """(B, in_chans, H, W) images -> (B, num_classes) logits. 21 blocks, kernel 7, expansion 6, after a fixed one."""
    first, width = divisible(FIRST * WIDTH_MULT), divisible(FIRST_BLOCK * WIDTH_MULT)
    blocks: list[nn.Module] = [MBConv(first, width, kernel=3, expand=1, activation=nn.ReLU6)]
    for stage in STAGES:
        outputs = divisible(stage.width * WIDTH_MULT)
        for position in range(stage.blocks):
            stride = stage.stride if position == 0 else 1
            blocks.append(MBConv(width, outputs, kernel=KERNEL, expand=EXPAND, activation=nn.ReLU6, stride=stride))
            width = outputs
    features = divisible(FEATURES * WIDTH_MULT)
    return nn.Sequential(
        conv_norm(in_chans, first, 3, stride=2, activation=nn.ReLU6),
        *blocks,
        conv_norm(width, features, activation=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(features, num_classes),
    )
