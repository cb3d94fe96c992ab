"""Images that are not square have one resolution that scales both sides; images with channels last have one, too."""

from math import gcd

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.errors import SpaceError
from tests.unit.ir.forms import check_forms, check_subnet

EXAMPLES = settings(max_examples=4, deadline=None, derandomize=True)


class Pooled(nn.Module):
    """Convolutions with strides, and the mean of what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1))
        self.o = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(F.adaptive_avg_pool2d(torch.relu(self.body(x)), 1).flatten(1))


class Decoder(nn.Module):
    """Down and up again, as in a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.o = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        return self.o(torch.cat((x, self.up(torch.relu(self.b(x)))), 1))


class Patches(nn.Module):
    """Attention over patches with an embedding of their positions."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, size[0] * size[1] // 16, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        self.o = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.o(self.layer(x).mean(1))


def _network(kind: str, size: tuple[int, int]) -> nn.Module:
    return {"pooled": Pooled, "decoder": Decoder}[kind]() if kind != "patches" else Patches(size)


class ChannelsLast(nn.Module):
    """A network of images (B, H, W, C), scaled before their channels are brought to the front."""

    mean: torch.Tensor

    def __init__(self, body: nn.Module, scaled: bool) -> None:
        super().__init__()
        self.body, self.scaled = body, scaled
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / 2 if self.scaled else x
        return self.body(x.permute(0, 3, 1, 2))


def _check_ratio(net: tailor_ir.SuperNet, size: tuple[int, int]) -> None:
    (variable,) = [one for one in net.space.variables if one.kind == "resolution"]
    assert len(variable.choices) > 1
    for choice in variable.choices:
        height, width = net.input_size({"resolution": choice})
        assert height == choice
        assert height * size[1] == width * size[0]


@EXAMPLES
@given(
    kind=st.sampled_from(("pooled", "decoder", "patches")),
    size=st.sampled_from(((16, 32), (32, 16), (24, 40), (16, 64))),
)
def test_the_resolution_scales_both_sides_of_an_image_that_is_not_square(kind: str, size: tuple[int, int]) -> None:
    net = check_forms(_network(kind, size), torch.randn(1, 3, *size), subnets=3)
    assert net is not None
    _check_ratio(net, size)


@EXAMPLES
@given(
    kind=st.sampled_from(("pooled", "decoder", "patches")),
    size=st.sampled_from(((32, 32), (16, 32), (24, 40))),
    scaled=st.booleans(),
)
def test_images_with_channels_last_have_a_resolution(kind: str, size: tuple[int, int], scaled: bool) -> None:
    net = check_forms(ChannelsLast(_network(kind, size), scaled), torch.randn(1, *size, 3), subnets=3)
    assert net is not None
    _check_ratio(net, size)
    height, width = net.input_size(net.min_config)
    assert net.input_shape(net.min_config, 2) == (2, height, width, 3)


def test_a_ratio_of_no_smaller_whole_numbers_is_told() -> None:
    net = tailor_ir.compile(Pooled().eval(), torch.randn(1, 3, 20, 33))
    assert gcd(20, 33) == 1
    assert [line for line in net.space.dropped if "resolution" in line and "ratio 20 : 33" in line]


def test_a_wish_that_does_not_keep_the_ratio_is_refused() -> None:
    with pytest.raises(SpaceError, match="ratio 24 : 40; multiples of 3 have"):
        tailor_ir.compile(Pooled().eval(), torch.randn(1, 3, 24, 40), {"resolution": [16, 24]})


def test_other_four_axes_than_images_with_channels_last_are_read_as_before() -> None:
    class Channels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x).mean((2, 3)) + self.b(x.permute(0, 3, 1, 2)).mean((2, 3))

    net = check_forms(Channels(), torch.randn(1, 8, 8, 8))
    assert net is not None
    assert net.structure.graph.sides_of("input") == (2, 3)


def test_grey_images_with_channels_last_come_to_the_front_by_a_reshape() -> None:
    """As tf2onnx writes images of one channel."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 1, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((16, 5)).astype(np.float32),
        "front": np.array([-1, 1, 16, 24]),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "front"], ["f"]),
        helper.make_node("Conv", ["f", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "grey",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 24, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    net = tailor_ir.compile(model)
    _check_ratio(net, (16, 24))
    check_subnet(net, net.min_config, torch.zeros(1, 16, 24, 1))
