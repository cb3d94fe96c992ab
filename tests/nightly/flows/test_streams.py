"""`autotailor stream`: SubNets of a run on images that drift, from the command line to MLflow and the report."""

import re
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.cli.arguments import parse
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import config_groups, validate
from flows.operations import deployments
from flows.pipeline.stages import PIPELINE
from flows.pipeline.stages.streams import STREAM
from flows.pipeline.stages.walk import rows
from tasks.base.schemas.results import StreamedNetwork
from tasks.base.schemas.winners import FRONT_FILE, Front
from tests.support.flows.fixtures import Command

WORDS = (
    "drift.corruptions=[contrast,impulse_noise]",
    "drift.images=60",
    "stream.methods=[source,batchnorm,guarded]",
    "stream.window_images=40",
)


def config_of(*words: str) -> RunConfig:
    return validate(RunConfig, compose_config("config", list(words)))


def test_options_of_drift_are_streams() -> None:
    kinds = {name: config_of(f"drift={name}").drift for name in config_groups()["drift"]}
    assert kinds.pop("one_by_one").batch_size == 1
    assert {name: drift.stream for name, drift in kinds.items()} == {name: name for name in kinds}
    assert set(kinds) == {"clean", "continual", "correlated", "gradual", "mixed", "returning", "shares"}


def test_subnets_that_no_search_names_need_none() -> None:
    names = [spec.name for spec in rows(PIPELINE, config_of("stream.subnets=[original,largest]"), "stream")]
    assert names == ["check", "base", "compile", "finetune", "stream"]
    searched = [spec.name for spec in rows(PIPELINE, config_of(), "stream")]
    assert searched[-3:] == ["search", "refine", "stream"]
    assert "stream" not in [spec.name for spec in rows(PIPELINE, config_of(), "report")]
    assert "stream" in [spec.name for spec in rows(PIPELINE, config_of("stream.in_report=true"), "report")]


def test_a_subnet_of_a_search_is_played_for_each_device() -> None:
    assert STREAM.scope.labels(config_of()) == (
        "original",
        "largest",
        "smallest_budget-ncnn",
        "smallest_budget-onnxruntime",
    )


def test_fields_of_the_form_are_words_of_the_command_line() -> None:
    fields = deployments.field_words(drift="mixed", methods=["source", "guarded"], subnets=["largest", "2ms"])
    found = validate(RunConfig, deployments.composed("config", fields, ["drift.seed=3"], None))
    assert found == config_of(
        "drift=mixed", "stream.methods=[source,guarded]", "stream.subnets=[largest,2ms]", "drift.seed=3"
    )
    empty = deployments.field_words(drift=deployments.DEFAULT_DRIFT, methods=[], subnets=[])
    assert validate(RunConfig, deployments.composed("config", empty, [], None)) == config_of()


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("drift=continul", "drift: 'continul' is no option; allowed: .*; did you mean 'continual'?"),
        ("drift.severty=3", "option 'drift.severty': is unknown; .*did you mean 'drift.severity'?"),
        ("drift.corruptions=[smoke]", "drift.corruptions.0: got 'smoke'; allowed: "),
        ("stream.methods=[tnet]", "stream.methods.0: got 'tnet'; allowed: 'source'"),
        ("stream.subnets=[largst]", "stream.subnets: SubNet 'largst': is no name of a SubNet"),
        ("adaptation.guard.held_back_every=1", "adaptation.guard.held_back_every: got 1; allowed: 2 or more"),
    ],
)
def test_typos_are_one_line(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", word]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(line.replace("?", r"\?"), told), told
    assert parse(["stream", word]).command == "stream"


def test_subnets_of_a_run_play_a_stream(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    result = command("stream", *WORDS)
    stages = {stage["stage"]: stage for stage in result["stages"]}
    assert list(stages) == ["stream/original", "stream/largest", "stream/smallest_budget-onnxruntime"]
    assert "contrast" in capsys.readouterr().out
    for stage in stages.values():
        found = StreamedNetwork.read(Path(stage["folder"]) / "stream.json")
        assert [one.method for one in found.methods] == ["source", "batchnorm", "guarded"]
        assert found.images == 120
    (searched,) = command("search")["stages"]
    front = Front.read(Path(searched["folder"]) / FRONT_FILE)
    tightest = stages["stream/smallest_budget-onnxruntime"]["result"]["config"]
    assert tightest == min(front.winners, key=lambda row: row.budget_ms).config  # an export may replace it
    again = command("stream", *WORDS)
    assert all(stage["cached"] for stage in again["stages"])


def test_mlflow_has_errors_by_step(finished: dict[str, Any], command: Command) -> None:
    result = command("stream", *WORDS)
    uri = f"sqlite:///{command.output.parent.resolve()}/mlflow.db"
    client = MlflowClient(uri, uri)
    (experiment,) = (found for found in client.search_experiments() if found.name == "autotailor")
    key = Path(result["run"]).name
    first, *_ = client.search_runs(
        [experiment.experiment_id], f"tags.`autotailor.key` = '{key}'", order_by=["attributes.start_time ASC"]
    )
    (method,) = (one for one in result["stages"][1]["result"]["methods"] if one["method"] == "guarded")
    history = client.get_metric_history(first.info.run_id, "largest/stream_error_percent.guarded")
    assert [point.value for point in history] == method["window_error_percent"]
    nested = client.search_runs([experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{first.info.run_id}'")
    (largest,) = (run for run in nested if run.data.tags["autotailor.stage"] == "stream/largest")
    files = {file.path for file in client.list_artifacts(largest.info.run_id)}
    assert {"stream.json", "windows.parquet", "adapted"} <= files


def test_the_report_shows_a_chart_and_a_table(finished: dict[str, Any], command: Command) -> None:
    report = command("run", *WORDS, "stream.in_report=true", "stream.subnets=[largest]")
    (row,) = report["streams"]
    assert row["title"] == "largest"
    assert any(card["label"] == "largest: error on a continual stream" for card in report["headline"])
    page = Path(report["report_html"]).read_text()
    assert "Images that drift: largest" in page
    assert 'id="stream-0"' in page


def test_too_few_images_are_one_line_before_anything_is_trained(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        command("stream", "drift.images=5000")
    assert "5000 are needed; allowed: 1 to" in capsys.readouterr().err
