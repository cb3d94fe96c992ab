"""Exported ONNX files in planned order: kept where memory is saved, told by the card, run as the card says."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from pydantic import ValidationError

import tailor_ir
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Card
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.export import files
from tests.support.fronts import write_front
from tests.support.ir.branches import Wide

SIZE = 24
SETTINGS = export.Settings(
    formats=("onnx",),
    planned_memory=True,
    measure=MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0),
)


def exported(branches: int, folder: Path) -> tuple[tailor_ir.SuperNet, EvaluationData, Card, Path]:
    torch.manual_seed(0)
    net = tailor_ir.compile(Wide(branches).eval(), torch.zeros(1, 3, SIZE, SIZE))
    net.save(folder / "supernet")
    splits = load_splits(DataSettings(kind="digits"))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)
    search, out = folder / "search", folder / "out"
    search.mkdir()
    out.mkdir()
    write_front(search, net, [(net.max_config, 1e6)])
    with local_agent("onnxruntime") as client, client.lease():
        result = export.run(
            export.ExportRequest(settings=SETTINGS, supernet=folder / "supernet", search=search, data={"test": images}),
            client,
            Workspace(out=out, progress=Silent()),
        )
    return net, images, Card.model_validate(result["subnets"][0]), out


def test_a_planned_file_saves_what_its_card_says_and_reproduces_torch(tmp_path: Path) -> None:
    net, images, card, out = exported(3, tmp_path)
    file = card.files["onnx"]
    assert file.state == "ok", file.reason
    found = file.memory
    assert found is not None
    assert found.kept, found.reason
    assert found.planned_mib is not None
    assert found.planned_counted_mib is not None
    assert found.default_counted_mib is not None
    assert found.planned_counted_mib < found.default_counted_mib
    assert found.planned_mib == pytest.approx(found.planned_counted_mib, rel=0.05)
    assert "enable_mem_reuse=False" in (out / f"{card.digest}.md").read_text()
    x_BCHW = next(iter(images.batches((SIZE, SIZE))))[0][:1]
    with torch.inference_mode():
        expected = net.build(card.config, statistics_of(net, card.config, images)).eval()(x_BCHW).numpy()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_mem_reuse = False
    session = onnxruntime.InferenceSession(str(out / f"{card.digest}.onnx"), options)
    (got,) = session.run(None, {session.get_inputs()[0].name: x_BCHW.numpy()})
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    assert session.get_modelmeta().custom_metadata_map["autotailor.digest"] == card.digest


def test_a_file_whose_order_saves_nothing_stays_as_it_was(tmp_path: Path) -> None:
    _, _, card, out = exported(1, tmp_path)
    file = card.files["onnx"]
    assert file.state == "ok", file.reason
    assert file.memory is not None
    assert not file.memory.kept
    assert file.memory.reason == "the planned order saves no memory"
    assert file.on_device
    session = onnxruntime.InferenceSession(str(out / f"{card.digest}.onnx"))
    assert session.get_modelmeta().producer_name == "autotailor"


def test_a_file_is_not_planned_for_a_processor_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "cpu_model", lambda: "another processor")
    _, _, card, _ = exported(3, tmp_path)
    memory = card.files["onnx"].memory
    assert memory is not None
    assert not memory.kept
    assert (memory.reason or "").startswith("it would be optimised for another processor; the device has")


def test_a_planned_order_is_of_one_batch() -> None:
    with pytest.raises(ValidationError, match="planned_memory=true with dynamic_batch=true"):
        export.Settings(planned_memory=True, dynamic_batch=True)
