"""Three nights of the small run: the first, one without any change, and one on which much has changed and got worse."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.cli.entry import BAD_INPUT, REGRESSED
from flows.config import RunConfig
from flows.operations.nightly import EVENT
from flows.operations.nightly.night import concluded
from flows.operations.nightly.record import changed_inputs, changed_stages
from tasks.operations.nightly.records import Finding, History, Night
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import own_rows, wait_for
from tests.support.flows.tiny import TINY
from tests.support.nights.made_nights import nights as made_nights
from tests.support.webhook import webhook

NETWORK = "test_resnet-digits"
WORDS = (
    "nightly.operators=4",
    "nightly.rounds=3",
    "nightly.slower=1",
    "nightly.smaller_front=1",
    "nightly.error_points=0",
    "nightly.false_alarms=1e-300",
)
"""Devices share their cores with other tests: latencies of two nights may differ by anything, also by more than twice."""
SURE = "nightly.false_alarms=0.01"
"""Of a night that is to be found worse."""
FASTER = 100.0
NEVER_WRONG = {f"made {number}": 0.0 for number in range(60)}


@dataclass
class Nights:
    """Nights in one output folder."""

    output: Path
    posted: list[dict[str, Any]] = field(default_factory=list)

    def work(self, *overrides: str) -> tuple[int, dict[str, Any]]:
        """Exit code and JSON result of a night."""
        file = self.output.parent / "night.json"
        places = (f"output_dir={self.output}", f"tracking.uri={database_in(self.output.parent)}")
        code = main(["nightly", *TINY, *WORDS, *places, *overrides, "--json", str(file)])
        result: dict[str, Any] = json.loads(file.read_text())
        return code, result

    @property
    def history(self) -> History:
        return History(self.output / "nights")

    def records(self) -> list[Night]:
        return self.history.nights(NETWORK, pytest.fail)

    def client(self) -> MlflowClient:
        uri = database_in(self.output.parent)
        return MlflowClient(uri, uri)


@pytest.fixture(scope="module")
def nights(finished: dict[str, Any], command: Command, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """An output folder with the finished stages of the shared run."""
    output = tmp_path_factory.mktemp("nights") / "out"
    shutil.copytree(command.output / "stages", output / "stages")
    return Nights(output)


@pytest.fixture(scope="module")
def first(nights: Nights) -> tuple[int, dict[str, Any]]:
    return nights.work()


@pytest.fixture(scope="module")
def second(nights: Nights, first: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Nothing has changed."""
    return nights.work()


