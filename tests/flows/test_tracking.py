"""MLflow, for real, in sqlite."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.tracking import Tracker, flatten, start_tracking
from tasks.errors import UserError


@pytest.fixture
def tracker(tmp_path: Path) -> Tracker:
    """A pipeline run in a fresh database."""
    return start_tracking(f"sqlite:///{tmp_path}/mlflow.db", "tests", tmp_path / "artifacts", "k1", "net")


def test_stage_runs_are_nested_and_keep_metrics_over_steps(tracker: Tracker) -> None:
    run_id = tracker.start_stage("finetune", "abc")
    metrics = tracker.metrics(run_id)
    for step, loss in enumerate((3.0, 2.0, 1.0)):
        metrics.add({"loss": loss}, step)
    metrics.flush()
    tracker.finish(run_id)
    run = tracker.client.get_run(run_id)
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert run.info.status == "FINISHED"
    assert [metric.value for metric in tracker.client.get_metric_history(run_id, "loss")] == [3.0, 2.0, 1.0]


def test_a_run_that_never_ended_goes_on(tracker: Tracker, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    stage = tracker.start_stage("finetune", "abc")
    again = start_tracking(uri, "tests", None, "k1", "net")
    assert again.run_id == tracker.run_id
    assert again.start_stage("finetune", "abc") == stage
    assert again.start_stage("finetune", "other key") != stage
    again.finish(again.run_id)
    assert start_tracking(uri, "tests", None, "k1", "net").run_id != tracker.run_id


def test_an_interrupted_run_goes_on_and_is_running_again(tracker: Tracker, tmp_path: Path) -> None:
    tracker.finish(tracker.run_id, "KILLED")
    again = start_tracking(f"sqlite:///{tmp_path}/mlflow.db", "tests", None, "k1", "net")
    assert again.run_id == tracker.run_id
    assert again.client.get_run(again.run_id).info.status == "RUNNING"


def test_params_are_the_flattened_config_and_can_be_logged_twice(tracker: Tracker) -> None:
    config = {
        "finetune": {"epochs": 3},
        "device": {"ncnn": {"threads": 1}},
        "space": {},
        "wish": {"*.depth": 2},
        "long": "x" * 9000,
    }
    config["many"] = {str(number): number for number in range(150)}
    tracker.log_params(tracker.run_id, config)
    tracker.log_params(tracker.run_id, config)
    params = tracker.client.get_run(tracker.run_id).data.params
    assert params["finetune.epochs"] == "3"
    assert params["device.ncnn.threads"] == "1"
    assert params["space"] == "{}"
    assert params["wish._.depth"] == "2"
    assert len(params["long"]) == 6000
    assert params["many.149"] == "149"
    assert dict(flatten({"a": {"b": [1, 2]}})) == {"a.b": "[1, 2]"}


def test_a_registered_supernet_points_at_its_files_once_per_digest(tracker: Tracker, tmp_path: Path) -> None:
    folder = tmp_path / "supernet"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights")
    tracker.log_artifact(tracker.run_id, folder, "d1")
    for _ in range(2):
        tracker.register("autotailor-net", tracker.run_id, "supernet", "d1")
    client: MlflowClient = tracker.client
    (version,) = client.search_model_versions("name = 'autotailor-net'")
    files = client.list_artifacts(version.run_id, "supernet")
    assert version.tags["autotailor.digest"] == "d1"
    assert [file.path for file in files] == ["supernet/weights.safetensors"]
    assert version.source.endswith("/supernet")
    assert client.get_run(tracker.run_id).data.tags["autotailor.digest.supernet"] == "d1"


def test_versions_of_the_libraries_are_tags(tracker: Tracker) -> None:
    assert "version.torch" in tracker.client.get_run(tracker.run_id).data.tags


def test_a_tracking_server_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri 'foo://bar': .*tracking.uri=sqlite"):
        start_tracking("foo://bar", "tests", None, "k", "net")
