"""No library that a backend drives sees a name of a foreign file; the answers carry these names all the same."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from profiling_agents.backends import open_backend
from profiling_agents.backends.base import Backend, ModelError, RuntimeOptions
from profiling_agents.backends.onnx_files import DROPPED, RENAMED, WORDS, with_sanitized_names
from profiling_agents.backends.sanitized_names import SanitizedNames
from profiling_agents.backends.sanitized_names import with_sanitized_names as ncnn_with_own_names
from profiling_agents.client import MeasureSettings, ModelJob, local_agent
from profiling_agents.messages import JobMessage
from profiling_agents.sensing.machine import Runs
from tests.support import examples
from tests.support.agents import agent_models as models
from tests.support.agents import hostile_names

BACKENDS = ("ncnn", "onnxruntime", "openvino", "torch")
SHAPE = (1, 4, 6, 6)
MARK = "foreign-text"
CLEARED = {
    "onnx.AttributeProto.doc_string",
    "onnx.DeviceConfigurationProto.device",
    "onnx.DeviceConfigurationProto.name",
    "onnx.FunctionProto.doc_string",
    "onnx.GraphProto.doc_string",
    "onnx.GraphProto.name",
    "onnx.ModelProto.doc_string",
    "onnx.ModelProto.domain",
    "onnx.ModelProto.producer_name",
    "onnx.ModelProto.producer_version",
    "onnx.NodeDeviceConfigurationProto.configuration_id",
    "onnx.NodeProto.doc_string",
    "onnx.ShardingSpecProto.tensor_name",
    "onnx.SimpleShardedDimProto.dim_param",
    "onnx.StringStringEntryProto.key",
    "onnx.StringStringEntryProto.value",
    "onnx.TensorAnnotation.tensor_name",
    "onnx.TensorProto.doc_string",
    "onnx.TensorShapeProto.Dimension.denotation",
    "onnx.TypeProto.Opaque.domain",
    "onnx.TypeProto.Opaque.name",
    "onnx.TypeProto.denotation",
    "onnx.ValueInfoProto.doc_string",
}


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names") / "ran"


@pytest.fixture(scope="module")
def backends() -> dict[str, Backend]:
    return {name: open_backend(RuntimeOptions(backend=name, threads=1)) for name in BACKENDS}


@pytest.fixture(autouse=True)
def _nothing_ran(marker: Path) -> Iterator[None]:
    yield
    assert not marker.exists(), "a name of a model file was run"


def branch(backend: str, names: list[str]) -> ModelJob:
    """Twice a ReLU's output. names: of the input, the value between, the output, the two layers."""
    first, between, last, relu, add = names
    shape = " ".join(map(str, SHAPE))
    if backend == "ncnn":
        layers = [
            f"Input {first} 0 1 {first}",
            f"ReLU {relu} 1 1 {first} {between}",
            f"Split split 1 2 {between} left right",
            f"BinaryOp {add} 2 1 left right {last} 0=0",
        ]
        job = models.ncnn_job("branch", layers, 5, b"", SHAPE)
    else:
        nodes = [
            helper.make_node("Relu", [first], [between], relu),
            helper.make_node("Add", [between, between], [last], add),
        ]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in (first, last)]
        graph = helper.make_graph(nodes, f"graph {first}", values[:1], values[1:], doc_string=f"{shape} {add}")
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        model.producer_name = add
        job = replace(models.onnx_job("branch", [], {}, SHAPE), files=(model.SerializeToString(),))
    return replace(job, input_names=(first,), output_names=(last,))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
