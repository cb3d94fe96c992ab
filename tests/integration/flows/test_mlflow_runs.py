"""Runs of the whole pipeline in MLflow can be compared: by their numbers, their names and their artifacts."""

import math
import re
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from flows.pipeline.results import numbers, of_exports, run_metrics, speed_ups
from tasks.base.schemas.exports import ExportedWinner, Exports, Latency, MeasuredLargest
from tasks.base.schemas.results import BaseResult
from tests.support.flows.fixtures import Command

WITH_ARTIFACTS = {"finetune": "supernet", "profile/onnxruntime": "lut", "search/onnxruntime": "front.json"}


def runs_of(client: MlflowClient, result: dict[str, Any]) -> list[Run]:
    """Pipeline runs under the settings of a result, in order."""
    (experiment,) = [found for found in client.search_experiments() if found.name == "autotailor"]
    same = f"tags.`autotailor.stage` = 'pipeline' and tags.`autotailor.key` = '{Path(result['run']).name}'"
    return list(client.search_runs([experiment.experiment_id], same, order_by=["attributes.start_time ASC"]))


@pytest.fixture
def client(finished: dict[str, Any], command: Command) -> MlflowClient:
    """The database of the finished run."""
    uri = f"sqlite:///{command.output.parent.resolve()}/mlflow.db"
    return MlflowClient(uri, uri)


def test_a_run_has_the_numbers_that_runs_are_compared_by(finished: dict[str, Any], client: MlflowClient) -> None:
    first = runs_of(client, finished)[0]
    found = first.data.metrics
    (device,) = finished["devices"]
    accuracies = finished["accuracies"]
    assert found["base_test_accuracy"] == accuracies["base model, test"]
    assert found["largest_test_accuracy"] == accuracies["largest SubNet, test"]
    assert found["accuracy_predictor_mean_error_points"] > 0
    errors = device["latency_validation"]
    assert found["onnxruntime/latency_predictor_median_relative_error"] == errors["median_relative_error"]
    assert found["onnxruntime/hypervolume"] == device["hypervolume"]["value"]
    assert found["onnxruntime/base_ms"] == device["base"]["measured_ms"]
    history = client.get_metric_history(first.info.run_id, "onnxruntime/winner_ms")
    assert [point.value for point in history] == [row["measured_ms"] for row in device["winners"]]
    speed_up = next(card["value"] for card in finished["headline"] if card["label"] == "onnxruntime: speed-up")
    shown = found.get("onnxruntime/speed_up")
    assert speed_up == ("–" if shown is None else f"{shown:.2f} ×")


@pytest.mark.long
def test_an_unchanged_run_has_a_name_of_its_own_and_everything_that_the_first_has(
    finished: dict[str, Any], command: Command, client: MlflowClient
) -> None:
    command("run")
    runs = runs_of(client, finished)
    first, again = runs[0], runs[-1]
    assert first.info.run_id != again.info.run_id
    assert first.info.run_name != again.info.run_name
    assert again.data.metrics == first.data.metrics
    nested = client.search_runs([again.info.experiment_id], f"tags.`mlflow.parentRunId` = '{again.info.run_id}'")
    by_stage = {run.data.tags["autotailor.stage"]: run for run in nested}
    for stage, artifact in WITH_ARTIFACTS.items():
        assert by_stage[stage].data.tags["autotailor.cached"] == "true"
        assert artifact in {file.path for file in client.list_artifacts(by_stage[stage].info.run_id)}
    assert by_stage["finetune"].data.metrics["largest_test_accuracy"] == finished["accuracies"]["largest SubNet, test"]


