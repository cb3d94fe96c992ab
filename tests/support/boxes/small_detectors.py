"""Small detectors with torchvision's heads, which compile and train in seconds."""

from collections import OrderedDict
from functools import partial

import torch
from torch import nn
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.ops import FeaturePyramidNetwork

from adaptive_runtime.samples.boxes import FCOS, RETINANET, SSDLITE
from conf.networks.detectors import RawDetector

WIDTH = 32


def _conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions, with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(width, width), nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.body(x)))


class Maps(nn.Module):
    """Feature maps of so many levels, each of half the rows of the one before, from `stride` on; in a pyramid if asked."""

    def __init__(self, channels: int, stride: int, levels: int, *, pyramid: bool) -> None:
        super().__init__()
        stem: list[nn.Module] = []
        while stride > 2:
            stem.append(_conv(channels, WIDTH, stride=2))
            channels, stride = WIDTH, stride // 2
        self.stem = nn.Sequential(*stem)
        stages = [_conv(WIDTH, WIDTH, stride=2) for _ in range(levels)]
        stages[0].extend([Residual(WIDTH), Residual(WIDTH)])
        self.stages = nn.ModuleList(stages)
        self.pyramid = FeaturePyramidNetwork([WIDTH] * levels, WIDTH) if pyramid else None

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = OrderedDict()
        x = self.stem(x)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            found[str(number)] = x
        return found if self.pyramid is None else self.pyramid(found)


def ssdlite(num_classes: int, in_chans: int) -> nn.Module:
    levels = len(SSDLITE.strides)
    norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)
    head = SSDLiteHead([WIDTH] * levels, [SSDLITE.shapes] * levels, num_classes, norm)
    return RawDetector(Maps(in_chans, SSDLITE.strides[0], levels, pyramid=False), head)


def retinanet(num_classes: int, in_chans: int) -> nn.Module:
    maps = Maps(in_chans, RETINANET.strides[0], len(RETINANET.strides), pyramid=True)
    return RawDetector(maps, RetinaNetHead(WIDTH, RETINANET.shapes, num_classes))


def fcos(num_classes: int, in_chans: int) -> nn.Module:
    maps = Maps(in_chans, FCOS.strides[0], len(FCOS.strides), pyramid=True)
    return RawDetector(maps, FCOSHead(WIDTH, FCOS.shapes, num_classes))
