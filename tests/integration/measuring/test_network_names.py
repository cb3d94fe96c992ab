"""Names of a foreign ONNX file on their way through the pipeline: torch.fx, onnx2torch and pnnx do not read them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx2torch.node_converters import registry
from onnx2torch.onnx_graph import OnnxGraph
from onnx2torch.onnx_node import OnnxNode
from onnx2torch.utils.common import OperationConverterResult

import tailor_ir
from tasks.evaluation.ncnn.conversion import convert
from tests.support import examples
from tests.support.agents import hostile_names
from tests.support.tables.ncnn_runs import run_ncnn

SHAPE = (1, 3, 8, 8)
OUTPUT = (1, 4, 4, 4)
VALUES = 9
COUNT = 14
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names") / "ran"


@pytest.fixture(autouse=True)
def _nothing_ran(marker: Path) -> Iterator[None]:
    yield
    assert not marker.exists(), "a name of a model file was run"


def network(values: list[str], nodes: list[str]) -> onnx.ModelProto:
    """Convolution, ReLU, a table that is added, transposition, pool: weights, constants, an operator through onnx2torch."""
    rng = np.random.default_rng(0)
    x, weight, bias, conv, relu, table, added, turned, y = values
    weights = [
        numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3), dtype=np.float32), weight),
        numpy_helper.from_array(rng.standard_normal(4, dtype=np.float32), bias),
        numpy_helper.from_array(rng.standard_normal((1, 4, 8, 8), dtype=np.float32), table),
    ]
    operators = [
        helper.make_node("Conv", [x, weight, bias], [conv], nodes[0], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [conv], [relu], nodes[1]),
        helper.make_node("Add", [relu, table], [added], nodes[2]),
        helper.make_node("Transpose", [added], [turned], nodes[3], perm=[0, 1, 3, 2]),
        helper.make_node("MaxPool", [turned], [y], nodes[4], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        operators, nodes[1], [value(x, TensorProto.FLOAT, SHAPE)], [value(y, TensorProto.FLOAT, OUTPUT)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@contextmanager
def names_in_onnx2torch() -> Iterator[set[str]]:
    """Names of nodes and values that its converters are given."""
    seen: set[str] = set()
    found = registry.get_converter

    def spied(op: str, version: int) -> Callable[[OnnxNode, OnnxGraph], OperationConverterResult]:
        converter = found(op, version)

        def convert(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
            seen.update(node.input_values, node.output_values, (node.name, node.unique_name))
            seen.update(graph.nodes, graph.initializers, graph.value_info)
            return converter(node, graph)

        return convert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "get_converter", spied)
        yield seen


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_network_is_the_same_whatever_its_names_are(
    marker: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = data.draw(st.lists(hostile_names.names(marker), min_size=COUNT, max_size=COUNT, unique=True))
    folder = tmp_path_factory.mktemp("network")
    model = network(names[:VALUES], names[VALUES:])
    onnx.save(model, folder / "network.onnx")
    x = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {names[0]: x})

    net = tailor_ir.compile(folder / "network.onnx", torch.zeros(SHAPE))
    with torch.no_grad(), names_in_onnx2torch() as seen:
        net.elastic.activate(net.max_config)
        for output in (net.elastic(torch.from_numpy(x)), net.build(net.max_config)(torch.from_numpy(x))):
            np.testing.assert_allclose(output.numpy(), expected, atol=TOLERANCE, rtol=0)
    assert {"node", "value0", "value1"} == seen
    assert all(re.fullmatch(r"[A-Za-z0-9_.]+", name) for name in net.build(net.max_config).state_dict())

    net.export(net.max_config, folder / "subnet.onnx")
    files = convert((folder / "subnet.onnx").read_bytes())
    (got,) = run_ncnn(files, [x], 1, folder)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", layer.name) for layer in files.layers())


@pytest.mark.parametrize("kind", range(8))
def test_an_open_batch_may_have_any_name(kind: int, marker: Path, tmp_path: Path) -> None:
    model = network([f"v{number}" for number in range(VALUES)], list("abcde"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = hostile_names.running(marker)[kind]
    onnx.save(model, tmp_path / "network.onnx")
    net = tailor_ir.compile(tmp_path / "network.onnx", torch.zeros(SHAPE))
    assert net.build(net.max_config)(torch.zeros(2, *SHAPE[1:])).shape == (2, *OUTPUT[1:])


@pytest.mark.parametrize("kind", range(8))
def test_an_attribute_of_any_name_is_refused_in_one_line(kind: int, marker: Path, tmp_path: Path) -> None:
    model = network([f"v{number}" for number in range(VALUES)], list("abcde"))
    name = hostile_names.running(marker)[kind]
    model.graph.node[1].attribute.append(helper.make_attribute(name, 1))
    onnx.save(model, tmp_path / "network.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match="not valid ONNX") as raised:
        tailor_ir.compile(tmp_path / "network.onnx", torch.zeros(SHAPE))
    assert "\n" not in str(raised.value)
