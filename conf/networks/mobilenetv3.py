"""OFA's MobileNetV3 (w1.0): the largest network of its SuperNet.

Source: Once-for-All (Cai et al., ICLR 2020), https://arxiv.org/abs/1908.09791, with the layers of MobileNetV3 (Howard et al.,
ICCV 2019), https://arxiv.org/abs/1905.02244.
"""

from typing import NamedTuple

from torch import nn

from conf.networks.layers import Activation, MBConv, conv_norm

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


def network(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
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
