"""One operator inside a small network, and the check of all of its forms."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper
from torch import nn

import tailor_ir

WIDTH, SIDE = 32, 8
EXACT, EXPORTED = 1e-4, 2e-4
"""Largest difference relative to the largest output, fp32: torch against torch, torch against onnxruntime."""


class Around(nn.Module):
    """A convolution, `body`, a convolution with BatchNorm where the result is an image, and a classifier."""

    def __init__(self, body: nn.Module | Callable[[torch.Tensor], torch.Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.body = body
        self.last = nn.Sequential(nn.Conv2d(width, WIDTH, 1), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.body(torch.relu(self.stem(x)))).mean((2, 3)))


def network(body: nn.Module | Callable[[torch.Tensor], torch.Tensor], width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    return Around(body, width).eval()


def difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    assert expected.shape == found.shape
    return float((expected - found).abs().max() / expected.abs().max().clamp_min(1e-12))


def check(model: nn.Module, folder: Path, side: int = SIDE) -> tailor_ir.SuperNet:
    """The largest SubNet is the original, and SubNets agree as part of the SuperNet, built and in onnxruntime."""
    net = tailor_ir.compile(model, torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1)))
    net.elastic.eval().activate(net.max_config)
    for batch in (1, 3):
        x = torch.randn(net.input_shape(net.max_config, batch), generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            assert difference(model(x), net.elastic(x)) <= EXACT
    check_subnets(net, folder)
    return net


@torch.no_grad()
def check_subnets(net: tailor_ir.SuperNet, folder: Path) -> None:
    """The smallest SubNet and one more: elastic = built = exported, in batches of 1 and 3."""
    for config in (net.min_config, net.space.sample(np.random.default_rng(0))):
        net.elastic.activate(config)
        built = net.build(config).eval()
        for batch in (1, 3):
            x = torch.randn(
                next(iter(net.input_shapes(config, batch).values())), generator=torch.Generator().manual_seed(batch)
            )
            expected = net.elastic(x)
            assert difference(expected, built(x)) <= EXACT, config
            net.export(config, folder / "subnet.onnx", batch=batch)
            session = onnxruntime.InferenceSession(folder / "subnet.onnx", providers=["CPUExecutionProvider"])
            (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            assert difference(expected, torch.from_numpy(found)) <= EXPORTED, config
        assert set(net.operators(config)) <= net.unique_operators().keys()


def operators_of(net: tailor_ir.SuperNet) -> set[str]:
    """Names of the operators that the network has after all rewriting."""
    return {node.op for node in net.structure.graph.nodes}


def is_elastic(net: tailor_ir.SuperNet, kind: str) -> bool:
    """Whether the space has a variable of a kind with at least two choices."""
    return any(variable.kind == kind and len(variable.choices) > 1 for variable in net.space.variables)


# -- files -----------------------------------------------------------------------------------------------------------


def array(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def node(op: str, *operands: str, **attributes: object) -> onnx.NodeProto:
    """An operator from `a` and other operands to `b`."""
    return helper.make_node(op, ["a", *operands], ["b"], op, **attributes)


def file_around(
    nodes: Sequence[onnx.NodeProto],
    tensors: dict[str, np.ndarray],
    *,
    opset: int = 17,
    channels: int = WIDTH,
    side: int = SIDE,
) -> onnx.ModelProto:
    """x through a 3×3 convolution to `a`, through `nodes` from `a` to `b`, and `channels` of it pooled to y."""
    frame = [
        helper.make_node("Conv", ["x", "stem"], ["stem/y"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem/y"], ["a"]),
        *nodes,
        helper.make_node("GlobalAveragePool", ["b"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    return model_of(
        frame, {"stem": array(WIDTH, 3, 3, 3), "head": array(5, channels), **tensors}, (1, 3, side, side), opset
    )


def model_of(
    nodes: Sequence[onnx.NodeProto], tensors: dict[str, np.ndarray], shape: Sequence[int], opset: int
) -> onnx.ModelProto:
    """A file from x of a shape, whose batch is open, to y (B, 5)."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", *shape[1:]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 5])],
        [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@torch.no_grad()
def check_file(model: onnx.ModelProto, folder: Path) -> tailor_ir.SuperNet:
    """The largest SubNet is the file's network in onnxruntime, and SubNets agree in all forms."""
    onnx.save(model, folder / "network.onnx")
    net = tailor_ir.compile(folder / "network.onnx")
    net.elastic.eval().activate(net.max_config)
    session = onnxruntime.InferenceSession(folder / "network.onnx", providers=["CPUExecutionProvider"])
    (shape,) = net.input_shapes(net.max_config).values()
    for batch in (1, 3):
        x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
        (expected,) = session.run(None, {"x": x.numpy()})
        assert difference(torch.from_numpy(expected), net.elastic(x)) <= EXPORTED
    check_subnets(net, folder)
    return net
