"""Small ONNX models made by hand, and what every SuperNet of one has to hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import tailor_ir
from tailor_ir.graph import NO_BATCH

Sizes = Sequence[int | str | None]
Shapes = Mapping[str, Sizes]


def weight(name: str, *shape: int, kind: str = "float32", seed: int = 0) -> TensorProto:
    """A stored tensor of drawn numbers, of one number where no sizes are given."""
    rng = np.random.default_rng([seed, len(name), *map(ord, name)])
    return numpy_helper.from_array((0.1 * rng.normal(size=shape)).astype(kind), name)


def constant(name: str, values: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    stored: Sequence[TensorProto],
    inputs: Mapping[str, Sizes],
    outputs: Mapping[str, Sizes | None],
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    given, answered = (
        [helper.make_tensor_value_info(name, kind, sizes) for name, sizes in each.items()] for each in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "network", given, answered, list(stored))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def convolutions(kind: str = "float32") -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    """Two convolutions and a linear layer from x (B, 3, 8, 8) to y (B, 5), with their weights."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2", "b2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "head", transB=1),
    ]
    shapes = {"w1": (32, 3, 3, 3), "b1": (32,), "w2": (32, 32, 3, 3), "b2": (32,), "w3": (5, 32), "b3": (5,)}
    return nodes, [weight(name, *shape, kind=kind) for name, shape in shapes.items()]


def run(model: onnx.ModelProto, *given: np.ndarray) -> list[np.ndarray]:
    """The answers of onnxruntime, which rewrites nothing."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: array for one, array in zip(session.get_inputs(), given, strict=True)})


def answers(network: torch.nn.Module, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        found = network(*map(torch.from_numpy, given))
    return [one.detach().numpy() for one in (found if isinstance(found, tuple) else (found,))]


def assert_close(one: Sequence[np.ndarray], other: Sequence[np.ndarray], share: float = 1e-5) -> None:
    """Equal shapes, and equal numbers up to a share of the largest."""
    assert [each.shape for each in one] == [each.shape for each in other]
    for a, b in zip(one, other, strict=True):
        assert float(np.abs(a.astype(float) - b).max(initial=0.0)) <= share * (float(np.abs(a).max(initial=0.0)) or 1.0)


def check_forms(net: tailor_ir.SuperNet, folder: Path) -> None:
    """Elastic, built and exported SubNets answer alike; a sample answers the same in a batch of three as alone."""
    graph = net.structure.graph
    net.elastic.eval()
    for config, batch in ((net.max_config, 1), (net.min_config, 3)):
        net.elastic.activate(config)
        given = net.sample_inputs(config, np.random.default_rng(batch), batch=batch)
        elastic = answers(net.elastic, given)
        assert_close(elastic, answers(net.build(config), given))
        net.export(config, folder / "subnet.onnx", batch=batch)
        exported = onnx.load(folder / "subnet.onnx")
        assert_close(elastic, run(exported, *given))
        check_names(exported)
        assert net.macs(config) >= 0
        assert net.peak_activation_bytes(config) > 0
        assert set(net.operators(config)) <= net.unique_operators().keys()
        axes = [graph.batch_axis(name) for name in graph.inputs]
        alone = [one if axis == NO_BATCH else one.take([0], axis) for one, axis in zip(given, axes, strict=True)]
        for name, one, all_ in zip(graph.outputs, answers(net.elastic, alone), elastic, strict=True):
            batched = [axis for axis, each in enumerate(net.structure.axis_map.axes[name]) if each.batched]
            assert_close([one], [all_.take([0], batched[0])] if batched else [all_])


def check_names(model: onnx.ModelProto) -> None:
    """Each node, and each value that is computed, has a name of its own."""
    nodes = [node.name for node in model.graph.node]
    values = [output for node in model.graph.node for output in node.output if output]
    values += [tensor.name for tensor in model.graph.initializer] + [one.name for one in model.graph.input]
    assert len(set(nodes)) == len(nodes)
    assert len(set(values)) == len(values)
