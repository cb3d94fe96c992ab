"""Convolutions, normalisations, pooling, resizing, matrix products and recurrence, each inside a small network."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.ir.invariants import check_network, operators_of
from tests.support.ir.networks import perturb
from tests.unit.ir.test_ops_elementwise import HIDDEN, Around, Function

Make = Callable[[], nn.Module]


class Squeezed(nn.Module):
    """Half the size, `make()`'s layer, and back to the size of x where the layer does not do it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(F.avg_pool2d(x, 2))


class RmsNorm2d(nn.Module):
    """Root mean square over channels, written out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * self.weight[:, None, None]


class LayerNormWrittenOut(nn.Module):
    """LayerNorm along an axis as formulas."""

    def __init__(self, channels: int, axis: int) -> None:
        super().__init__()
        self.axis = axis
        shape = (channels, 1, 1) if axis == 1 else (channels,)
        self.weight, self.bias = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.rand(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(self.axis, keepdim=True)
        variance = centred.pow(2).mean(self.axis, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class ChannelsLast(nn.Module):
    """A layer for the last axis on channels of (B, C, H, W)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight is standardised for each output channel. Source: NFNets, timm's ScaledStdConv2d."""

    def __init__(self, *arguments: int, **settings: int) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        gain = (self.gain * 0.3).view(-1)
        weight = F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-5)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=1)


class Rows(nn.Module):
    """A recurrent layer along the rows of (B, C, H, W), and a linear map back."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.back = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(batch * height, width, channels)
        y = self.back(self.layer(rows)[0])
        return y.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


class Mixing(nn.Module):
    """Channels mixed by an einsum with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN, HIDDEN) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bchw,cd->bdhw", x, self.weight)


CONVOLUTIONS: dict[str, Make] = {
    "depthwise": lambda: nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1, groups=HIDDEN),
    "depthwise, two for each channel": lambda: nn.Sequential(
        nn.Conv2d(HIDDEN, 2 * HIDDEN, 3, padding=1, groups=HIDDEN), nn.Conv2d(2 * HIDDEN, HIDDEN, 1)
    ),
    "grouped": lambda: nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1, groups=8),
    "grouped, then shuffled by a linear map": lambda: nn.Sequential(
        nn.Conv2d(HIDDEN, 2 * HIDDEN, 1, groups=4), nn.ReLU(), nn.Conv2d(2 * HIDDEN, HIDDEN, 1)
    ),
    "dilated": lambda: nn.Conv2d(HIDDEN, HIDDEN, 3, padding=2, dilation=2),
    "rectangular": lambda: nn.Conv2d(HIDDEN, HIDDEN, (1, 5), padding=(0, 2)),
    "same padding, even kernel": lambda: nn.Conv2d(HIDDEN, HIDDEN, 4, padding="same"),
    "reflected padding": lambda: nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1, padding_mode="reflect"),
    "replicated padding": lambda: nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1, padding_mode="replicate"),
    "transposed": lambda: Squeezed(nn.ConvTranspose2d(HIDDEN, HIDDEN, 4, stride=2, padding=1)),
    "transposed, output padding": lambda: Squeezed(
        nn.ConvTranspose2d(HIDDEN, HIDDEN, 3, stride=2, padding=1, output_padding=1)
    ),
    "transposed, grouped": lambda: Squeezed(nn.ConvTranspose2d(HIDDEN, HIDDEN, 2, stride=2, groups=8)),
    "transposed, depthwise": lambda: Squeezed(nn.ConvTranspose2d(HIDDEN, HIDDEN, 2, stride=2, groups=HIDDEN)),
    "three-dimensional": lambda: Function(_volume()),
    "standardised weight": lambda: StandardisedConv(HIDDEN, HIDDEN, 3, padding=1),
}


def _volume() -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.avg_pool3d(x.unsqueeze(2), (1, 3, 3), 1, (0, 1, 1)).squeeze(2)


