"""A device with a batch: operators, SubNets and files are of that many samples, and so are the latencies."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import tailor_ir
from flows.cli import main
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.lut.views import batch_of
from tasks.measuring.profile import plan
from tasks.prediction import latency
from tasks.prediction.settings import Settings
from tests.support.fronts import write_front

Made = tuple[Path, dict[int, tuple[dict[str, Any], dict[str, Any], StageResult]]]
BATCH = 8
QUICK = MeasureSettings(time_cap_ms=15.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
LAYERS = QUICK.model_copy(update={"layers_ms": 20.0})


@pytest.fixture(scope="module", params=["in situ", "alone"])
def made(request: pytest.FixtureRequest, supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Folder, agent and results of the stages for one sample and for a batch, both in one store."""
    root = tmp_path_factory.mktemp("batches")
    predict = Settings(random_subnets=4, fit_subnets=1, rounds=1, measure=QUICK)
    settings = profile.Settings(method=request.param, measure=QUICK, subnet=LAYERS, store=root / "luts")
    results = {}
    with local_agent("onnxruntime") as client, client.lease():
        for batch in (1, BATCH):
            folder = root / f"{batch}"
            folder.mkdir()
            silent = Silent()
            enumeration.run(supernet, folder, silent, batch)
            planned = plan(settings, folder, client.capabilities(), supernet, batch)
            profiled = profile.run(settings, folder, client, folder, silent, supernet, batch)
            results[batch] = planned, profiled, latency.run(predict, supernet, folder, client, folder, silent, batch)
    return root, results


def test_operators_of_another_batch_are_measured_though_the_store_is_shared(made: Made) -> None:
    _, results = made
    for planned, profiled, _ in results.values():
        assert planned["to_measure"] == profiled["measured_now"] == profiled["lut"]["entries"] > 0
        assert profiled["lut"]["failed"] == 0


def test_a_shared_table_shows_its_batches(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    root, _ = made
    assert main(["lut", "show", f"store={root / 'luts'}", "--json", str(root / "show.json")]) == 0
    (table,) = json.loads((root / "show.json").read_text())["tables"]
    assert table["batches"] == [1, BATCH]
    assert f"1, {BATCH}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "batch"),
    [
        ("Conv", [4, 16, 8, 8], {}, 4),
        ("LSTM", [20, 4, 16], {}, 4),
        ("LSTM", [4, 20, 16], {"layout": 1}, 4),
        ("Linear", [256, 16], {}, None),  # 4 samples of 64 tokens, or 256 samples
    ],
)
def test_a_batch_is_told_where_an_operators_axes_are_known(
    op: str, shape: list[int], attributes: dict[str, int], batch: int | None
) -> None:
    step: dict[str, Any] = {"op": op, "inputs": ["in0", "p0"], "outputs": ["t0"], "attributes": attributes}
    assert batch_of({"operator": op, "steps": [step], "input_shapes": [shape]}) == batch
    assert batch_of({}) is None


def test_latencies_are_those_of_the_batch(made: Made) -> None:
    _, results = made
    one, many = ({row["kind"]: row for row in results[batch][2]["subnets"]} for batch in (1, BATCH))
    for kind in ("largest", "smallest"):
        assert 1.3 * one[kind]["measured_ms"] < many[kind]["measured_ms"] < 4 * BATCH * one[kind]["measured_ms"]
        assert 1.3 * one[kind]["sum_ms"] < many[kind]["sum_ms"]


def test_exported_onnx_files_take_the_batch_and_ncnn_files_one_sample(supernet: Path, tmp_path: Path) -> None:
    splits = load_splits(DataSettings(kind="digits"))
    data = {"test": EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)}
    net = tailor_ir.load(supernet)
    config = net.min_config
    write_front(tmp_path, net, [(config, 1.0)])
    settings = export.Settings(measure=QUICK, check_images=BATCH + 3, keep_winners=True)
    with local_agent("onnxruntime") as client, client.lease():
        result = export.run(
            export.ExportRequest(settings=settings, supernet=supernet, search=tmp_path, data=data, batch=BATCH),
            client,
            Workspace(out=tmp_path, progress=Silent()),
        )
    (card,) = result["subnets"]
    assert card["input_shape"][0] == BATCH
    assert card["latency"]["p50_ms"] > 0
    for file in card["files"].values():
        assert file["state"] == "ok", file
        assert file["images"] == BATCH + 3
    (value,) = onnx.load(tmp_path / f"{card['digest']}.onnx").graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == BATCH
