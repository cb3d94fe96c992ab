"""The manifest says how a file runs, and the programs beside it run it so: they give the outputs that were checked."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tailor_ir
from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from profiling_agents.messages import Engine
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Card, Exports
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.measuring.runtime_options.settings import ChosenEngine, Gain, TriedChoice
from tests.support.fronts import write_front

TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}


QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)


ENGINES: dict[str, dict[str, str]] = {
    "ncnn": {"lightmode": "off", "packing": "off"},
    "onnxruntime": {"graph": "extended", "memory_pattern": "off", "order": "priority"},
    "openvino": {"denormals": "zero"},
    "torch": {"layout": "channels_last"},
}
"""Choices of each runtime; the first one was timed, the others were given."""


FORMATS = {
    "ncnn": ("onnx", "ncnn", "ncnn_fp16"),
    "onnxruntime": ("onnx", "torch"),
    "openvino": ("onnx",),
    "torch": ("onnx",),
}


class Exported(NamedTuple):
    """What the stage wrote for the largest SubNet on one device, and an input with torch's outputs."""

    folder: Path
    card: Card
    x: np.ndarray
    expected: np.ndarray

    def difference(self, output: str) -> float:
        """Of the outputs that a program printed, over the largest expected one."""
        got = np.array(output.split(), np.float32)
        return float(np.abs(got - self.expected).max() / np.abs(self.expected).max())


def chosen_engine(backend: str) -> ChosenEngine:
    choices = ENGINES[backend]
    first, *others = choices
    gain = Gain(ratio=0.9, low=0.88, high=0.92, pairs=30)
    return ChosenEngine(
        device=backend,
        chosen=choices,
        fixed={name: choices[name] for name in others},
        gain=Gain(ratio=0.8, low=None, high=None, pairs=30),
        tried=(TriedChoice(option=first, choice=choices[first], beside={}, gain=gain, reason=None),),
        left_out=(),
        options={},
        subnets=(),
        measured_s=1.0,
    )


def export_on(client: AgentClient, supernet: Path, folder: Path, formats: tuple[str, ...], **more: Any) -> Exported:
    """Export the largest SubNet on a device."""
    net = tailor_ir.load(supernet)
    splits = load_splits(DataSettings(kind="digits"))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=20)
    search, out = folder / "search", folder / "out"
    search.mkdir()
    out.mkdir()
    write_front(search, net, [(net.max_config, 1e6)])
    settings = export.Settings.model_validate({"formats": formats, "measure": QUICK, **more.pop("settings", {})})
    with client.lease():
        result = export.run(
            export.ExportRequest(settings=settings, supernet=supernet, search=search, data={"test": images}, **more),
            client,
            Workspace(out=out, progress=Silent()),
        )
    height, width = net.input_shape(net.max_config)[-2:]
    x_BCHW = next(iter(images.batches((height, width))))[0][:1]
    with torch.inference_mode():
        expected = net.build(net.max_config, statistics_of(net, net.max_config, images)).eval()(x_BCHW)
    x_BCHW.numpy().tofile(out / "x.f32")
    (card,) = Exports.model_validate(result).subnets
    return Exported(out, card, x_BCHW.numpy(), expected.numpy().ravel())


@pytest.fixture(scope="module", params=list(ENGINES))
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return str(request.param)


@pytest.fixture(scope="module")
def exported(backend: str, supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """On a device of each runtime, with an engine; on ncnn with a kernel for every convolution, too."""
    net = tailor_ir.load(supernet)
    direct = {feature.digest: "direct" for feature in net.operators(net.max_config) if feature.operator == "Conv"}
    with local_agent(backend) as client:
        return export_on(
            client.with_engine(Engine(choices=ENGINES[backend])),
            supernet,
            tmp_path_factory.mktemp(backend),
            FORMATS[backend],
            provenance=export.Provenance(engine=chosen_engine(backend)),
            implementations=ChosenImplementations(operators=direct) if backend == "ncnn" else OWN_CHOICES,
        )


def run_program(program: list[str], folder: Path) -> str:
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
