"""The network as it was given is exported beside its SubNets, and wins the budgets for which none of them is better."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.exports import AS_GIVEN, LABELLED, ExportIndex, Exports
from tasks.data import DataSettings, load_splits
from tasks.data.loading import load_labelled
from tasks.data.settings import OwnProblem
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.subnets import EvaluationData
from tasks.export.readable import INDEX_FILE
from tests.support.fronts import write_front

SETTINGS = export.Settings(
    formats=("onnx",), bundle=True, measure=MeasureSettings(time_cap_ms=5.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10),
    ).eval()  # fmt: skip


def known(folder: Path, given: nn.Module) -> dict[str, EvaluationData]:
    """Digits whose targets are the network's answers, and samples labelled by it."""
    net = tailor_ir.load(folder / "given")
    (folder / "teacher.onnx").write_bytes(onnx_of(net, net.max_config, batch=16))
    fidelity = OwnProblem(kind="fidelity")
    splits = load_splits(DataSettings(kind="digits", workers=1, own_problem=fidelity, teacher=folder / "teacher.onnx"))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)
    x, file = torch.rand(40, 3, 32, 32), folder / "labelled.npz"
    with torch.no_grad():
        np.savez(file, x=x, labels=given(x).argmax(1))
    labelled = load_labelled(DataSettings(kind="unlabelled", path=file, labelled=file))
    assert labelled is not None
    return {"validation": images, LABELLED: images.of(labelled, limited=False)}


@pytest.mark.parametrize("keeps", [True, False])
def test_the_network_as_it_was_given_is_never_lost(keeps: bool, tmp_path: Path) -> None:
    given, x = network(), torch.rand(1, 3, 32, 32)
    net = tailor_ir.compile(given, x)
    net.save(tmp_path / "given")
    with torch.no_grad():
        expected = given(x).numpy()
        for tensor in net.elastic.parameters():
            tensor.neg_()
    net.save(tmp_path / "trained")
    front = write_front(tmp_path, net, [(net.min_config, 1e6 if keeps else 1e-6)])
    (tmp_path / "out").mkdir()
    request = export.ExportRequest(
        settings=SETTINGS,
        supernet=tmp_path / "trained",
        search=tmp_path,
        data=known(tmp_path, given),
        given=tmp_path / "given",
    )
    with local_agent("onnxruntime") as client, client.lease():
        content = export.run(request, client, Workspace(out=tmp_path / "out", progress=Silent()))
    found = Exports.of_json(content, "here")
    card = found.subnets[-1]
    assert card.digest == AS_GIVEN
    assert "No run has trained it" in (tmp_path / "out" / f"{AS_GIVEN}.md").read_text()
    session = onnxruntime.InferenceSession(tmp_path / "out" / f"{AS_GIVEN}.onnx")
    (answers,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-5)
    assert card.latency == found.largest.latency
    assert card.accuracy["validation"] == pytest.approx(1.0), "it answers as itself"
    assert card.accuracy[LABELLED] == 1.0, "the labels are its own"
    assert "| fidelity, validation | 100.0 ± 0.0 %" in (tmp_path / "out" / f"{AS_GIVEN}.md").read_text()
    assert "| true score, labelled | 100.0 ± " in (tmp_path / "out" / f"{AS_GIVEN}.md").read_text()
    assert found.bundle is not None
    assert found.bundle.state == "ok"
    assert not any(AS_GIVEN in file.name for file in (tmp_path / "out" / "bundle").iterdir()), "it shares no weights"
    (winner,) = found.winners
    assert winner.digest == (AS_GIVEN if keeps else front.winners[0].digest)
    export.write_readable(tmp_path / "out", tmp_path / "readable")
    index = ExportIndex.read(tmp_path / "readable" / INDEX_FILE)
    assert [row.digest for row in index.winners] == ([AS_GIVEN] if keeps else [winner.digest, AS_GIVEN])
    assert all((tmp_path / "readable" / name).is_file() for row in index.winners for name in row.files)
