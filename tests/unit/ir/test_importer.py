"""Networks that cannot be taken: one clear line each."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tailor_ir
from tests.support.ir.networks import from_timm


def model_of(nodes: list[onnx.NodeProto], initializers: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """An ONNX model from (1, 3, 8, 8) to whatever the last node gives."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [None] * 4)],
        list(initializers),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def weight(shape: tuple[int, ...], name: str = "w") -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(0).random(shape).astype(np.float32), name)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(tailor_ir.ImportFailed, match=r"no such file; give the path of an .onnx file"):
        tailor_ir.compile(tmp_path / "absent.onnx")


@pytest.mark.parametrize("content", [b"", b"not onnx at all", b"\x08\x0a" * 50])
def test_corrupt_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corrupt.onnx"
    path.write_bytes(content)
    with pytest.raises(tailor_ir.ImportFailed, match=r"corrupt.onnx': .*export it again"):
        tailor_ir.compile(path)


def test_unsupported_operator_is_named_with_its_place(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MaxRoiPool", ["r", "g"], ["y"], "odd", pooled_shape=[2, 2]),
    ]
    onnx.save(model_of(nodes, [weight((4, 5), "g")]), tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match=r"operator 'MaxRoiPool' of opset 17 at 'odd': not supported"):
        tailor_ir.compile(tmp_path / "n.onnx")


def test_quantised_network(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    onnx.save(model_of(nodes), tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match="'quantise': the network is quantised; allowed: fp32"):
        tailor_ir.compile(tmp_path / "n.onnx")


@pytest.mark.parametrize("location", ["../secret.bin", "{absolute}", "link.bin", "folder/../../secret.bin", ""])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    tensor = weight((4, 3, 1, 1))
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], [tensor])
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    if location:
        stored.external_data.add(key="location", value=location.format(absolute=tmp_path / "secret.bin"))
    path = tmp_path / "inner" / "n.onnx"
    (path.parent / "folder").mkdir(parents=True)
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    path.write_bytes(model.SerializeToString())
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    with pytest.raises(tailor_ir.ImportFailed, match="allowed: files inside the model's own folder"):
        tailor_ir.compile(path)


@pytest.mark.parametrize(
    "place",
    [
        "constant",
        "branch",
        "constant in a branch",
        "function",
        "default attribute of a function",
        "training_info",
        "sparse",
    ],
)
def test_external_data_is_for_initializers_of_the_network_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where some readers would look for it
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3, 1, 1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret.bin")
    constant = helper.make_node("Constant", [], ["w"], "held", value=tensor)
    conv = helper.make_node("Conv", ["x", "w"], ["b"], "conv")
    result = helper.make_tensor_value_info("b", TensorProto.FLOAT, [None] * 4)
    chosen = numpy_helper.from_array(np.asarray(True), "c")

    def choice(branch: onnx.GraphProto) -> onnx.ModelProto:
        node = helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)
        return model_of([node], [chosen])

    if place == "constant":
        model = model_of([constant, helper.make_node("Conv", ["x", "w"], ["y"], "conv")])
    elif place == "branch":
        model = choice(helper.make_graph([conv], "then", [], [result], [tensor]))
    elif place == "constant in a branch":
        model = choice(helper.make_graph([constant, conv], "then", [], [result]))
    elif place == "function":
        model = model_of([helper.make_node("own", ["x"], ["y"], domain="here")])
        opset = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("here", "own", ["x"], ["b"], [constant, conv], opset))
    elif place == "default attribute of a function":
        model = model_of([helper.make_node("own", ["x"], ["y"], domain="here")])
        nodes = [helper.make_node("Relu", ["x"], ["b"])]
        default = [helper.make_attribute("value", tensor)]
        opset = [helper.make_opsetid("", 17)]
        model.functions.append(
            helper.make_function("here", "own", ["x"], ["b"], nodes, opset, attribute_protos=default)
        )
    elif place == "training_info":
        model = model_of([helper.make_node("Relu", ["x"], ["y"])])
        model.training_info.add().initialization.initializer.append(tensor)
    else:
        model = model_of([helper.make_node("Relu", ["x"], ["y"])])
        indices = helper.make_tensor("indices", TensorProto.INT64, [1], [0])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [4, 3, 1, 1]))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "n.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        tailor_ir.ImportFailed, match=r"its tensor is stored in another file; allowed: external data of"
    ):
        tailor_ir.compile(tmp_path / "inner" / "n.onnx")