def test_source_text_in_the_place_of_a_name_is_not_run_by_an_agent(backend: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    settings = MeasureSettings(warmup_ms=1.0, time_cap_ms=10.0, layers_ms=10.0)
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    with local_agent(backend) as client:
        for name in hostile_names.running(marker):
            job = branch(backend, ["x", "between", "y", name, f"{name} again"])
            (found,) = client.measure([job], settings)
            assert not marker.exists()
            assert found.state == "ok", found.reason
            own = {"y"} if backend == "openvino" else {name, f"{name} again"}
            assert {layer.name for layer in found.layers} == own
            (y,) = client.run(job, [x])
            assert np.array_equal(y, 2 * np.maximum(x, 0))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_model_is_the_same_whatever_its_names_are(
    backend: str,
    backends: dict[str, Backend],
    marker: Path,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    known = hostile_names.names(marker)
    if backend == "ncnn":  # a file of lines can hold only names without spaces
        known = known.map(lambda name: "".join(name.encode().decode("ascii", "replace").split()) or "a").map(
            lambda name: "".join(char for char in name if char.isprintable()) or "a"
        )
    names = data.draw(st.lists(known, min_size=5, max_size=5, unique=True))
    folder = tmp_path_factory.mktemp("model")
    job = branch(backend, names)
    files = []
    for index, content in enumerate(job.files):
        files.append(folder / str(index))
        files[-1].write_bytes(content)
    message = JobMessage(
        key="branch",
        format=job.format,
        files=("0" * 64,) * len(files),
        input_names=job.input_names,
        input_shapes=job.input_shapes,
        output_names=job.output_names,
    )
    model = backends[backend].load(files, message)
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    (y,) = model.run([x])
    assert np.array_equal(y, 2 * np.maximum(x, 0))
    found = {layer.name for layer in model.layers([x], Runs(None, 1.0, 0.0))}
    model.close()
    match backend:
        case "ncnn":
            assert found == {names[3], "split", names[4]}
        case "openvino":  # one layer, after the output
            assert found == {names[2]}
        case _:
            assert found == {names[3], names[4]}


def test_every_text_field_of_onnx_has_a_rule() -> None:
    found: set[str] = set()
    pending: list[Descriptor] = [onnx.ModelProto.DESCRIPTOR]
    seen: set[str] = set()
    while pending:
        descriptor = pending.pop()
        if descriptor.full_name in seen:
            continue
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                found.add(field.full_name)
            elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
                pending.append(field.message_type)
    assert {*RENAMED, *WORDS} <= found
    assert found - {*RENAMED, *WORDS} == CLEARED


def filled(message: Message, depth: int) -> None:
    """Foreign text in every text field that may hold any text, down to this depth."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_STRING and field.full_name not in WORDS:
            if isinstance(value, str):
                setattr(message, field.name, MARK)
            else:
                value.extend([MARK, f"{MARK} again"])
        elif field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            filled(value if isinstance(value, Message) else value.add(), depth - 1)


def test_no_foreign_text_is_left_anywhere_in_a_model() -> None:
    model = onnx.ModelProto()
    filled(model, 7)
    assert model.SerializeToString().count(MARK.encode()) > 1000
    assert with_sanitized_names(model, SanitizedNames()).SerializeToString().count(MARK.encode()) == 0
    assert not any(getattr(model, name.rsplit(".", 1)[1]) for name in DROPPED if ".ModelProto." in name)


def test_equal_names_stay_equal_and_names_inside_longer_ones_are_found() -> None:
    names = SanitizedNames()
    ours = [names.own("value", name) for name in ("a", "b", "a", "value1_", "")]
    assert ours[0] == ours[2]
    assert len(set(ours)) == 4
    assert ours[-1] == ""
    assert names.restored(f"{ours[1]}_nchwc + {ours[3]}") == "b_nchwc + value1_"


def test_branches_of_a_condition_keep_their_meaning(backends: dict[str, Backend], tmp_path: Path) -> None:
    """Values of the graph around them are read inside branches, by names of ours too."""
    evil = hostile_names.running(tmp_path / "ran")[0]
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, [evil, "x\ny"], [f"{name} of it"], evil)],
            f"branch {evil}",
            [],
            [value(f"{name} of it", TensorProto.FLOAT, SHAPE)],
        )
        for name, op in (("then_branch", "Add"), ("else_branch", "Sub"))
    }
    nodes = [
        helper.make_node("Relu", ["x\ny"], [evil], "ReLU of x"),
        helper.make_node("If", ["condition"], ["out 0"], "if", **branches),
    ]
    constant = numpy_helper.from_array(np.array(True), "condition")
    graph = helper.make_graph(
        nodes, evil, [value("x\ny", TensorProto.FLOAT, SHAPE)], [value("out 0", TensorProto.FLOAT, SHAPE)], [constant]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (tmp_path / "model").write_bytes(model.SerializeToString())
    job = JobMessage(
        key="if",
        format="onnx",
        files=("0" * 64,),
        input_names=("x\ny",),
        input_shapes=(SHAPE,),
        output_names=("out 0",),
    )
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    (y,) = backends["onnxruntime"].load([tmp_path / "model"], job).run([x])
    assert np.array_equal(y, np.maximum(x, 0) + x)


def test_a_models_own_functions_are_called_by_names_of_ours(backends: dict[str, Backend], tmp_path: Path) -> None:
    evil = hostile_names.running(tmp_path / "ran")[0]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    doubled = helper.make_function(
        "mine", evil, ["in"], ["twice"], [helper.make_node("Add", ["in", "in"], ["twice"], evil)], opsets[:1]
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(evil, ["x"], ["y"], "call", domain="mine")],
        "graph",
        [value("x", TensorProto.FLOAT, SHAPE)],
        [value("y", TensorProto.FLOAT, SHAPE)],
    )
    model = helper.make_model(graph, functions=[doubled], opset_imports=opsets, ir_version=10)
    (tmp_path / "model").write_bytes(model.SerializeToString())
    job = JobMessage(
        key="f", format="onnx", files=("0" * 64,), input_names=("x",), input_shapes=(SHAPE,), output_names=("y",)
    )
    x = np.ones(SHAPE, np.float32)
    (y,) = backends["onnxruntime"].load([tmp_path / "model"], job).run([x])
    assert (y == 2).all()


@pytest.mark.parametrize("field", ["op_type", "domain", "attribute"])
@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_operator_types_domains_and_attributes_are_words(
    backend: str, field: str, backends: dict[str, Backend], marker: Path, tmp_path: Path
) -> None:
    evil = hostile_names.running(marker)[0]
    model = onnx.load_model_from_string(branch(backend, ["x", "a", "y", "r", "s"]).files[0])
    if field == "attribute":
        model.graph.node[0].attribute.append(helper.make_attribute(evil, 1))
    else:
        setattr(model.graph.node[0], field, evil)
        model.opset_import.append(helper.make_opsetid(evil if field == "domain" else "mine", 1))
    (tmp_path / "model").write_bytes(model.SerializeToString())
    job = JobMessage(
        key="f", format="onnx", files=("0" * 64,), input_names=("x",), input_shapes=(SHAPE,), output_names=("y",)
    )
    with pytest.raises(ModelError, match="not a word; allowed: letters, digits"):
        backends[backend].load([tmp_path / "model"], job)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ReLU relu 1 1 in0", "1 blobs instead of 2"),
        ("ReLU relu 1", "no layer type, name and two counts"),
        ("ReLU relu one 1 in0 out0", "a count that is no number"),
        ("Re$(reboot)LU relu 1 1 in0 out0", "no layer type, name and two counts"),
        ("ReLU relu 1 1 in0 out0 rest", "a parameter that is not NUMBER=VALUES"),
        ("ReLU relu 1 1 in0 out0 0=$(reboot)", "a parameter that is not NUMBER=VALUES"),
        ("ReLU relu 1 1 in0 \udcff", "a name that is not UTF-8"),
    ],
)
def test_a_line_that_is_none_of_ncnn_is_named(line: str, said: str) -> None:
    param = f"7767517\n2 2\nInput in0 0 1 in0\n{line}\n".encode(errors="surrogateescape")
    with pytest.raises(ModelError, match=f"line 4 has {said}"):
        ncnn_with_own_names(param, SanitizedNames())
