"""Deployments on a real Prefect server, run by a real process worker."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

import tailor_ir
from profiling_agents.backends import BACKENDS
from tasks.operations.nightly.records import History
from tests.support.deploy.deployments import current, releases, write_bundle
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import WAIT_SECONDS, Found, Server, stop, wait_for
from tests.support.ir.networks import small_net
from tests.support.report.browser import BROWSER, DRIVER, opened

HIGHEST_FORM_PX = 2200
CLICKS = 5


class WorkedRuns(NamedTuple):
    """Flow runs in their final states, of an adaptation, a deployment, a mistake and a night. folder: what the first two left.

    before: result files of the stages before the night, with their times of change.
    """

    adapted: dict[str, Any]
    deployed: dict[str, Any]
    mistaken: dict[str, Any]
    night: dict[str, Any]
    folder: Path
    before: dict[Path, int]


def results(output: Path) -> dict[Path, int]:
    """Result files of stages with their times of change, but for those that time devices every night."""
    files = (file for file in output.glob("stages/**/result.json") if not file.is_relative_to(output / "stages/watch"))
    return {file: file.stat().st_mtime_ns for file in files}


def night_form(night: Command) -> dict[str, Any]:
    """The form of the nights that a command works."""
    overrides = [*night.words, f"tracking.uri={database_in(night.output.parent)}"]
    (supernet,) = (word.removeprefix("supernet=") for word in night.words if word.startswith("supernet="))
    return {"supernet": supernet, "output_dir": str(night.output), "overrides": overrides}


@pytest.fixture(scope="module")
def worked(
    server: Server,
    command: Command,
    adapted_night: tuple[dict[str, Any], Command],
    tmp_path_factory: pytest.TempPathFactory,
) -> WorkedRuns:
    """What one worker has worked, which is started as the documents say."""
    folder = tmp_path_factory.mktemp("worked")
    supernet = Path(command("compile")["stages"][0]["folder"]) / "supernet"
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {})
    write_bundle(net, folder / "out" / "exports" / "onnxruntime" / "bundle", largest=False)
    settings = {"folder": str(folder / "there"), "install": "unpack", "python": sys.executable, "start": False}
    retarget = {"supernet": str(supernet), "output_dir": str(folder / "adapted"), "until": "enumerate"}
    deploy = {"device": "onnxruntime", "output_dir": str(folder / "out"), "settings": {"deploy": settings}}
    mistake = {"overrides": ["finetune.epoch=3"]}
    forms: dict[str, dict[str, Any]] = {
        "autotailor-retarget/retarget": retarget,
        "autotailor-deploy/deploy": deploy,
        "autotailor/run": mistake,
    }
    runs = [server.run_of(name, form) for name, form in forms.items()]
    runs.append(server.run_of("autotailor-nightly-adapt/nightly-adapt", night_form(adapted_night[1])))
    before = results(adapted_night[1].output)
    worker = server.start(server.documented("bash", "prefect worker start"))
    try:
        adapted, deployed, mistaken, night = map(server.wait_until_ended, runs)
        return WorkedRuns(adapted, deployed, mistaken, night, folder, before)
    finally:
        stop(worker)


def test_the_parameters_are_a_short_typed_form_with_every_setting_behind_it(server: Server) -> None:
    properties = server.deployment("autotailor/run")["parameter_openapi_schema"]["properties"]
    shown = sorted(properties, key=lambda name: properties[name]["position"])
    assert shown == [
        "preset", "model", "data", "data_path", "devices", "budgets_ms", "overrides", "output_dir", "until", "settings",
    ]  # fmt: skip
    assert all(properties[name]["description"] for name in shown)
    assert properties["until"]["enum"][-1] == "report"
    settings, _ = properties["settings"]["anyOf"]
    assert set(settings["properties"]) >= {"model", "data", "devices", "finetune", "search"}
    device = settings["properties"]["devices"]["anyOf"][0]["items"]["properties"]
    assert device["threads"]["minimum"] == 1
    assert device["backend"]["enum"] == sorted(BACKENDS)


def test_the_documented_pool_runs_one_at_a_time(server: Server) -> None:
    pool = server.api.get("work_pools/autotailor").raise_for_status().json()
    assert (pool["type"], pool["concurrency_limit"]) == ("process", 1)


def test_the_nightly_deployment_has_its_schedule(server: Server) -> None:
    (schedule,) = server.deployment("autotailor-nightly/nightly")["schedules"]
    assert schedule["active"]
    assert schedule["schedule"]["cron"] == "0 2 * * *"
    assert server.deployment("autotailor-nightly/nightly")["parameters"] == {"preset": "nightly"}


def test_nights_of_a_given_supernet_have_their_own_hour(server: Server) -> None:
    deployment = server.deployment("autotailor-nightly-adapt/nightly-adapt")
    assert [schedule["schedule"]["cron"] for schedule in deployment["schedules"]] == ["0 3 * * *"]
    assert deployment["parameters"] == {"supernet": "outputs/supernet", "output_dir": "outputs/adapted"}


def test_the_server_plans_the_nights_of_a_schedule(server: Server) -> None:
    nightly = {"id": {"any_": [server.deployment("autotailor-nightly/nightly")["id"]]}}
    ahead = {"state": {"type": {"any_": ["SCHEDULED"]}}}  # the night may come while tests run
    planned = wait_for(lambda: server.found("flow_runs", deployments=nightly, flow_runs=ahead), "scheduled runs")
    assert all("T02:00:00" in run["next_scheduled_start_time"] for run in planned)


def test_a_worker_runs_a_deployment_and_the_ui_gets_artifacts(server: Server, worked: WorkedRuns) -> None:
    run = worked.adapted
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    assert re.fullmatch(r"[a-z]+-[a-z]+: .*/supernet", run["name"]), "the name that was printed, and the form's words"
    assert list((worked.folder / "adapted" / "stages" / "enumerate").glob("*/operators.json"))
    artifacts = server.found("artifacts", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    assert any(artifact["key"].startswith("stage-enumerate") for artifact in artifacts)


def test_a_worker_puts_a_bundle_onto_a_device(worked: WorkedRuns) -> None:
    assert worked.deployed["state_type"] == "COMPLETED", worked.deployed["state"]["message"]
    assert releases(worked.folder / "there") == {current(worked.folder / "there")}


def test_a_worker_works_a_night_of_a_given_supernet_and_no_stage_again(
    worked: WorkedRuns, adapted_night: tuple[dict[str, Any], Command]
) -> None:
    assert worked.night["state_type"] == "COMPLETED", worked.night["state"]["message"]
    output = adapted_night[1].output
    _, first, second = History(output / "nights").nights("test_resnet-digits", pytest.fail)
    assert second.compared_with == first.began
    assert [stage.stage for stage in second.stages if stage.worked] == []
    assert results(output) == worked.before
    page = (output / "nights.html").read_text()
    assert "No input changed since the night before." in page
    assert "3 nights in all" in page


def asked(line: str) -> tuple[str, dict[str, Any]]:
    """The deployment and the parameters of a line that asks for a run."""
    _, _, _, name, *words = shlex.split(line)
    parameters: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        key, _, given = value.partition("=")
        parameters |= json.loads(value) if option == "--params" else {key: given}
    return name, parameters


def test_the_documented_command_lines_ask_for_runs(server: Server) -> None:
    lines = server.documented("bash", "prefect deployment run").splitlines()
    wanted = {
        "deployments": {"name": {"any_": ["run", "retarget", "stream", "deploy"]}},
        "sort": "EXPECTED_START_TIME_ASC",
    }
    before = {run["id"] for run in server.found("flow_runs", **wanted)}
    server.shell("\n".join(lines))
    runs = [run for run in server.found("flow_runs", **wanted) if run["id"] not in before]
    for run in runs:  # before a worker of another test finds it
        server.delete_run(run["id"])
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    expected = [(server.deployment(name)["id"], parameters) for name, parameters in map(asked, lines)]
    assert [(run["deployment_id"], run["parameters"]) for run in runs] == expected


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"settings": {"finetune": {"epochs": 0}}}, "epochs"),
        ({"preset": "nigtly"}, "nigtly"),
        ({"devices": ["nccn"]}, "nccn"),
        ({"budgets_ms": [0]}, "budgets_ms"),
        ({"overrides": ["finetune.epochs"]}, "overrides"),
    ],
)
def test_a_form_with_a_wrong_value_is_refused_before_it_is_accepted(
    server: Server, values: dict[str, Any], word: str
) -> None:
    answer = server.ask("autotailor/run", values)
    assert answer.status_code in (409, 422)
    assert word in answer.text


def test_overrides_that_mean_nothing_end_a_run_at_once_with_the_line(worked: WorkedRuns) -> None:
    run = worked.mistaken
    assert run["state_type"] == "FAILED"
    assert "option 'finetune.epoch': is unknown" in run["state"]["message"]
    assert "did you mean 'finetune.epochs'?" in run["state"]["message"]


@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no chromium with chromedriver")
@pytest.mark.parametrize("ui", ["", "v2/"])
def test_the_form_is_a_page_or_two_high_and_sends_what_was_entered(server: Server, ui: str, tmp_path: Path) -> None:
    deployment = server.deployment("autotailor/run")["id"]
    with opened(tmp_path / "profile") as driver:
        driver.get(f"http://{server.address}/{ui}deployments/deployment/{deployment}/run")
        submit = wait_for(lambda: driver.find_elements(By.XPATH, "//button[normalize-space()='Submit']"), "the form")
        section = "//button[normalize-space()='Settings']"
        settings = wait_for(lambda: driver.find_elements(By.XPATH, section), "the settings of the form")
        height = "return Math.max(...[...document.querySelectorAll('*')].map(element => element.scrollHeight))"
        assert driver.execute_script(height) < HIGHEST_FORM_PX
        settings[-1].click()
        wanted = {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": ["SCHEDULED"]}}}
        runs = submitted(driver, submit[-1], lambda: server.found("flow_runs", flow_runs=wanted))
    for run in runs:  # several where a click was taken late
        server.delete_run(run["id"])
    run = runs[0]
    assert set(run["parameters"].pop("settings").values()) == {None}
    assert [value for value in run["parameters"].values() if value] == ["none", "default", "report"]


def submitted(driver: WebDriver, button: WebElement, look: Callable[[], Found | None]) -> Found:
    """What a click makes. On a busy machine the form may take no click yet: then it is still there, and is clicked again."""
    for _ in range(CLICKS):
        driver.execute_script("if (arguments[0].isConnected) arguments[0].click()", button)
        with suppress(AssertionError):
            return wait_for(look, "the run", WAIT_SECONDS / CLICKS)
    raise AssertionError(f"no run after {CLICKS} clicks in {WAIT_SECONDS} s")


def test_the_documented_process_goes_on_with_what_was_deployed(server: Server, tmp_path: Path) -> None:
    nightly = server.deployment("autotailor-nightly/nightly")
    log = tmp_path / "log"
    process = server.start(f"python -c {shlex.quote(server.documented('python', 'serve('))}", log)
    try:
        wait_for(lambda: process.poll() is not None or "are being served" in log.read_text(), "the served deployments")
    finally:
        stop(process)
        server.shell("prefect --no-prompt deploy --name run --name retarget --name stream --name deploy --name nightly")
    assert "are being served" in log.read_text(), log.read_text()
    served = server.deployment("autotailor-nightly/nightly")
    assert served["id"] == nightly["id"]
    assert [schedule["slug"] for schedule in served["schedules"]] == ["nightly"]
