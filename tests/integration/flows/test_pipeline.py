"""The whole pipeline on real digits with a small network: what it makes, and what a change makes run again."""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import tailor_ir
from flows.cleaning.references import LIST_FILE
from flows.cli import main
from flows.config import DeviceProfile
from flows.devices import Devices
from flows.pages import facts
from flows.pages.tables import front_rows
from tasks.artifacts import read_json, read_lines
from tasks.nightly import History
from tasks.pages.text import milliseconds, percent
from tasks.schemas.baselines import Baselines, Compared
from tasks.schemas.front import Front
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command

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


def _worked(result: dict[str, Any]) -> list[str]:
    return [row["stage"] for row in result["stages"] if not row["cached"]]


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


def test_the_same_command_again_works_nothing(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    again = command("run")
    (folder,) = again["exports"].values()
    assert capsys.readouterr().out.splitlines()[-1] == f"exported files: {folder}"
    assert Path(folder) == command.output / "exports" / "onnxruntime"
    budgets = {f"{row['budget_ms']:g}ms-test_resnet-{row['digest'][:8]}.onnx" for row in again["devices"][0]["winners"]}
    assert {file.name for file in Path(folder).glob("*.onnx")} == budgets
    assert _worked(again) == []
    assert [row["seconds"] for row in again["stages"]] == [row["seconds"] for row in finished["stages"]]


def test_another_budget_runs_search_and_export_only(finished: dict[str, Any], command: Command) -> None:
    budget_ms = finished["devices"][0]["winners"][-1]["predicted_ms"] * 1.01
    changed = command("run", f"search.budgets_ms=[{budget_ms}]")
    assert _worked(changed) == ["search/onnxruntime", "export/onnxruntime"]
    assert len(changed["devices"][0]["winners"]) == 1


def test_another_device_profile_trains_nothing(finished: dict[str, Any], command: Command) -> None:
    result = command("profile", "device.onnxruntime.measure.time_cap_ms=6")
    (stage,) = result["stages"]
    assert stage["stage"] == "profile/onnxruntime"
    assert not stage["cached"]
    assert command("finetune", "device.onnxruntime.measure.time_cap_ms=6")["stages"][0]["cached"]


def test_more_training_measures_no_operator_again(finished: dict[str, Any], command: Command) -> None:
    changed = command("predict", "finetune.label_smoothing=0.05")
    cached = {stage["stage"]: stage["cached"] for stage in changed["stages"]}
    assert cached == {"sensitivities": False, "latency/onnxruntime": True, "resources/onnxruntime": True}


def test_settings_that_cannot_change_a_result_repeat_nothing(finished: dict[str, Any], command: Command) -> None:
    options = ("data.workers=1", "finetune.checkpoint_every_s=7", "base.checkpoint_every_s=7", "finetune.restarts=2")
    result = command("finetune", *options)
    assert result["stages"][0]["cached"]


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
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"config.yaml", "report.html", "report.json"}
    by_stage = {run.data.tags["autotailor.stage"]: run for run in nested}
    training = by_stage["finetune"]
    losses = client.get_metric_history(training.info.run_id, "loss")
    assert len(losses) == len({loss.step for loss in losses}) == 18
    wanted = {"finetune": "supernet", "profile/onnxruntime": "lut", "search/onnxruntime": "front.json"}
    for stage, artifact in wanted.items():
        run = by_stage[stage]
        assert artifact in {file.path for file in client.list_artifacts(run.info.run_id)}
        assert len(run.data.tags[f"autotailor.digest.{artifact}"]) == 16


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


def test_data_of_another_size_than_a_supernet_was_made_for_are_one_line(
    finished: dict[str, Any], command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supernet = next(command.output.glob("stages/finetune/*/supernet"))
    words = [f"supernet={supernet}", "device=[onnxruntime]", "data=digits", "data.resolution=48"]
    words.append(f"output_dir={tmp_path / 'others'}")
    assert main(["adapt", *words]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("autotailor: data 'digits': resolution 48; allowed: resolution 32, as the SuperNet in '")


def test_multirun_runs_every_combination_in_one_store(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    results: Any = command("search", "--multirun", "search.seed=0,1", "search.beam_width=16,8")
    assert [result["overrides"][-2:] for result in results] == [
        [f"search.seed={seed}", f"search.beam_width={width}"] for seed in (0, 1) for width in (16, 8)
    ]
    assert [result["stages"][0]["cached"] for result in results] == [True, False, False, False]
    assert "sweep" in capsys.readouterr().out


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


def test_refinement_measures_candidates_and_exports_what_it_chose(finished: dict[str, Any], command: Command) -> None:
    changed = command("run", "refine.candidates=3")
    assert _worked(changed) == ["refine/onnxruntime", "export/onnxruntime"]
    refined = max(command.output.glob("stages/refine/onnxruntime/*/front.json"), key=lambda file: file.stat().st_mtime)
    front, known = read_json(refined), Front.read(refined)
    assert front["refinement"]["measured"] > len({row["digest"] for row in front["winners"]})
    chosen = [row["digest"] for row in changed["devices"][0]["winners"]]
    assert chosen == [row["digest"] for row in front["winners"]]
    told, kept = facts.refined(known), sum(row["within_budget"] for row in front["winners"])
    assert told["candidates measured"] == str(front["refinement"]["measured"])
    assert told["within budget"] == f"{kept} of {len(front['winners'])}"
    assert [row["measured"] for row in front_rows(known)] == [milliseconds(r["measured_ms"]) for r in front["winners"]]


def test_baselines_are_trained_evaluated_and_timed_after_everything_else(
    finished: dict[str, Any], command: Command
) -> None:
    changed = command("run", "baselines=all", "baselines.random=4", "baselines.siblings=[test_resnet]")
    assert _worked(changed) == ["sibling/test_resnet", "baselines", "compared/onnxruntime"]
    sibling = next(command.output.glob("stages/sibling/test_resnet/*/history.jsonl"))
    steps = [
        len(read_lines(next(command.output.glob(f"stages/{name}/*/history.jsonl")))) for name in ("base", "finetune")
    ]
    assert len(read_lines(sibling)) == sum(steps)
    (compared,) = command.output.glob("stages/compared/onnxruntime/*/compared.json")
    found = read_json(compared)
    assert set(found["baselines"]) == {"uniform", "random", "macs", "siblings"}
    assert [row["digest"] for row in found["winners"]] == [row["digest"] for row in changed["devices"][0]["winners"]]
    assert facts.compared(Compared.read(compared))["within budget"] == percent(found["within_budget"])
    (chosen,) = command.output.glob("stages/baselines/*/baselines.json")
    assert "siblings 1" in facts.baselines(Baselines.read(chosen))["of"]