@pytest.fixture(scope="module")
def third(nights: Nights, second: tuple[int, dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Another setting, after a night in whose record all is better."""
    last = nights.records()[-1]
    times = last.devices["onnxruntime"].times
    operators, subnets = (
        tuple(
            one.model_copy(update={"rounds_ms": tuple(ms / FASTER for ms in one.rounds_ms)})
            for one in getattr(times, name)
        )
        for name in ("operators", "subnets")
    )
    times = times.model_copy(update={"operators": operators, "subnets": subnets})
    device = last.devices["onnxruntime"].model_copy(update={"times": times})
    began = (datetime.fromisoformat(last.began) + timedelta(seconds=1)).isoformat(timespec="microseconds")
    better = {"began": began, "devices": {"onnxruntime": device}, "accuracy_errors": NEVER_WRONG}
    nights.history.add(last.model_copy(update=better))
    file = nights.output.parent / "webhook.txt"
    with webhook(nights.posted) as url:
        file.write_text(f"{url}secret\n")
        yield nights.work("search.budget_count=11", "export.bundle=true", f"nightly.webhook_file={file}", SURE)


def aliases_of(nights: Nights, name: str) -> dict[str, int]:
    """Versions of a registered model, by alias."""
    found: dict[str, Any] = nights.client().get_registered_model(name).aliases
    return {alias: int(version) for alias, version in found.items()}


def test_the_first_night_has_nothing_to_compare_with_and_is_the_champion(
    nights: Nights, first: tuple[int, dict[str, Any]]
) -> None:
    code, result = first
    assert code == 0
    assert result["nightly"]["line"].endswith("in this output folder: nothing to compare with")
    assert [row["cached"] for row in result["stages"]] == [True] * len(result["stages"])
    assert aliases_of(nights, f"autotailor-{NETWORK}") == {"candidate": 1, "champion": 1}


def test_a_night_without_changes_works_no_stage_and_regresses_in_nothing(
    nights: Nights, second: tuple[int, dict[str, Any]]
) -> None:
    code, result = second
    assert code == 0
    assert result["nightly"]["line"].startswith("nothing regressed since ")
    assert (result["nightly"]["changed"], result["nightly"]["stages"]) == ([], [])
    page = (nights.output / "nights.html").read_text()
    assert "No input changed since the night before." in page
    assert "No stage was worked again." in page
    before, now = nights.records()[:2]
    assert before.devices["onnxruntime"].times.operators != now.devices["onnxruntime"].times.operators, "timed anew"


def test_a_night_tells_which_inputs_changed_and_what_was_worked_again_because_of_it(
    nights: Nights, third: tuple[int, dict[str, Any]]
) -> None:
    told = third[1]["nightly"]
    assert set(told["changed"]) == {"setting search.budget_count 10 → 11", "setting export.bundle False → True"}
    worked = {row["stage"]: row["why"] for row in told["stages"] if row["worked"]}
    assert worked == {
        "search/onnxruntime": ["setting budget_count 10 → 11"],
        "export/onnxruntime": ["setting bundle False → True", "search/onnxruntime"],
    }
    page = (nights.output / "nights.html").read_text()
    assert "search.budget_count 10 → 11" in page
    assert f"{len(nights.records())} nights in all" in page


def test_a_regression_is_one_message_in_log_event_and_webhook(
    nights: Nights, third: tuple[int, dict[str, Any]]
) -> None:
    code, result = third
    assert code == REGRESSED
    line = result["nightly"]["line"]
    assert line.startswith("regressed since ")
    assert "accuracy predictor: mean error on held-out SubNets 0.00 points → " in line
    assert "accuracy predictor" in {row["kind"] for row in result["nightly"]["findings"]}
    runs = own_rows("flow_runs", flow_runs={"state": {"name": {"any_": ["Regressed"]}}})
    (run,) = [run for run in runs if run["parameters"]["config"]["output_dir"] == str(nights.output)]
    assert (run["state_type"], run["state"]["message"]) == ("FAILED", line)
    (event,) = wait_for(lambda: events_of(run["id"]), "the event")
    place = event["resource"]["prefect.resource.id"]
    assert place.startswith("autotailor.output-dir.")
    assert place.endswith(f":{nights.output.resolve()}")
    assert event["payload"]["line"] == line
    assert event["payload"]["findings"] == result["nightly"]["findings"]
    (posted,) = nights.posted
    assert posted == {"text": line, **event["payload"]}
    logs = wait_for(lambda: logs_of(run["id"], "Finished in state"), "the logs")
    assert [row["message"] for row in logs if row["message"].startswith("regressed")] == [line]
    assert not any("/secret" in row["message"] for row in logs)


def logs_of(flow_run: str, last: str) -> list[dict[str, Any]]:
    """The logs of a flow run, once a message that begins with `last` is there."""
    rows = own_rows("logs", logs={"flow_run_id": {"any_": [flow_run]}})
    return rows if any(row["message"].startswith(last) for row in rows) else []


def events_of(flow_run: str) -> list[dict[str, Any]]:
    """Events of a regression that the server of this process' own commands has."""
    user, _, password = os.environ["PREFECT_API_AUTH_STRING"].partition(":")
    wanted = {"filter": {"event": {"name": [EVENT]}, "related": {"id": [f"prefect.flow-run.{flow_run}"]}}}
    address = f"{os.environ['PREFECT_API_URL']}/events/filter"
    answer = httpx.post(address, json=wanted, auth=(user, password), trust_env=False, timeout=120)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["events"]
    return found


def test_what_regressed_is_the_candidate_and_no_champion(nights: Nights, third: tuple[int, dict[str, Any]]) -> None:
    assert third[1]["nightly"]["promoted"] is False
    assert aliases_of(nights, f"autotailor-{NETWORK}-onnxruntime") == {"candidate": 1}
    assert nights.records()[-1].promoted is False


def test_a_device_with_another_runtime_is_what_its_stages_were_worked_again_for(
    nights: Nights, second: tuple[int, dict[str, Any]]
) -> None:
    before = nights.records()[1]
    device = before.devices["onnxruntime"]
    facts = {**device.facts, "version": "99.0"}
    device = device.model_copy(update={"fingerprint": "another", "facts": facts})
    moved = ("profile/onnxruntime", "latency/onnxruntime", "search/onnxruntime")
    stages = tuple(
        one.model_copy(update={"key": "another", "worked": True}) if one.stage in moved else one
        for one in before.stages
    )
    now = before.model_copy(update={"devices": {"onnxruntime": device}, "stages": stages})
    was = before.devices["onnxruntime"].facts["version"]
    assert changed_inputs(before, now) == [f"onnxruntime: version {was} → 99.0"]
    assert [tuple(one) for one in changed_stages(before, now)] == [
        ("profile/onnxruntime", True, ("device onnxruntime",)),
        ("latency/onnxruntime", True, ("device onnxruntime", "profile/onnxruntime")),
        ("search/onnxruntime", True, ("latency/onnxruntime",)),
    ]


def test_records_of_earlier_nights_stay_as_they_were(nights: Nights, third: tuple[int, dict[str, Any]]) -> None:
    records = nights.records()
    assert [one.compared_with for one in records] == [None, records[0].began, records[0].began, records[2].began]
    assert sorted(path.suffix for path in nights.history.folder.iterdir()) == [".json"] * 4


def test_of_workers_at_one_night_the_second_has_what_the_first_found(tmp_path: Path) -> None:
    config, history = RunConfig(), History(tmp_path)
    earlier, own, other = (one.model_copy(update={"network": config.name}) for one in made_nights(3, seed=0))
    history.add(earlier)
    known = history.names()
    assert concluded(config, "r", history, known) is None, "that was another night"
    history.add(other.model_copy(update={"run": "another"}))
    assert concluded(config, "r", history, known) is None, "that is a night of other settings"
    finding = Finding(
        device="ncnn", kind="operator", what="Conv", name="o1", before=1.0, now=2.0, unit="ms", p_value=1e-9
    )
    update = {"compared_with": earlier.began, "findings": (finding,)}
    record = history.add(own.model_copy(update=update))
    found = concluded(config, "r", history, known)
    assert found is not None
    assert found["regressed"]
    assert found["nightly"]["record"] == str(record)
    assert found["nightly"]["line"].startswith("regressed since ")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("nightly.slowr=0.1", "option 'nightly.slowr': is unknown"),
        ("nightly.rounds=1", "nightly.rounds: got 1; allowed: 3 or more"),
        ("nightly.promote=sometimes", "allowed: 'unless regressed', 'always' or 'never'"),
        ("nightly.webhook_file=/nowhere", "nightly.webhook_file '/nowhere': cannot be read"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_worked(
    override: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = (f"output_dir={tmp_path / 'out'}", f"tracking.uri={database_in(tmp_path)}")
    assert main(["nightly", *TINY, *places, override]) == BAD_INPUT
    (told,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("autotailor: ")]
    assert line in told
    assert not (tmp_path / "out" / "stages").exists()