def test_control_flow_in_a_module_or_file(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(op, TensorProto.FLOAT, [None] * 4)
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [result])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("If", ["condition"], ["y"], "choice", then_branch=branch("Relu"), else_branch=branch("Neg")),
    ]
    onnx.save(model_of(nodes), tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match="operator 'If' at 'choice': control flow"):
        tailor_ir.compile(tmp_path / "n.onnx")

    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return halved(x)

    @torch.jit.script
    def halved(x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() > 1):
            x = x * 0.5
        return x

    with pytest.raises(tailor_ir.ImportFailed, match=r"operator 'Loop' at .*: control flow"):
        tailor_ir.compile(Repeated().eval(), torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_that_is_always_taken_is_no_control_flow(condition: bool, tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:  # both branches use the same names, and a weight from outside
        result = helper.make_tensor_value_info("b", TensorProto.FLOAT, [None] * 4)
        nodes = [helper.make_node("Conv", ["x", "w"], ["inner"], "conv"), helper.make_node(op, ["inner"], ["b"], "act")]
        return helper.make_graph(nodes, op, [], [result])

    chosen = numpy_helper.from_array(np.asarray(condition), "c")
    node = helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("Relu"), else_branch=branch("Neg"))
    model = model_of([node], [chosen, weight((4, 3, 3, 3))])
    onnx.save(model, tmp_path / "n.onnx")
    net = tailor_ir.compile(tmp_path / "n.onnx")
    assert [n.op for n in net.structure.graph.nodes] == ["Conv", "Relu" if condition else "Neg"]
    assert net.structure.graph.parameters == ("w",)
    x = torch.randn(1, 3, 8, 8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    assert torch.allclose(net.elastic.eval()(x), expected, atol=1e-5)


def test_a_network_that_does_nothing(tmp_path: Path) -> None:
    onnx.save(model_of([helper.make_node("Identity", ["x"], ["y"])]), tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match="no operator reads its input 'x'"):
        tailor_ir.compile(tmp_path / "n.onnx")


def test_computed_statistics_of_a_batch_norm(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0, 2, 3], keepdims=0),
        helper.make_node("BatchNormalization", ["x", "w", "w", "mean", "w"], ["y"], "norm"),
    ]
    onnx.save(model_of(nodes, [weight((3,))]), tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match="'norm': its statistics 'mean' are computed; allowed: stored"):
        tailor_ir.compile(tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("op", "forward"),
    [
        ("NonZero", lambda x: x[x > 0.5]),
        ("NonZero", lambda x: torch.nonzero(x > 0.5)),
        ("NonZero", lambda x: x + torch.masked_select(x, x > 0.5).mean()),
        ("Unique", lambda x: torch.unique(x.round())),
    ],
    ids=["boolean index", "nonzero", "masked select", "unique"],
)
def test_results_whose_size_follows_from_values(
    op: str, forward: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    class Dynamic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    sample = torch.randn(1, 3, 8, 8)
    torch.onnx.export(Dynamic(), (sample,), tmp_path / "n.onnx", dynamo=False)
    for given in (Dynamic(), tmp_path / "n.onnx"):
        with pytest.raises(tailor_ir.ImportFailed, match=rf"operator '{op}' at .* depends on the values that it reads"):
            tailor_ir.compile(given, sample)


def test_module_that_fails_while_running() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("wrong shape somewhere")

    with pytest.raises(tailor_ir.ImportFailed, match=r"network 'Broken': cannot be exported to ONNX \(wrong shape"):
        tailor_ir.compile(Broken(), torch.randn(1, 3, 8, 8))


@pytest.mark.few("training form-mobilenetv3_small_050")
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("form", ["opset 17", "opset 20", "open batch", "training form"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_file_gives_the_same_supernet_as_the_module(name: str, form: str, tmp_path: Path) -> None:
    model, sample = from_timm(name)
    path = tmp_path / "net.onnx"
    options: dict[str, Any] = {"opset_version": 20 if form == "opset 20" else 17}
    if form == "open batch":
        options |= {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    if form == "training form":
        options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(model, (sample,), path, dynamo=False, **options)
    net = tailor_ir.compile(path)
    net.elastic.eval()
    assert [v.name for v in net.space.variables] == [v.name for v in tailor_ir.compile(model, sample).space.variables]
    x = torch.randn(3, *sample.shape[1:])
    with torch.no_grad():
        expected = model(x)
        assert torch.allclose(net.elastic(x), expected, atol=1e-4 * float(expected.abs().max()))
        config = net.min_config
        net.elastic.activate(config)
        x = torch.randn(net.input_shape(config, 3))
        net.export(config, tmp_path / "subnet.onnx", batch=3)
        session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx", providers=["CPUExecutionProvider"])
        output = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        assert torch.allclose(net.elastic(x), output, atol=1e-4 * float(output.abs().max()))


def test_open_resolution_needs_an_example(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], [weight((4, 3, 3, 3))])
    for position, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[position].dim_param = name
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(tailor_ir.ImportFailed, match=r"leaves its shape open .* give an example input"):
        tailor_ir.compile(tmp_path / "n.onnx")
    assert tailor_ir.compile(tmp_path / "n.onnx", torch.randn(1, 3, 12, 12)).input_shape({}) == (1, 3, 12, 12)


def test_network_without_blocks_still_compiles() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    net = tailor_ir.compile(model, torch.randn(1, 3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(net.elastic.eval()(x), model(x), atol=1e-5)
    assert any("resolution" in line and "one entry for each position" in line for line in net.space.dropped)


class RecurrentRows(nn.Module):
    """Reads each channel of a small image as one step, whose features are the positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 8, 3), getattr(nn, kind)(36, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.layer(self.stem(x).flatten(2))
        return self.head(steps[:, -1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_over_positions_keep_the_resolution(kind: str) -> None:
    net = tailor_ir.compile(RecurrentRows(kind).eval(), torch.randn(1, 3, 8, 8))
    assert any("resolution" in line and "one entry for each position" in line for line in net.space.dropped)


def test_weights_above_the_limit_of_the_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Conv2d(64, 64, 3)).eval()
    sample = torch.randn(1, 3, 16, 16)
    tailor_ir.compile(model, sample).save(tmp_path / "net")
    tailor_ir.load(tmp_path / "net").export({}, tmp_path / "net.onnx")
    monkeypatch.setattr("tailor_ir.reading.trace.LARGEST_PROTOBUF", 100_000)
    for given in (model, tmp_path / "net.onnx"):
        with pytest.raises(tailor_ir.ImportFailed, match=r"weights of 0.00 GiB; allowed"):
            tailor_ir.compile(given, sample)


def test_a_supernet_of_another_format_is_told_what_to_do(tmp_path: Path) -> None:
    tailor_ir.compile(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)).eval(), torch.randn(1, 3, 8, 8)).save(tmp_path)
    document = json.loads((tmp_path / "graph.json").read_text())
    for version, next_step in ((2, "install the AutoTailor that wrote it, or a newer one"), (0, "compile it again")):
        (tmp_path / "graph.json").write_text(json.dumps({**document, "format": version}))
        with pytest.raises(tailor_ir.ImportFailed, match=rf"format {version}; allowed: 1; {next_step}$"):
            tailor_ir.load(tmp_path)


def test_external_data_of_a_constant_is_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [4], np.zeros(4, np.float32).tobytes(), raw=True)
    onnx.external_data_helper.set_external_data(value, "../elsewhere.bin")
    value.ClearField("raw_data")
    constant = onnx.helper.make_node("Constant", [], ["c"], name="constant", value=value)
    add = onnx.helper.make_node("Add", ["x", "c"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in "xy")
    model = onnx.helper.make_model(onnx.helper.make_graph([constant, add], "g", [x], [y]))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        tailor_ir.ImportFailed, match="operator 'Constant' at 'constant': its tensor is stored in another"
    ):
        tailor_ir.compile(tmp_path / "net.onnx")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("resnet26", "default", r"BatchNorm was folded into \d+ of \d+ convolutions: .*do_constant_folding=False"),
        ("resnet26", "training form", None),
        ("vit_tiny_patch16_224", "default", None),
        ("vgg", "default", r"no BatchNorm, and 2 convolutions with biases: if it was folded"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_with_folded_batch_norm_is_remarked(
    name: str, form: str, expected: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "vgg":
        layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model: nn.Module = nn.Sequential(*layers).eval()
        sample = torch.zeros(1, 3, 8, 8)
    else:
        model, sample = from_timm(name)
    options: dict[str, Any] = {}
    if form == "training form":
        options = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(model, (sample,), tmp_path / "net.onnx", dynamo=False, opset_version=17, **options)
    net = tailor_ir.compile(tmp_path / "net.onnx")
    assert caplog.messages == list(net.remarks)
    if expected is None:
        assert net.remarks == ()
    else:
        remark, *_ = net.remarks
        assert re.match(expected, remark)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + self.conv(y)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_examples_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    sample = torch.zeros(1, 3, 8, 8)
    torch.onnx.export(TwoInputs().eval(), (sample, sample), tmp_path / "n.onnx", dynamo=False, opset_version=17)
    two, both = TwoInputs(), torch.zeros(2, 3, 8, 8)
    for given, example, line in (
        (two, sample, r"network 'TwoInputs': 2 inputs \(x, y\), examples of 1; allowed: one of each"),
        (two, (sample, sample, sample), r"network 'TwoInputs': 3 examples; allowed: up to 2 \(x, y\)"),
        (two, (sample, both), r"example input: tensors of 1, 2 samples; allowed: .* the same batch"),
        (two, (sample, 3), r"example input: got int; allowed"),
        (two, (), r"example input: an empty tuple; allowed"),
        (two, {"x": sample}, r"network 'TwoInputs': no example of input 'y'; allowed: one of each \(x, y\)"),
        (two, {"x": sample, "z": sample}, r"network 'TwoInputs': no input 'z'; allowed: x, y"),
        (two, None, r"network: no example input; allowed: one tensor"),
        (tmp_path / "n.onnx", sample, r"network: examples of 1; allowed: one of each input \(.*, .*\)"),
        (tmp_path / "n.onnx", {"z": sample}, r"network: examples of z; allowed: one of each input"),
        (nn.Conv2d(3, 4, 3), sample.numpy(), r"example input: got ndarray; allowed"),
        (nn.Conv2d(3, 4, 3), torch.zeros(()), r"example input: a tensor of shape \(\); allowed"),
    ):
        with pytest.raises(tailor_ir.ImportFailed, match=line):
            tailor_ir.compile(given, example)  # type: ignore[arg-type]
