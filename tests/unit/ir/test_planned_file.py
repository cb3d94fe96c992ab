"""Files in planned order: the runtime runs them in that order, with the planned peak, and computes the same."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.memory.planned_file import PlannedFile, plan_file, session_options
from tests.support.ir.elastic_networks import NETWORKS, compiled
from tests.support.ir.runtime_memory import runtime

SMALL_BYTES = 256  # results of a few floats that the runtime keeps
CHANNELS, SIDE = 16, 24


class Branches(nn.Module):
    """Branches of different widths. In the order of the file, what the wide ones make waits until all have run."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(CHANNELS, 8 * CHANNELS, 3, padding=1) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Conv2d(8 * CHANNELS, CHANNELS, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = [torch.relu(layer(x)) for layer in self.wide]
        return torch.cat([layer(y) for layer, y in zip(self.narrow, wide, strict=True)], 1).mean((2, 3))


def exported(net: tailor_ir.SuperNet, folder: Path) -> tuple[onnx.ModelProto, np.ndarray]:
    """The largest SubNet and an input."""
    path = folder / "subnet.onnx"
    net.export(net.max_config, path, fold_batch_norm=True)
    x = np.random.default_rng(0).standard_normal(net.input_shape(net.max_config)).astype(np.float32)
    return onnx.load(path), x


def planned(model: onnx.ModelProto, x: np.ndarray) -> PlannedFile:
    return plan_file(model, {model.graph.input[0].name: x})


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, np.ndarray]:
    example = torch.zeros(1, CHANNELS, SIDE, SIDE)
    return exported(tailor_ir.compile(Branches().eval(), example), tmp_path_factory.mktemp("branches"))


def test_one_wide_branch_after_the_other_takes_less_memory(branches: tuple[onnx.ModelProto, np.ndarray]) -> None:
    model, x = branches
    plan = planned(model, x)
    peaks = runtime().peaks(plan.model.SerializeToString(), x, as_it_stands=True)
    wide, narrow = 4 * 8 * CHANNELS * SIDE**2, 4 * CHANNELS * SIDE**2
    assert plan.schedule.optimal
    assert plan.schedule.peak_bytes == pytest.approx(peaks.asked, rel=0.01)
    assert peaks.asked < 2 * wide + 3 * narrow


def test_nodes_run_in_the_order_of_the_file(branches: tuple[onnx.ModelProto, np.ndarray], tmp_path: Path) -> None:
    model, x = branches
    plan = planned(model, x)
    options = session_options()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    content = plan.model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    session.run(None, {model.graph.input[0].name: x})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert ran == [node.op_type for node in plan.model.graph.node]
    assert list(plan.schedule.order) != sorted(plan.schedule.order) or plan.given_bytes == plan.schedule.peak_bytes


@pytest.mark.parametrize("name", NETWORKS)
def test_planned_files_compute_the_same_with_the_planned_memory_and_never_with_more(name: str, tmp_path: Path) -> None:
    model, x = exported(compiled(name), tmp_path)
    plan = planned(model, x)
    feeds = {model.graph.input[0].name: x}
    results = [
        onnxruntime.InferenceSession(one.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for one, options in ((model, session_options(optimised=False)), (plan.model, session_options()))
    ]
    for given, own in zip(*results, strict=True):
        np.testing.assert_allclose(own, given, rtol=0, atol=1e-6)
    default = runtime().peaks(model.SerializeToString(), x)
    measured = runtime().peaks(plan.model.SerializeToString(), x, as_it_stands=True)
    assert plan.schedule.peak_bytes <= plan.given_bytes
    assert measured.asked <= default.asked + SMALL_BYTES
    assert plan.schedule.peak_bytes == pytest.approx(measured.asked, rel=0.05, abs=SMALL_BYTES)
    assert plan.placement.bound_bytes <= plan.placement.block_bytes