NORMALISATIONS: dict[str, tuple[Make, str]] = {
    "group of all": (lambda: nn.GroupNorm(1, HIDDEN), "GroupNorm"),
    "groups": (lambda: nn.GroupNorm(8, HIDDEN), "GroupNorm"),
    "groups without weights": (lambda: nn.GroupNorm(8, HIDDEN, affine=False), "GroupNorm"),
    "instance": (lambda: nn.InstanceNorm2d(HIDDEN, eps=0.1, affine=True), "InstanceNormalization"),
    "instance without weights": (lambda: nn.InstanceNorm2d(HIDDEN, eps=0.1), "InstanceNormalization"),
    "layer": (lambda: ChannelsLast(nn.LayerNorm(HIDDEN)), "LayerNormalization"),
    "layer written out": (lambda: ChannelsLast(LayerNormWrittenOut(HIDDEN, -1)), "LayerNormalization"),
    "layer over channels": (lambda: LayerNormWrittenOut(HIDDEN, 1), "ReduceMean"),
    "root mean square": (lambda: ChannelsLast(nn.RMSNorm(HIDDEN, eps=1e-6)), "RmsNorm"),
    "root mean square over channels": (lambda: RmsNorm2d(HIDDEN), "RmsNorm"),
    "length": (lambda: Function(lambda x: F.normalize(x, dim=1)), "ReduceL2"),
}
POOLING: dict[str, Make] = {
    "maximum": lambda: nn.MaxPool2d(3, 1, 1),
    "maximum, rounded up": lambda: nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Upsample(scale_factor=2)),
    "average, padding counts": lambda: nn.AvgPool2d(3, 1, 1),
    "average, padding does not count": lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    "adaptive": lambda: Function(lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1))),
    "adaptive maximum": lambda: Function(lambda x: x * torch.sigmoid(F.adaptive_max_pool2d(x, 1))),
}
RESIZING: dict[str, Make] = {
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "nearest exact": lambda: nn.Upsample(scale_factor=2, mode="nearest-exact"),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    "bicubic": lambda: nn.Upsample(scale_factor=2, mode="bicubic"),
    "shuffled": lambda: nn.Sequential(nn.Conv2d(HIDDEN, 4 * HIDDEN, 1), nn.PixelShuffle(2)),
}
PADDING: dict[str, Make] = {
    "zeros on one side": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(2, 1)),
    "reflection": lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.AvgPool2d(3, 1)),
    "replication": lambda: nn.Sequential(nn.ReplicationPad2d(1), nn.AvgPool2d(3, 1)),
    "a constant": lambda: nn.Sequential(nn.ConstantPad2d(1, 0.5), nn.AvgPool2d(3, 1)),
    "shifted": lambda: nn.ZeroPad2d((-1, 1, -1, 1)),
}
PRODUCTS: dict[str, Make] = {
    "einsum": Mixing,
    "einsum of two": lambda: Function(lambda x: torch.einsum("bchw,bdhw->bcd", x, x).mean(2)[:, :, None, None] * x),
    "einsum with an ellipsis": lambda: Function(lambda x: x + 0.01 * torch.einsum("...hw,...ww->...hw", x, x)),
    "channels last": lambda: ChannelsLast(nn.Linear(HIDDEN, HIDDEN)),
}
RECURRENCE: dict[str, Make] = {
    "lstm": lambda: Rows(nn.LSTM(HIDDEN, 12, batch_first=True)),
    "lstm of two directions": lambda: Rows(nn.LSTM(HIDDEN, 12, batch_first=True, bidirectional=True)),
    "lstm without bias": lambda: Rows(nn.LSTM(HIDDEN, 12, batch_first=True, bias=False)),
    "lstm of two layers": lambda: Rows(nn.LSTM(HIDDEN, 12, batch_first=True, num_layers=2)),
    "gru": lambda: Rows(nn.GRU(HIDDEN, 12, batch_first=True)),
    "gru of two directions": lambda: Rows(nn.GRU(HIDDEN, 12, batch_first=True, bidirectional=True)),
}


def around(make: Make) -> nn.Module:
    torch.manual_seed(0)
    return perturb(Around(make))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, tmp_path: Path) -> None:
    net = check_network(around(CONVOLUTIONS[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_normalisations(name: str, tmp_path: Path) -> None:
    make, operator = NORMALISATIONS[name]
    net = check_network(around(make), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}
    assert operator in operators_of(net)


@pytest.mark.parametrize("name", POOLING)
def test_pooling(name: str, tmp_path: Path) -> None:
    net = check_network(around(POOLING[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", RESIZING)
def test_resizing(name: str, tmp_path: Path) -> None:
    net = check_network(around(lambda: Squeezed(RESIZING[name]())), torch.randn(1, 3, 32, 32), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"resolution", "depth", "expand_ratio"}


@pytest.mark.parametrize("name", PADDING)
def test_padding(name: str, tmp_path: Path) -> None:
    net = check_network(around(PADDING[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, tmp_path: Path) -> None:
    net = check_network(around(PRODUCTS[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", RECURRENCE)
def test_recurrence(name: str, tmp_path: Path) -> None:
    net = check_network(around(RECURRENCE[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


def test_buffers_outside_the_state_keep_their_values(tmp_path: Path) -> None:
    class Blurred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(
                "kernel", torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])) / 16, False
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kernel = self.get_buffer("kernel").expand(x.shape[1], 1, 3, 3)
            return F.conv2d(x, kernel, padding=1, groups=x.shape[1])

    net = check_network(around(Blurred), torch.randn(1, 3, 16, 16), tmp_path)
    assert "depth" in {v.kind for v in net.space.variables}


def test_constants_that_are_made_for_each_sample_follow_the_batch(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Conv2d(2, HIDDEN, 1)
            self.bias = nn.Parameter(torch.randn(1, HIDDEN, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, _, height, width = x.shape
            filled = torch.ones(batch, height, width)
            positions = torch.stack((filled.cumsum(1), filled.cumsum(2)), 1) / height
            return x + self.project(positions) + self.bias.expand(batch, -1, height, width)

    net = check_network(around(Positions), torch.randn(1, 3, 16, 16), tmp_path)
    assert "depth" in {v.kind for v in net.space.variables}


def test_sliding_windows(tmp_path: Path) -> None:
    def halo(x: torch.Tensor) -> torch.Tensor:
        windows = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        return windows.mean((-1, -2))

    net = check_network(around(lambda: Function(halo)), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}