def test_winners_load_from_the_run_and_its_description_says_how(
    finished: dict[str, Any], client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs_of(client, finished)[0]
    note = first.data.tags["mlflow.note.content"]
    (address,) = re.findall(r'load_model\("(.*?)"\)', note)
    assert all(f"{card['label']}: {card['value']}" in note for card in finished["headline"][2:3])
    assert len(first.data.params) < 80
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    model: Any = mlflow.pyfunc.load_model(address)
    ((name, shape),) = ((tensor.name, tensor.shape) for tensor in model.metadata.get_input_schema())
    (answer,) = model.predict({name: np.zeros(shape, np.float32)}).values()
    assert answer.shape == (1, 10)
    (device,) = finished["devices"]
    folders = {Path(file.path).name for file in client.list_artifacts(first.info.run_id, "models/onnxruntime")}
    assert len(folders) == len({row["digest"] for row in device["winners"]})
    exported = {file.name.removesuffix(".onnx") for file in Path(finished["exports"]["onnxruntime"]).glob("*.onnx")}
    assert folders == exported


def test_numbers_of_a_result_are_its_finite_ones_by_dotted_name() -> None:
    result = {
        "a": 1, "b": {"c": 0.5, "d": "text", "e": math.nan}, "f": [1, 2], "g": True, "h": None,
        "device": {"threads": 1}, "seconds": 3.0,
    }  # fmt: skip
    assert numbers(result) == {"a": 1.0, "b.c": 0.5}


def test_winners_that_were_not_measured_are_not_in_the_series() -> None:
    rows: list[dict[str, Any]] = [
        {"budget_ms": 1.0, "measured_ms": 0.9, "within_budget": True, "accuracy": {"test": 0.5}},
        {"budget_ms": 2.0, "measured_ms": None, "within_budget": False, "accuracy": {}},
        {"budget_ms": 3.0, "measured_ms": 3.1, "within_budget": False, "accuracy": {"test": 0.7}},
    ]
    common: dict[str, Any] = {"digest": "a", "predicted_ms": 1.0, "predicted_accuracy": 0.5, "files_ok": True}
    winners = tuple(ExportedWinner.model_validate({**common, **row}) for row in rows)
    known: dict[str, Any] = {"p50_ms": 4.0}
    parts: dict[str, Any] = {
        "winners": winners,
        "largest": MeasuredLargest.model_construct(latency=Latency.model_construct(**known)),
    }
    assert of_exports(Exports.model_construct(**parts)) == {
        "base_ms": [4.0],
        "winner_budget_ms": [1.0, 3.0],
        "winner_ms": [0.9, 3.1],
        "winner_test_accuracy": [0.5, 0.7],
        "best_test_accuracy": [0.7],
        "winners_within_budget": [1.0],
    }


def test_metrics_of_a_run_begin_with_the_name_of_their_device() -> None:
    accuracies = {"validation_accuracy": 0.5, "test_accuracy": 0.25}
    result = {**BaseResult(trained=True, **accuracies).to_json(), "seconds": 3.0}
    assert run_metrics("base", "", result) == {"base_validation_accuracy": [0.5], "base_test_accuracy": [0.25]}
    assert run_metrics("base", "ncnn", result) == {
        "ncnn/base_validation_accuracy": [0.5],
        "ncnn/base_test_accuracy": [0.25],
    }
    assert run_metrics("profile", "ncnn", {"known": 1}) == {}


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((0.79, 0.7), {"ncnn/speed_up": [2.0]}), ((0.79, 0.795), {"ncnn/speed_up": [4.0]}), ((0.75, None), {})],
)
def test_the_speed_up_is_that_of_the_fastest_winner_that_is_accurate_enough(
    accuracies: tuple[float, float | None], expected: dict[str, list[float]]
) -> None:
    winners = [
        {"measured_ms": measured_ms, "accuracy": accuracy}
        for measured_ms, accuracy in zip((2.0, 1.0), accuracies, strict=True)
    ]
    device = {"name": "ncnn", "base": {"measured_ms": 4.0}, "winners": winners}
    report = {"accuracies": {"base model, test": 0.8}, "devices": [device]}
    assert speed_ups(report, points=1.0) == expected
