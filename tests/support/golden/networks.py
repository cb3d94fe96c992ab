"""The networks whose numbers are golden: the small ones of the IR's tests, and real ones of different structure."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import timm
import torch
from torch import nn

import tailor_ir
from benchmarks.elastic import compiled as preset
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import long
from tests.support.ir.elastic_networks import Convolutional, Residual, inverted
from tests.support.ir.elastic_networks import compiled as elastic
from tests.support.ir.networks import small_net

CLASSES = 10


class Chain(nn.Sequential):
    """Convolutions without shortcuts."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


def nested() -> nn.Module:
    """Residual blocks around residual blocks."""
    return Convolutional(*(Residual(nn.Sequential(inverted(3), inverted(5))) for _ in range(2)), inverted(3))


def _handmade(model: Callable[[], nn.Module], kernel_transform: bool = False) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(model().eval(), torch.zeros(1, 3, 32, 32), kernel_transform=kernel_transform)


def _smallest() -> tailor_ir.SuperNet:
    space: SpaceSpec = {"resolution": [24, 32], "stage.*.depth": [-1, 0], "stage.*.block.*.expand_ratio": [0.5, 1, 2]}
    return tailor_ir.compile(small_net(8, 16, 2), torch.zeros(1, 3, 32, 32), space)


def _timm(name: str, size: int) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES).eval()
    return tailor_ir.compile(model, torch.zeros(1, 3, size, size))


SMALL: dict[str, Callable[[], tailor_ir.SuperNet]] = {
    "smallest": _smallest,
    "convolution": partial(elastic, "convolution and BatchNorm"),
    "depthwise": partial(elastic, "depthwise convolution, centre of the kernel"),
    "grouped": partial(elastic, "grouped convolution and GroupNorm"),
    "standardised": partial(elastic, "standardised weights"),
    "attention": partial(elastic, "attention, linear and LayerNorm"),
    "position_embedding": partial(elastic, "position embedding, resampled"),
    "relative_position_bias": partial(elastic, "relative position bias, looked up and resampled"),
    "used_twice": partial(elastic, "one module used twice"),
    "chain": partial(_handmade, Chain),
    "nested": partial(_handmade, nested),
    "kernel_transform": partial(_handmade, nested, kernel_transform=True),
}

REAL: dict[str, Callable[[], tailor_ir.SuperNet]] = {
    **{name: partial(preset, name) for name in ("mobilenetv2", "resnet50", "convnext_tiny", "levit")},
    "mobilenetv3_small_050": partial(_timm, "mobilenetv3_small_050", 64),
    "densenet121": partial(_timm, "densenet121", 64),
    "hrnet_w18_small": partial(_timm, "hrnet_w18_small", 64),
    "pit_ti_224": partial(_timm, "pit_ti_224", 224),
    "test_vit_relpos": partial(_timm, "test_vit_relpos", 160),
}

NETWORKS = SMALL | REAL
LARGE = ("levit", "densenet121", "convnext_tiny", "resnet50", "hrnet_w18_small", "pit_ti_224")


def cases(names: Iterable[str]) -> list[Any]:
    """Names of networks for a parametrised test; `make test-all` alone takes the large ones."""
    return [long(name) if name in LARGE else name for name in names]


@cache
def network(name: str) -> tailor_ir.SuperNet:
    """The SuperNet of one of the networks, compiled once."""
    return NETWORKS[name]()
