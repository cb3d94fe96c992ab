"""Deployments on a real Prefect server, run by a real process worker."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from profiling_agents.backends import BACKENDS
from tests.flows.conftest import Command

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 90


class Server:
    """A Prefect server on loopback, its command line and its API."""

    def __init__(self, home: Path, port: int) -> None:
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "AUTOTAILOR_DIR": str(REPOSITORY),
        }
        self.port = port
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", timeout=30)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A `prefect` command in the background."""
        command = [sys.executable, "-m", "prefect", *words]
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )

    def prefect(self, *words: str) -> str:
        """Output of a `prefect` command that succeeds."""
        command = [sys.executable, "-m", "prefect", "--no-prompt", *words]
        done = subprocess.run(command, cwd=REPOSITORY, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait_until_ready(self) -> None:
        """Until the API answers."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                if self.api.get("health").is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(f"no server after {START_SECONDS} s")

    def wait_until_ended(self, flow_run: str) -> dict[str, Any]:
        """The flow run in its final state."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            run: dict[str, Any] = self.api.get(f"flow_runs/{flow_run}").raise_for_status().json()
            if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return run
            time.sleep(1)
        raise AssertionError(f"flow run {flow_run} did not end")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the deployments of prefect.yaml."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(tmp_path_factory.mktemp("prefect"), port)
    process = server.start("server", "start", "--host", "127.0.0.1", "--port", str(port))
    try:
        server.wait_until_ready()
        server.prefect("work-pool", "create", "autotailor", "--type", "process")
        server.prefect("deploy", "--all")
        yield server
    finally:
        server.api.close()
        _stop(process)


def _deployment(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.api.get(f"deployments/name/{name}").raise_for_status().json()
    return found


def test_the_parameters_are_a_typed_form(server: Server) -> None:
    schema = _deployment(server, "autotailor/on-demand")["parameter_openapi_schema"]
    definitions = schema["definitions"]
    assert set(schema["properties"]) == {"config", "until", "question"}
    assert set(definitions["RunConfig"]["properties"]) >= {"model", "data", "device", "finetune", "search"}
    assert definitions["DeviceProfile"]["properties"]["threads"]["minimum"] == 1
    assert definitions["DeviceProfile"]["properties"]["backend"]["enum"] == sorted(BACKENDS)


def test_the_nightly_deployment_has_its_schedule(server: Server) -> None:
    (schedule,) = _deployment(server, "autotailor/nightly")["schedules"]
    assert schedule["active"]
    assert schedule["schedule"]["cron"] == "0 2 * * *"


def test_a_worker_runs_a_deployment_and_the_ui_gets_artifacts(server: Server, command: Command, tmp_path: Path) -> None:
    supernet = Path(command("compile")["stages"][0]["folder"]) / "supernet"
    config = {"supernet": str(supernet), "output_dir": str(tmp_path / "out")}
    deployment = _deployment(server, "autotailor-adapt/on-demand")["id"]
    parameters = {"config": config, "until": "enumerate"}
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    flow_run = server.api.post(f"deployments/{deployment}/create_flow_run", json=body).raise_for_status().json()["id"]
    worker = server.start("worker", "start", "--pool", "autotailor", "--run-once")
    try:
        run = server.wait_until_ended(flow_run)
    finally:
        _stop(worker)
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    assert list((tmp_path / "out" / "stages" / "enumerate").glob("*/operators.json"))
    wanted = {"artifacts": {"flow_run_id": {"any_": [flow_run]}}}
    artifacts = server.api.post("artifacts/filter", json=wanted).raise_for_status().json()
    assert any(artifact["key"].startswith("stage-enumerate") for artifact in artifacts)


def test_a_form_with_a_wrong_value_is_refused_before_it_runs(server: Server) -> None:
    deployment = _deployment(server, "autotailor/on-demand")["id"]
    body = {"parameters": {"config": {"finetune": {"epochs": 0}}}, "state": {"type": "SCHEDULED"}}
    answer = server.api.post(f"deployments/{deployment}/create_flow_run", json=body)
    assert answer.status_code in (409, 422)
    assert "epochs" in answer.text or "minimum" in answer.text
