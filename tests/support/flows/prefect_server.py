"""A Prefect server on loopback, as docs/running.md starts one, its command line and its API."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.docs.documents import blocks
from tests.support.ports import free_port

REPOSITORY = Path(__file__).parents[3]
DOCUMENTED_ADDRESS = "127.0.0.1:4200"
WAIT_SECONDS = 300
ANSWER_SECONDS = 120
STOP_SECONDS = 4
BUSY = 503
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
Found = TypeVar("Found")


class Patient(httpx.HTTPTransport):
    """Asks again while the server is busy, as Prefect's own client does: its database has one writer.

    A busy server says so, or does not answer in time; the latter is asked again only where asking twice changes nothing.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        until = time.monotonic() + WAIT_SECONDS
        only_reads = request.method == "GET" or request.url.path.endswith("/filter")
        while True:
            try:
                answer = super().handle_request(request)
            except httpx.ReadTimeout:
                if not only_reads or time.monotonic() > until:
                    raise
                continue
            if answer.status_code != BUSY or time.monotonic() > until:
                return answer
            answer.close()
            time.sleep(1)


class Server:
    """Commands and requests to one server; `home`: Prefect's own, and the folder of MLflow's database."""

    def __init__(self, home: Path, port: int, environment: Mapping[str, str]) -> None:
        self.address = f"127.0.0.1:{port}"
        self.tracking = f"sqlite:///{home}/mlflow.db"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": f"http://{self.address}/api",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "AUTOTAILOR_DIR": str(REPOSITORY),
            "MLFLOW_TRACKING_URI": self.tracking,
            **environment,
        }
        self.api = httpx.Client(base_url=f"http://{self.address}/api/", timeout=ANSWER_SECONDS, transport=Patient())

    def start(self, script: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """A shell script in the background, in a process group of its own."""
        with open(log or os.devnull, "wb") as output:
            return subprocess.Popen(
                ["bash", "-euc", script],
                cwd=REPOSITORY,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def shell(self, script: str) -> str:
        """Output of a shell script, every command of which succeeds."""
        done = subprocess.run(
            ["bash", "-euc", script], cwd=REPOSITORY, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def documented(self, language: str, words: str, page: str = "running.md") -> str:
        """The one block of a page of docs/ with these words, with this server's address."""
        found = blocks(REPOSITORY / "docs" / page)
        (block,) = [block.text for block in found if block.language == language and words in block.text]
        return block.replace(DOCUMENTED_ADDRESS, self.address)

    def wait_until_ready(self) -> None:
        """Until the API answers."""

        def answers() -> bool:
            try:
                return self.api.get("health").is_success
            except httpx.TransportError:
                return False

        wait_for(answers, "the server's answer")

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment by `flow/name`."""
        found: dict[str, Any] = self.api.get(f"deployments/name/{name}").raise_for_status().json()
        return found

    def ask(self, name: str, parameters: dict[str, Any]) -> httpx.Response:
        """The server's answer to a run of a deployment that is asked for with a form's values."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.api.post(f"deployments/{self.deployment(name)['id']}/create_flow_run", json=body)

    def run_of(self, name: str, parameters: dict[str, Any]) -> str:
        """The id of an accepted flow run."""
        return str(self.ask(name, parameters).raise_for_status().json()["id"])

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        """A flow run as it is."""
        run: dict[str, Any] = self.api.get(f"flow_runs/{flow_run}").raise_for_status().json()
        return run

    def wait_until_ended(self, flow_run: str) -> dict[str, Any]:
        """The flow run in its final state."""

        def ended() -> dict[str, Any] | None:
            run = self.flow_run(flow_run)
            return run if run["state_type"] in ENDED else None

        return wait_for(ended, f"the end of flow run {flow_run}")

    def delete_run(self, flow_run: str) -> None:
        """Delete a flow run, which another request may have done."""
        assert self.api.delete(f"flow_runs/{flow_run}").status_code in (204, 404)

    def found(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        """Objects of one kind (`artifacts`, `flow_runs`, …) that a filter of the API matches."""
        rows: list[dict[str, Any]] = self.api.post(f"{what}/filter", json=wanted).raise_for_status().json()
        return rows


def own_rows(what: str, **wanted: Any) -> list[dict[str, Any]]:
    """Objects that the server of this process' own commands knows, as `Server.found`, all pages."""
    user, _, password = os.environ["PREFECT_API_AUTH_STRING"].partition(":")
    found: list[dict[str, Any]] = []
    with httpx.Client(
        base_url=os.environ["PREFECT_API_URL"] + "/", auth=(user, password), trust_env=False, timeout=120
    ) as api:
        while True:
            body = {**wanted, "offset": len(found)}
            page = api.post(f"{what}/filter", json=body).raise_for_status().json()
            if not page:
                return found
            found += page


def wait_for(look: Callable[[], Found | None], what: str, seconds: float = WAIT_SECONDS) -> Found:
    """The first answer that is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if answer := look():
            return answer
        time.sleep(0.5)
    raise AssertionError(f"waited {seconds} s for {what}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a script and what it started in its own way; by force when it does not."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def started(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port. environment: further settings."""
    server = Server(home, free_port(), environment or {})
    process = server.start(server.documented("bash", "prefect server start"), home / "server.log")
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.api.close()
        stop(process)
