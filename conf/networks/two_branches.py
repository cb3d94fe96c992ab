"""A small network for an image and a short signal, for example of an accelerometer: a branch for each, joined to logits.

Residual blocks follow He et al., CVPR 2016, https://arxiv.org/abs/1512.03385. The branches are joined after their means.

Shapes: B batch, C channels, H height, W width, A axes of the signal, T its samples, K classes.
"""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import nn

from conf.networks import conv_norm

LEVELS = 3
"""Stages of each branch; each halves the number of positions and doubles the channels."""
KERNEL = 5
"""Kernel size of convolutions over the signal [samples]."""


class Residual(nn.Module):
    """Two layers with a shortcut around them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(first, second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, …) -> (B, C, …)."""
        return torch.relu(x + self.body(x))


class TwoBranches(nn.Module):
    """image (B, C, H, W), motion (B, A, T) -> (B, K) logits."""

    def __init__(self, classes: int, channels: int, axes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(LEVELS)]
        self.seen, self.felt = nn.Sequential(), nn.Sequential()
        for before, after in pairwise([channels, *widths]):
            self.seen.append(conv_norm(before, after, 3, stride=2, activation=nn.ReLU))
            for _ in range(depth):
                self.seen.append(Residual(conv_norm(after, after, 3, activation=nn.ReLU), conv_norm(after, after, 3)))
        for before, after in pairwise([axes, *widths]):
            self.felt.append(_signal_layer(before, after, stride=2, activates=True))
            self.felt.append(Residual(_signal_layer(after, after, activates=True), _signal_layer(after, after)))
        self.joined = nn.Sequential(nn.Linear(2 * widths[-1], widths[-1]), nn.ReLU(), nn.Linear(widths[-1], classes))

    def forward(self, image: torch.Tensor, motion: torch.Tensor) -> torch.Tensor:
        """Logits of each sample, from the means of both branches over all positions."""
        seen_BC, felt_BC = self.seen(image).mean((2, 3)), self.felt(motion).mean(2)
        logits_BK: torch.Tensor = self.joined(torch.cat((seen_BC, felt_BC), 1))
        return logits_BK


def _signal_layer(inputs: int, outputs: int, *, stride: int = 1, activates: bool = False) -> nn.Sequential:
    """Convolution without bias, BatchNorm, and ReLU if `activates`; the output has ⌈T / stride⌉ samples."""
    convolution = nn.Conv1d(inputs, outputs, KERNEL, stride=stride, padding=KERNEL // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm1d(outputs), *([nn.ReLU()] if activates else []))


def network(num_classes: int, shapes: Mapping[str, tuple[int, ...]], width: int = 16, depth: int = 2) -> nn.Module:
    """The network with random weights. shapes: of one `image` and its `motion`.

    width: channels of the first stage of each branch. depth: blocks in each stage of the image's branch.
    """
    return TwoBranches(num_classes, shapes["image"][0], shapes["motion"][0], width, depth)
