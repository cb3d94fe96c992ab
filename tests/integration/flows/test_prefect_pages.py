"""What Prefect's pages show of a run: lines in logs, summaries of stages, tables of winners, the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import pages
from flows.pipeline.pages.publish import report_in_short, table
from flows.pipeline.tracking.addresses import page_of
from tasks.base.pages.text import count, milliseconds
from tasks.evaluation.uncertainty import uncertain
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import own_rows, wait_for

Row = dict[str, Any]


@pytest.fixture(scope="module")
def flow_run(finished: Row, command: Command) -> Row:
    """The flow run of the finished run."""
    of_run = [
        run
        for run in own_rows("flow_runs", flow_runs={"name": {"any_": ["test_resnet-digits"]}}, sort="START_TIME_ASC")
        if run["parameters"].get("until") == "report"
        and run["parameters"]["config"]["output_dir"] == str(command.output)
    ]
    return of_run[0]


def lines_of(flow_run: Row, last: str) -> list[str]:
    """Messages in the logs of a flow run and its tasks, once one that begins with `last` is there."""

    def found() -> list[str]:
        logs = own_rows("logs", logs={"flow_run_id": {"any_": [flow_run["id"]]}})
        lines = [row["message"] for row in logs]
        return lines if any(line.startswith(last) for line in lines) else []

    return wait_for(found, f"the line '{last}'")


def artifacts_of(flow_run: Row, kind: str) -> list[Row]:
    """Artifacts of a flow run whose keys begin with a word, the oldest first."""
    rows = own_rows("artifacts", artifacts={"flow_run_id": {"any_": [flow_run["id"]]}})
    return sorted((row for row in rows if (row["key"] or "").startswith(f"{kind}-")), key=lambda row: row["created"])


def test_logs_have_a_line_for_each_stage_with_what_it_made(finished: Row, flow_run: Row) -> None:
    lines = lines_of(flow_run, "onnxruntime: latency predictor")
    told = {line.partition(": ")[0]: line for line in lines if "worked in " in line}  # now, or before
    assert list(told) == [row["stage"] for row in finished["stages"]]
    (device,) = finished["devices"]
    operators = f"unique operators {count(finished['supernet']['unique_operators'])}"
    assert operators in told["enumerate"]
    assert f"with a latency {device['lut']['ok']}; " in told["profile/onnxruntime"]
    assert (
        f"test accuracy {uncertain(finished['accuracies']['base model, test'], finished['samples']['test'])}"
        in told["base"]
    )
    kept = sum(bool(row["within_budget"]) for row in device["winners"])
    assert f"within budget {kept} of {len(device['winners'])}" in told["export/onnxruntime"]
    card = finished["headline"][0]
    assert f"{card['label']}: {card['value']}, {card['note']}" in lines


@pytest.mark.long
def test_logs_say_which_stages_were_found_complete(finished: Row, command: Command) -> None:
    command("finetune")
    latest = own_rows("flow_runs", sort="START_TIME_DESC")[0]
    (line,) = [line for line in lines_of(latest, "finetune: ") if line.startswith("finetune: ")]
    assert line.startswith("finetune: found complete (worked in ")
    share = finished["accuracies"]["largest SubNet, test"]
    assert f"largest SubNet, test accuracy {uncertain(share, finished['samples']['test'])}" in line


def test_every_stage_has_a_summary_of_flat_rows(finished: Row, flow_run: Row) -> None:
    texts = [artifact["data"] for artifact in artifacts_of(flow_run, "stage")]
    assert [text.splitlines()[0] for text in texts] == [f"### {row['stage']}" for row in finished["stages"]]
    for text in texts:
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(rows) > 3, text
        assert "{" not in text
        assert "[" not in text


def test_the_progress_of_the_whole_run_is_one_artifact(finished: Row, flow_run: Row) -> None:
    rows = own_rows("artifacts", artifacts={"flow_run_id": {"any_": [flow_run["id"]]}})
    (progress,) = (row for row in rows if row["type"] == "progress")
    assert (progress["key"], progress["task_run_id"], float(progress["data"])) == ("progress", None, 100.0)
    count_of_stages = len(finished["stages"])
    assert progress["description"] == f"{count_of_stages} of {count_of_stages} stages"


def test_the_table_of_winners_has_what_was_measured_once_it_was(finished: Row, flow_run: Row) -> None:
    (device,) = finished["devices"]
    predicted, measured = (json.loads(artifact["data"]) for artifact in artifacts_of(flow_run, "winners"))
    assert {(row["measured"], row["within budget"], row["test accuracy"]) for row in predicted} == {("–", "–", "–")}
    within, samples = {True: "yes", False: "misses"}, finished["samples"]["test"]
    assert [(row["SubNet"], row["measured"], row["within budget"], row["test accuracy"]) for row in measured] == [
        (
            row["digest"],
            milliseconds(row["measured_ms"]),
            within[row["within_budget"]],
            uncertain(row["accuracy"], samples),
        )
        for row in device["winners"]
    ]


def test_the_report_is_shown_in_short_and_no_browser_refuses_it(finished: Row, flow_run: Row) -> None:
    (artifact,) = artifacts_of(flow_run, "report")
    text = artifact["data"]
    assert artifact["type"] == "markdown"
    assert "file:" not in text
    assert str(Path(finished["run"]).resolve() / "report.html") in text
    assert all(card["value"] in text for card in finished["headline"])
    assert all(milliseconds(row["measured_ms"]) in text for row in finished["devices"][0]["winners"])
    address = "http://mlflow:5000/#/experiments/1/runs/r/artifacts/report.html"
    assert f"({address})" in report_in_short(finished, Path("report.html"), address)


def test_an_artifact_on_an_mlflow_server_has_a_page_whose_address_tells_no_password() -> None:
    page = "experiments/1/runs/abc/artifacts/report.html"
    assert page_of("https://me:secret@host/sub/", "1", "abc", "report.html") == f"https://host/sub/#/{page}"
    assert page_of("sqlite:///mlflow.db", "1", "abc", "report.html") is None


def test_facts_of_several_devices_have_their_names_and_others_are_numbers() -> None:
    results: dict[str, Row] = {"a": {"version": 1, "x": 2}, "b": {"x": 0.5, "inner": {"y": 3}, "list": [1]}}
    assert pages.by_device(pages.plain, results) == {"a: x": "2", "b: x": "0.5", "b: inner.y": "3"}
    assert pages.by_device(pages.plain, {"a": results["a"]}) == {"x": "2"}


def test_texts_from_elsewhere_stay_in_their_cells() -> None:
    shown = table(["", ""], [("failure", "a | b\nc <script>")])
    assert shown.splitlines()[2] == "| failure | a \\| b c &lt;script> |"
