"""What the registry's service takes and refuses, asked with bare HTTP against the real command."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from adaptive_runtime.bundle.bundles import BUNDLE_FILE
from adaptive_runtime.fleet import Enrolled, RequestSums, Telemetry
from flows.cli import main
from profiling_agents.network.guard import Guard, GuardRules
from tests.support.fleet.served_registry import ASKED, ServedRegistry, bearer

TOLD = Telemetry(sequence=1, bundle=None, sums=RequestSums(requests=10, log_latency=20, in_time=9, confidence=8))
ROUTES = {"/v1/enrolments": {"POST"}, "/v1/telemetry": {"POST"}, f"/v1/files/{'0' * 64}": {"GET", "HEAD"}}
ABSENT = (
    "/",
    "/v1",
    "/docs",
    "/openapi.json",
    "/v1/devices",
    "/v1/telemetry/",
    "//v1/telemetry",
    "/v1/files/..%2ffleet.db",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def line_of(answer: httpx.Response) -> str:
    line = answer.json()["error"]
    assert "\n" not in line
    return str(line)


@pytest.fixture(scope="module")
def device(service: ServedRegistry) -> Enrolled:
    return service.enrolled()


@pytest.mark.parametrize("path", [*ROUTES, *ABSENT])
def test_no_route_and_no_method_of_a_registry_answers_without_a_token(service: ServedRegistry, path: str) -> None:
    with httpx.Client(timeout=120) as client:
        for method in METHODS:
            for headers in ({}, bearer("wrong" * 8), {"Authorization": "Basic x"}):
                answer = client.request(method, f"{service.url}{path}", headers=headers)
                assert answer.status_code == 401, (method, path)


@pytest.mark.parametrize("path", [*ROUTES, *ABSENT])
def test_a_registry_has_no_other_routes_and_verbs(service: ServedRegistry, device: Enrolled, path: str) -> None:
    with httpx.Client(timeout=120, headers=bearer(device.token)) as client:
        for method in set(METHODS) - ROUTES.get(path, set()):
            assert client.request(method, f"{service.url}{path}").status_code in (404, 405), (method, path)


def test_foreign_hosts_and_pages_reach_no_registry(service: ServedRegistry, device: Enrolled) -> None:
    for headers in ({"Host": "rebound.example"}, {"Origin": "http://page.example"}):
        answer = httpx.post(f"{service.url}/v1/telemetry", headers=bearer(device.token) | headers, timeout=120)
        assert answer.status_code == 403


def test_a_token_counts_once_and_for_its_own_route(service: ServedRegistry, device: Enrolled) -> None:
    token = service.token()
    assert service.post("/v1/telemetry", token, TOLD.model_dump_json()).status_code == 401
    assert service.post("/v1/enrolments", token, ASKED.model_dump_json()).status_code == 200
    assert service.post("/v1/enrolments", token, ASKED.model_dump_json()).status_code == 401
    assert service.post("/v1/enrolments", device.token, ASKED.model_dump_json()).status_code == 401
    assert token not in service.log.read_text()


def test_a_device_tells_and_hears_what_it_should_run(service: ServedRegistry, device: Enrolled) -> None:
    answer = service.post("/v1/telemetry", device.token, TOLD.model_dump_json())
    assert answer.json() == {"bundle": None, "signature": None, "tell_every_s": 3600.0}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\x80\x04N.", "Invalid JSON"),
        (TOLD.model_dump_json().replace('"in_time":9.0', '"in_time":11.0'), "more than requests"),
        (TOLD.model_dump_json().replace("20.0", "1e9"), "no latencies are so far from a millisecond"),
        (TOLD.model_dump_json().replace("20.0", "NaN"), "Invalid JSON|finite"),
        (TOLD.model_dump_json().replace('"requests":10.0', '"requests":-1'), "greater than or equal to 0"),
        (TOLD.model_dump_json().replace("{", '{"_target_":"os.system",', 1), "Extra inputs"),
    ],
)
def test_telemetry_that_cannot_be_is_one_line(
    service: ServedRegistry, device: Enrolled, content: str | bytes, line: str
) -> None:
    answer = service.post("/v1/telemetry", device.token, content)
    assert answer.status_code == 422
    assert re.search(line, line_of(answer))


def test_a_database_that_is_away_is_one_line_and_says_when_to_come_again(
    service: ServedRegistry, device: Enrolled, capsys: pytest.CaptureFixture[str]
) -> None:
    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(service.log.parent / "fleet.db")) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("devices", "away")
    try:
        answers = [
            service.post("/v1/telemetry", device.token, TOLD.model_dump_json()),
            service.post("/v1/enrolments", "0" * 64, ASKED.model_dump_json()),
        ]
        assert main(["fleet", "devices", f"database=sqlite:///{service.log.parent}/fleet.db"]) == 2
    finally:
        rename("away", "devices")
    told = capsys.readouterr().err
    assert "failed (no such table: devices); try again when it is there" in told
    assert told.count("\n") == 1
    for answer in answers:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert line_of(answer) == "the registry's database is away (OperationalError); try again in 5 s"
    assert service.post("/v1/telemetry", device.token, TOLD.model_dump_json()).status_code == 200


def test_a_token_that_is_being_looked_up_keeps_no_other_request_waiting() -> None:
    async def statuses() -> list[int]:
        others = asyncio.Event()

        async def check(token: str) -> bool:
            if token == "first":
                await asyncio.wait_for(others.wait(), 60)
            else:
                others.set()
            return True

        guard = Guard(Starlette(), token=check, hosts=frozenset({"here"}), any_address=False, rules=GuardRules())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://here") as client:
            answers = await asyncio.gather(*(client.get("/", headers=bearer(one)) for one in ("first", "second")))
        return [answer.status_code for answer in answers]

    assert asyncio.run(statuses()) == [404, 404]


def test_a_body_past_the_cap_is_refused_by_a_registry(service: ServedRegistry, device: Enrolled) -> None:
    assert service.post("/v1/telemetry", device.token, b" " * (1 << 21)).status_code == 413


def test_devices_alone_fetch_files_and_by_digests_alone(
    service: ServedRegistry, device: Enrolled, plain_bundle: Path
) -> None:
    def fetched(digest: str, token: str) -> httpx.Response:
        return httpx.get(f"{service.url}/v1/files/{digest}", headers=bearer(token), timeout=120)

    assert fetched(service.bundle, device.token).content == (plain_bundle / BUNDLE_FILE).read_bytes()
    assert fetched(service.bundle, service.token()).status_code == 401
    assert fetched("f" * 64, device.token).status_code == 404
    assert fetched("..%2f..%2ffleet.db", device.token).status_code == 404


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serve", "host=0.0.0.0"], "not a loopback address; it takes --tls-cert, --tls-key"),
        (["enrol"], "tokens go into a file; write to=FILE"),
        (["enrol", "to=."], "cannot be written"),
        (["halt", "first"], "'first' is no number of a roll-out"),
        (["halt", "7"], "there is no roll-out 7"),
        (["rollout", "abc"], "'abc' is no bundle here"),
        (["rollouts", "count=2"], "is not one of 'fleet rollouts'"),
        (["devises"], "'devises' is unknown; allowed: serve"),
        (["remove"], "got 0 names; write autotailor fleet remove DEVICE"),
        (
            ["profile", "operators"],
            "devices are measured through their relay; write relay=https://HOST:PORT token_file=F",
        ),
        (["profile", "operators", "relay=ftp://x"], "relay"),
        (["profile", "operators", "profile.spot_operators=2"], "cannot tell an outlier from chance"),
        (["relay", "host=0.0.0.0"], "not a loopback address; it takes --tls-cert, --tls-key and a token"),
        (["devices", "database=fleet.db"], "is no address"),
    ],
)
def test_a_command_that_cannot_be_done_is_one_line(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", *words]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_the_commands_of_a_fleet_keep_tokens_in_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain_bundle: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", "enrol", "count=2", "to=tokens.txt"]) == 0
    tokens = (tmp_path / "tokens.txt").read_text().split()
    assert (tmp_path / "tokens.txt").stat().st_mode & 0o777 == 0o600
    assert len(set(tokens)) == 2
    assert main(["fleet", "add", str(plain_bundle), "--json", "added.json"]) == 0
    assert main(["fleet", "devices"]) == 0
    told = "".join(capsys.readouterr())
    assert not any(token in told for token in tokens)


@pytest.mark.long
def test_the_defaults_in_conf_are_those_of_the_registry() -> None:
    from flows.cli.fleet import FleetConfig
    from flows.config.compose import compose_config
    from flows.config.validate import validate

    composed = compose_config("fleet", [])
    assert validate(FleetConfig, composed) == FleetConfig()
    assert set(composed) == set(FleetConfig.model_fields)
    assert set(composed["rollout"]) == set(type(FleetConfig().rollout).model_fields)
    assert set(composed["profile"]) == set(type(FleetConfig().profile).model_fields)
    without = validate(FleetConfig, compose_config("fleet", ["rollout.limits.confidence=null"]))
    assert "confidence" not in without.rollout.limits


@pytest.mark.long
def test_what_serves_a_fleet_loads_no_torch(tmp_path: Path) -> None:
    words = ["fleet", "devices", f"database=sqlite:///{tmp_path}/fleet.db"]
    service = "tasks.operations.fleet.service"
    code = f"import sys; from flows.cli import main; main({words!r}); import {service}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "onnx", "onnxruntime", "tailor_ir", "prefect"} & set(done.stdout.split())
