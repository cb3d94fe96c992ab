"""The whole pipeline on real digits with a small network: what it makes, and what a change makes run again."""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import tailor_ir
from flows.cli import main
from flows.config import DeviceProfile
from flows.pipeline.devices import Devices
from flows.storage.sharing import LIST_FILE
from tasks.base.artifacts import read_json
from tasks.operations.nightly.records import History
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command
from tests.support.flows.pipeline import _worked

STAGES = [
    "check",
    "base",
    "compile",
    "finetune",
    "enumerate",
    "profile/onnxruntime",
    "sensitivities",
    "latency/onnxruntime",
    "resources/onnxruntime",
    "search/onnxruntime",
    "export/onnxruntime",
]


def test_the_first_run_works_every_stage_and_writes_a_report(finished: dict[str, Any], command: Command) -> None:
    assert _worked(finished) == STAGES
    assert Path(finished["report_html"]).read_text().lower().startswith("<!doctype html>")
    assert (command.output / "report.json").exists()
    listed = read_json(Path(finished["run"]) / LIST_FILE)
    assert sorted(name.rpartition("/")[0] for name in listed) == sorted(STAGES)
    assert all((command.output / "stages" / name / "result.json").exists() for name in listed)
    (device,) = finished["devices"]
    assert len(device["winners"]) == 10, "one for each budget"
    assert all(row["measured_ms"] > 0 for row in device["winners"])


@pytest.mark.long
def test_another_budget_runs_search_and_export_only(finished: dict[str, Any], command: Command) -> None:
    budget_ms = finished["devices"][0]["winners"][-1]["predicted_ms"] * 1.01
    changed = command("run", f"search.budgets_ms=[{budget_ms}]")
    assert _worked(changed) == ["search/onnxruntime", "export/onnxruntime"]
    assert len(changed["devices"][0]["winners"]) == 1


@pytest.mark.long
def test_another_device_profile_trains_nothing(finished: dict[str, Any], command: Command) -> None:
    result = command("profile", "device.onnxruntime.measure.time_cap_ms=6")
    (stage,) = result["stages"]
    assert stage["stage"] == "profile/onnxruntime"
    assert not stage["cached"]
    assert command("finetune", "device.onnxruntime.measure.time_cap_ms=6")["stages"][0]["cached"]


@pytest.mark.long
def test_settings_that_cannot_change_a_result_repeat_nothing(finished: dict[str, Any], command: Command) -> None:
    options = ("data.workers=1", "finetune.checkpoint_every_s=7", "base.checkpoint_every_s=7", "finetune.restarts=2")
    result = command("finetune", *options)
    assert result["stages"][0]["cached"]


@pytest.mark.long
def test_a_stage_command_returns_its_own_result(finished: dict[str, Any], command: Command) -> None:
    (stage,) = command("enumerate")["stages"]
    assert stage["result"]["unique_operators"] == finished["supernet"]["unique_operators"]
    net = tailor_ir.load(Path(command("finetune")["stages"][0]["folder"]) / "supernet")
    assert str(net.space.distinct) == finished["supernet"]["distinct"]


def _client(command: Command) -> MlflowClient:
    uri = f"sqlite:///{command.output.parent.resolve()}/mlflow.db"
    return MlflowClient(uri, uri)


def test_mlflow_has_a_run_nested_per_stage_with_metrics_params_and_artifacts(
    finished: dict[str, Any], command: Command
) -> None:
    client = _client(command)
    (experiment,) = [found for found in client.search_experiments() if found.name == "autotailor"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    parent = runs[0]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert [run.data.tags["autotailor.stage"] for run in nested] == STAGES
    assert {run.info.status for run in (parent, *nested)} == {"FINISHED"}
    assert parent.data.params["finetune.epochs"] == "1"
    assert parent.data.params["device.onnxruntime.threads"] == "1"
    assert "version.torch" in parent.data.tags
    assert not any("reported" in tag and stage in tag for tag in parent.data.tags for stage in STAGES)
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"config.yaml", "models", "report.html", "report.json"}
    by_stage = {run.data.tags["autotailor.stage"]: run for run in nested}
    training = by_stage["finetune"]
    losses = client.get_metric_history(training.info.run_id, "loss")
    assert len(losses) == len({loss.step for loss in losses}) == 18
    wanted = {"finetune": "supernet", "profile/onnxruntime": "lut", "search/onnxruntime": "front.json"}
    for stage, artifact in wanted.items():
        run = by_stage[stage]
        assert artifact in {file.path for file in client.list_artifacts(run.info.run_id)}
        assert len(run.data.tags[f"z.digest.{artifact}"]) == 16


def test_the_supernet_is_a_registered_model_that_loads(finished: dict[str, Any], command: Command) -> None:
    client = _client(command)
    version = min(
        client.search_model_versions("name = 'autotailor-test_resnet-digits'"), key=lambda found: found.version
    )
    assert version.run_id is not None
    folder = client.download_artifacts(version.run_id, "supernet")
    assert str(tailor_ir.load(Path(folder)).space.distinct) == finished["supernet"]["distinct"]


def test_an_existing_supernet_is_adapted_to_other_devices_without_training(
    finished: dict[str, Any], adapted: tuple[dict[str, Any], Path]
) -> None:
    result, _ = adapted
    assert "base" not in {row["stage"] for row in result["stages"]}
    assert result["accuracies"].keys() >= {"largest SubNet, test", "smallest SubNet, validation"}
    trained = {name: finished["accuracies"][name] for name in result["accuracies"]}
    assert result["accuracies"] == pytest.approx(trained, abs=0.05)  # statistics from fewer images
    assert all(len(device["winners"]) == 4 for device in result["devices"]), "one for each budget"


def test_a_night_of_a_given_supernet_is_compared_with_the_one_before_and_registers_none(
    adapted_night: tuple[dict[str, Any], Command],
) -> None:
    result, own = adapted_night
    assert _worked(result) == []
    assert "network: other content" in result["nightly"]["changed"]
    earlier, night, *_ = History(own.output / "nights").nights("test_resnet-digits", pytest.fail)
    assert (night.compared_with, night.promoted) == (earlier.began, True)
    assert night.inputs["network"] == night.supernet
    assert {name: len(one.times.operators) for name, one in night.devices.items()} == {"torch": 2, "ncnn_bf16": 2}
    client = MlflowClient(database_in(own.output.parent), database_in(own.output.parent))
    assert client.search_registered_models() == []


@pytest.mark.long
def test_data_of_another_size_than_a_supernet_was_made_for_are_one_line(
    finished: dict[str, Any], command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supernet = next(command.output.glob("stages/finetune/*/supernet"))
    words = [f"supernet={supernet}", "device=[onnxruntime]", "data=digits", "data.resolution=48"]
    words.append(f"output_dir={tmp_path / 'others'}")
    assert main(["retarget", *words]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("autotailor: data 'digits': resolution 48; allowed: resolution 32, as the SuperNet in '")


def test_a_local_agent_serves_all_stages_and_ends_with_the_run() -> None:
    import psutil

    before = set(psutil.Process().children(recursive=True))
    with Devices({"onnxruntime": DeviceProfile(backend="onnxruntime")}) as devices:
        assert devices.client("onnxruntime") is devices.client("onnxruntime")
        assert len(devices.fingerprint("onnxruntime")) >= 16
        own = set(psutil.Process().children(recursive=True)) - before
        assert any("profiling_agents" in " ".join(agent.cmdline()) for agent in own)
    _, alive = psutil.wait_procs(list(own), timeout=300)
    assert alive == []
