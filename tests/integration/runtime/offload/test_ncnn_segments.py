"""Different backends: the coordinator in onnxruntime and a device in ncnn, the reverse, and a device that takes no file."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import PARTS_FILE, PartsManifest
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from tasks.base.errors import UserError
from tasks.placement.partition import ChainOptions, Settings, open_tables, plan_partition, write_parts, write_plans
from tasks.placement.partition.parts import ncnn_jobs, session_of
from tests.support.agents.agent_processes import soon
from tests.support.links.devices import Reference, are_in, inputs, same, serving
from tests.support.partition.finished_run import finished_run

DEADLINE_MS = 60_000.0
CHECKED = SplitOptions(check_share=1.0)
TOLERANCE = 1e-4
"""Of ncnn in fp32, relative to the largest value, as for exported files."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tailor_ir.SuperNet]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, finished_run(folder)


@pytest.fixture(scope="module")
def both(finished: tuple[Path, tailor_ir.SuperNet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments as files of ONNX and of ncnn."""
    folder, net = finished
    settings = Settings(devices=("phone", "server"), latency_ms=0.05, plans_bandwidth_mbps=(0.1, 1000.0))
    out = tmp_path_factory.mktemp("both")
    write_plans(net, net.max_config, open_tables(folder, settings.devices), settings, out, ChainOptions(ncnn=True))
    return out


@pytest.mark.few("ncnn-onnxruntime")
@pytest.mark.parametrize(("coordinator", "backend"), [("onnx", "ncnn"), ("ncnn", "onnxruntime"), ("ncnn", "ncnn")])
def test_coordinator_and_device_in_different_backends_answer_as_the_files_do(
    coordinator: str, backend: str, both: Path
) -> None:
    split = SplitSubNet.open(both, coordinator="ncnn" if coordinator == "ncnn" else "onnx")
    reference, segments = Reference(split), len(split.subnet.segments)
    assert segments >= 2
    plan = PlacedSegments(devices=(COORDINATOR, *["a"] * (segments - 1)))
    with serving(backend) as device, SplitNetwork(split, {"a": device.address}, [plan], CHECKED) as network:
        assert are_in(network, "a"), network.states
        for x in inputs(split, 5):
            found = network.infer(x, DEADLINE_MS)
            assert found.devices == (COORDINATOR, "a")
            assert found.on_coordinator is None
            assert same(found.answer, reference(x), TOLERANCE)
        assert soon(lambda: network.counts.checked > 0)
        assert network.counts.wrong == 0


def test_coordinator_alone_answers_in_ncnn(both: Path) -> None:
    split = SplitSubNet.open(both, coordinator="ncnn")
    reference = Reference(split)
    with SplitNetwork(split, {}, [PlacedSegments(devices=(COORDINATOR,) * len(split.subnet.segments))]) as network:
        for x in inputs(split, 5):
            found = network.infer(x, DEADLINE_MS).answer
            assert same(found, reference(x), TOLERANCE)


def test_a_device_that_takes_none_of_the_files_is_excluded_with_what_it_takes(split: SplitSubNet) -> None:
    plan = PlacedSegments(devices=(COORDINATOR, *["a"] * (len(split.subnet.segments) - 1)))
    with serving("ncnn") as device, SplitNetwork(split, {"a": device.address}, [plan]) as network:
        assert soon(lambda: network.states["a"][0] == "excluded"), network.states
        assert "runs ncnn, which takes files of ncnn; this SubNet has files of onnx" in network.states["a"][1]


def test_coordinator_in_ncnn_needs_files_of_ncnn(chain: Path) -> None:
    with pytest.raises(AdaptiveError, match=r"has no files of ncnn; allowed: onnx; write it with partition\.ncnn=true"):
        SplitSubNet.open(chain, coordinator="ncnn")


@pytest.mark.long
def test_parts_have_files_of_ncnn_beside_those_of_onnx(
    finished: tuple[Path, tailor_ir.SuperNet], tmp_path: Path
) -> None:
    folder, net = finished
    settings = Settings(devices=("phone", "server"), latency_ms=0.01, bandwidth_mbps=(1000.0,), private=2)
    answer = plan_partition(net, net.max_config, open_tables(folder, settings.devices), settings)
    write_parts(net, answer.config, answer.plans[0].stays, "phone", tmp_path, ChainOptions(ncnn=True))
    manifest = PartsManifest.read(tmp_path / PARTS_FILE)
    assert len(manifest.parts) > 1
    for number, part in enumerate(manifest.parts):
        assert part.ncnn == (f"{number}.param", f"{number}.bin")
        words = (tmp_path / part.ncnn[0]).read_text().split()
        assert {tensor.name for tensor in (*part.inputs, *part.outputs)} <= set(words), "blobs have the names of values"
    (tmp_path / "0.bin").write_bytes(b"other weights")
    with pytest.raises(AdaptiveError, match=r"0\.bin: is not the file that parts\.json names"):
        PartsManifest.read(tmp_path / PARTS_FILE)


def test_a_part_that_ncnn_has_not_is_one_line() -> None:
    read, given = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (1, 3, 3)), ("y", (1,)))
    )
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "det", [read], [given])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    with pytest.raises(
        UserError, match=r"partition\.ncnn: segment 0 has no form in ncnn .*; use a backend that takes ONNX"
    ):
        ncnn_jobs([model], [session_of(model)])
