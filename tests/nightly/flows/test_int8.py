"""Devices in int8: a run from profiling to the report, in which operators, SubNets, accuracies and files are those in int8."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from profiling_agents.client import local_agent
from tasks.base.errors import UserError
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import FEW, TINY

DEVICES = ("onnxruntime_int8", "openvino_int8")


@pytest.fixture(scope="module")
def in_int8(
    finished: dict[str, Any], command: Command, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The report of the SuperNet's adaptation to devices in int8 beside one in fp32, and its output folder."""
    with local_agent("openvino") as client:
        has_int8 = "int8" in client.capabilities().precisions
    devices = ("onnxruntime", *(DEVICES if has_int8 else DEVICES[:1]))
    supernet = Path(command("finetune")["stages"][0]["folder"]) / "supernet"
    parts = ("data=", "engine.", "profile.", "predict.", "export.", "search.")
    words = [word for word in TINY if word.startswith(parts)]
    words += [f"supernet={supernet}", f"device=[{','.join(devices)}]", FEW, "refine.candidates=2"]
    words += ["predict.validation_images=null", "predict.recalibration_images=128", "export.quantise.max_loss_points=5"]
    output = tmp_path_factory.mktemp("int8") / "out"
    shutil.copytree(command.output / "luts", output / "luts")  # operators in fp32 are measured already
    return Command(output, tuple(words))("retarget"), output


def stages(output: Path, name: str, file: str) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(output.glob(f"stages/{name}/*/{file}"))]


def kinds_that_run(file: Path, folder: Path) -> set[str]:
    """Operators after onnxruntime's optimisations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return {node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node}


def test_a_device_in_int8_goes_through_every_stage(in_int8: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    result, output = in_int8
    exact, *quantised = result["devices"]
    assert exact["int8"] is None
    assert len({device["runtime"]["fingerprint"] for device in result["devices"]}) == len(result["devices"])
    assert len(list((output / "luts").iterdir())) == len(result["devices"]), "tables of two precisions are not mixed"
    for device in quantised:
        assert device["runtime"]["precision"] == "int8"
        assert device["lut"]["failed"] == 0
        assert device["latency_validation"]["n"] > 0
        assert device["base"]["fp32_ms"] > 0
        (exports,) = stages(output, f"export/{device['name']}", "exports.json")
        for card in exports["subnets"]:
            file = card["files"]["onnx_int8"]
            assert file["state"] == "ok", file["reason"]
            assert (file["precision"], file["on_device"], file["run"]["precision"]) == ("int8", True, "int8")
            assert card["accuracy"] == file["int8"]["accuracy"]
            assert card["device"]["precision"] == "int8"
            assert card["latency"]["p50_ms"] > 0
            assert file["int8"]["lost_points"]["validation"] <= file["int8"]["allowed_points"]
            plain = card["files"]["onnx"]
            assert (plain["state"], plain["precision"], plain["run"]["precision"]) == ("ok", "fp32", "fp32")
            assert file["bytes"] < 0.6 * plain["bytes"]
            folder = next(output.glob(f"stages/export/{device['name']}/*"))
            kinds = kinds_that_run(folder / f"{card['digest']}.int8.onnx", tmp_path)
            assert "QLinearConv" in kinds
            text = (folder / f"{card['digest']}.md").read_text()
            assert "| accuracy in int8, test |" in text
            assert "precision int8" in text


def test_accuracies_of_a_device_in_int8_are_those_in_int8(in_int8: tuple[dict[str, Any], Path]) -> None:
    result, output = in_int8
    (stated,) = stages(output, "int8", "accuracy_validation.json")
    (exact,) = stages(output, "sensitivities", "accuracy_validation.json")
    (table,) = stages(output, "int8", "sensitivities.json")
    (exact_table,) = stages(output, "sensitivities", "sensitivities.json")
    pairs = list(zip(exact["rows"], stated["rows"], strict=True))
    assert all(one["digest"] == other["digest"] for one, other in pairs)
    lost = [100 * (one["accuracy"] - other["accuracy"]) for one, other in pairs]
    cost = stated["int8"]
    assert cost["subnets"] == len(lost)
    assert cost["mean_points"] == pytest.approx(sum(lost) / len(lost))
    assert (cost["least_points"], cost["most_points"]) == pytest.approx((min(lost), max(lost)))
    assert any(lost), "int8 is another computation"
    shift = 100 * (exact_table["largest"]["accuracy"] - table["largest"]["accuracy"])
    assert shift == pytest.approx(cost["mean_points"])
    for device in result["devices"][1:]:
        (front,) = stages(output, f"refine/{device['name']}", "front.json")
        (exports,) = stages(output, f"export/{device['name']}", "exports.json")
        cards = {card["digest"]: card for card in exports["subnets"]}
        whole = [
            (row["measured_accuracy"], card["accuracy"]["validation"])
            for row in front["winners"]
            if (card := cards.get(row["digest"])) and not card["files"]["onnx_int8"]["int8"]["kept_fp32"]
        ]
        assert whole
        assert all(measured == exported for measured, exported in whole)
    labels = {card["label"] for card in result["headline"]}
    assert {f"{device['name']}: int8" for device in result["devices"][1:]} <= labels
    assert "onnxruntime: int8" not in labels
    assert "Accuracies and latencies are those in int8" in (output / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.together=true"], "onnxruntime_int8 in int8 and onnxruntime not"),
        (
            ["export.bundle=true"],
            "export.bundle with onnxruntime_int8 in int8: bundles are of fp32 files; allowed: false",
        ),
    ],
)
def test_what_devices_in_int8_cannot_do_is_one_line(words: Sequence[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate(RunConfig, compose_config("config", ["device=[onnxruntime,onnxruntime_int8]", *words]))
