"""The largest network of ElasticViT's SuperNet: mobile convolutions first, then LeViT's transformer blocks.

Source: ElasticViT (Tang et al., ICCV 2023), https://arxiv.org/abs/2303.09730; BatchNorm after every projection, small keys and
wide values as in LeViT (Graham et al., ICCV 2021), https://arxiv.org/abs/2104.01136.

Differences from the paper: the second block of the stem, not the first of the first stage, halves the resolution, so that all
five blocks of that stage can be skipped; blocks that change the shape have no shortcut; there are no relative positions, which
would tie the weights to one resolution (the convolution at the start of each stage sees positions).

Shapes: B batch, C channels, H height, W width, G heads, D size of a head, N positions (H · W).
"""

from typing import NamedTuple

import torch
from torch import nn

from conf.networks import MBConv, conv_norm

STEM = 24
KERNEL = 5
EXPAND = 6
KEY_SIZE = 16
V_SCALE = 4
FFN_EXPAND = 5
HEAD_EXPAND = 6
FEATURES = 1984


class Stage(NamedTuple):
    """`blocks` of one kind; in a transformer stage they follow the downsampling convolution."""

    width: int
    stride: int
    blocks: int


FIRST_STAGE = Stage(32, 1, 5)
SECOND_STAGE = Stage(48, 2, 6)
TRANSFORMER_STAGES = (Stage(96, 2, 5), Stage(160, 1, 6), Stage(288, 2, 6), Stage(320, 2, 6))


class Attention(nn.Module):
    """Self-attention over all positions, with width / 16 heads of key size 16; values are `v_scale` times as wide as keys."""

    def __init__(self, width: int, v_scale: int = V_SCALE) -> None:
        super().__init__()
        self.heads = width // KEY_SIZE
        self.value_size = v_scale * KEY_SIZE
        self.query = conv_norm(width, self.heads * KEY_SIZE)
        self.key = conv_norm(width, self.heads * KEY_SIZE)
        self.value = conv_norm(width, self.heads * self.value_size)
        self.activation = nn.Hardswish()
        self.project = conv_norm(self.heads * self.value_size, width)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x_BCHW.shape
        query_BGDN = self.query(x_BCHW).reshape(batch, self.heads, KEY_SIZE, height * width)
        key_BGDN = self.key(x_BCHW).reshape(batch, self.heads, KEY_SIZE, height * width)
        value_BGDN = self.value(x_BCHW).reshape(batch, self.heads, self.value_size, height * width)
        share_BGNN = ((query_BGDN.transpose(-2, -1) @ key_BGDN) * KEY_SIZE**-0.5).softmax(dim=-1)
        read_BGDN = value_BGDN @ share_BGNN.transpose(-2, -1)
        read_BCHW = read_BGDN.reshape(batch, self.heads * self.value_size, height, width)
        return x_BCHW + self.project(self.activation(read_BCHW))


class FFN(nn.Module):
    """Two pointwise layers at each position."""

    def __init__(self, width: int, expand: int = FFN_EXPAND) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(width, expand * width, activation=nn.Hardswish), conv_norm(expand * width, width)
        )

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW + self.body(x_BCHW)


def _separable(inputs: int, outputs: int, stride: int = 1) -> MBConv:
    return MBConv(inputs, outputs, kernel=KERNEL, expand=1, activation=nn.Hardswish, stride=stride)


def _mobile(inputs: int, outputs: int, stride: int = 1, *, squeeze: bool) -> MBConv:
    return MBConv(
        inputs, outputs, kernel=KERNEL, expand=EXPAND, activation=nn.Hardswish, stride=stride, squeeze=squeeze
    )


def network(num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    """(B, in_chans, H, W) images -> (B, num_classes) logits; meant for H = W = 256."""
    width = FIRST_STAGE.width
    blocks: list[nn.Module] = [
        conv_norm(in_chans, STEM, 3, stride=2, activation=nn.Hardswish),
        _separable(STEM, STEM),
        _separable(STEM, width, stride=2),
        *(_mobile(width, width, squeeze=False) for _ in range(FIRST_STAGE.blocks)),
    ]
    for position in range(SECOND_STAGE.blocks):
        stride = SECOND_STAGE.stride if position == 0 else 1
        blocks.append(_mobile(width, SECOND_STAGE.width, stride, squeeze=True))
        width = SECOND_STAGE.width
    for stage in TRANSFORMER_STAGES:
        blocks.append(_mobile(width, stage.width, stage.stride, squeeze=True))
        width = stage.width
        for _ in range(stage.blocks):
            blocks += [Attention(width), FFN(width)]
    return nn.Sequential(
        *blocks,
        conv_norm(width, HEAD_EXPAND * width, activation=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(HEAD_EXPAND * width, FEATURES),
        nn.Hardswish(),
        nn.Linear(FEATURES, num_classes),
    )
