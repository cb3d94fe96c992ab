"""Several Prefect servers on one PostgreSQL and one Redis: whether they are one server for their workers, and one is killed.

    python -m benchmarks.several_servers [--runs 4] [--events 20] [--markdown] [--keep FOLDER]

Two machines, A and B, are started as docs/workers.md says, by its own lines: each is a server without services, and the
services. PostgreSQL and Redis are Debian's, Redis as in deploy/compose.yaml, with a password. One worker talks to A, one to B,
and one to the first of both that answers, through a balancer. Then all processes of A, its worker's included, are killed (-9).

Asked before: are flow runs of A's API worked by B's worker; does a limit on a device's tag hold for workers of both; does an
automation that was made at B act once for each event of A; does a schedule make each flow run once; does B's worker end the
infrastructure of flow runs that A was told to cancel, when nobody else did. And after: is there a next flow run, does the
automation go on, does the flow run behind the balancer end, and when is the device's turn of the killed worker given on.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
from prefect import flow, task
from prefect.workers.base import BaseJobConfiguration, BaseVariables, BaseWorker, BaseWorkerResult

from benchmarks.tables import show
from tests.support.docs.documents import ROOT, blocks
from tests.support.flows.prefect_server import wait_for
from tests.support.ports import free_port
from tests.support.postgres import postgres, programs
from tests.support.redis_server import PROGRAM, redis_server

DEVICE, EVENT = "device:board", "several-servers.told"
PAGE = "workers.md"
SETTINGS = ("export PGPASSFILE", "PREFECT_API_DATABASE_CONNECTION_URL", "prefect_redis.messaging")
"""What the blocks of the page have in which the settings of a server are."""
MEASURED_S, HELD_S, THROUGH_S = 2.0, 600.0, 20.0
SETTLE_S = 5.0
"""In which services hear of a new automation, and in which a second action of one event would show."""
EVENTS_AFTER = 5
CANCELLING_S = 5.0
"""Until a flow run that is to be cancelled counts as one that nobody ends. Prefect's own: 300."""
LIMIT_S, ENDED_S = 300.0, 60.0
LATER = timedelta(hours=1)
"""When flow runs are scheduled that no worker should begin."""


@task(tags=[DEVICE])
def measure(seconds: float, file: str) -> None:
    """Have a device's turn for a while; its beginning and end are in a file."""
    began = time.time()
    Path(file).write_text(json.dumps([began]))
    time.sleep(seconds)
    Path(file).write_text(json.dumps([began, time.time()]))


@flow
def measures(seconds: float, file: str) -> None:
    """A flow run that asks the device."""
    measure(seconds, file)


@flow
def waits(seconds: float = 0.0) -> None:
    """A flow run that takes a while."""
    time.sleep(seconds)


class EndingWorker(BaseWorker[BaseJobConfiguration, BaseVariables, BaseWorkerResult]):
    """A worker that can end infrastructure, as those of containers can: here it is the name of a file, which it writes."""

    type = "several-servers"
    job_configuration = BaseJobConfiguration

    async def run(self, flow_run: Any, configuration: Any, task_status: Any = None) -> BaseWorkerResult:
        raise AssertionError("nothing is scheduled for it")

    async def kill_infrastructure(self, infrastructure_pid: str, configuration: Any, grace_seconds: int = 30) -> None:
        Path(infrastructure_pid).write_text(f"{time.time()}\n")


def main() -> None:
    """Print what was found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=4, help="flow runs, and measurements with the device's limit")
    arguments.add_argument("--events", type=int, default=20, help="events before the kill")
    arguments.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments.add_argument("--keep", type=Path, help="a folder for the logs of all processes")
    options = arguments.parse_args()
    if line := _missing():
        sys.exit(line)
    folder = Path(tempfile.mkdtemp(prefix="several-servers-"))
    try:
        with ExitStack() as stack:
            installed = Servers(folder, stack)
            rows = list[tuple[str, str]]()
            for row in chain(_before(installed, options.runs, options.events), _after(installed)):
                print(": ".join(row), file=sys.stderr, flush=True)
                rows.append(row)
        show(("asked", "found"), rows, markdown=options.markdown)
    finally:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, options.keep)
        shutil.rmtree(folder)


def _missing() -> str | None:
    """One line on what is not installed."""
    if programs() is None:
        return "there is no PostgreSQL server; apt-get install postgresql"
    if PROGRAM is None:
        return "there is no Redis server; apt-get install redis-server"
    if find_spec("prefect_redis") is None:
        return "needs the package prefect-redis; in the clone: pip install -e '.[redis]'"
    return None


class Servers:
    """Two machines with a Prefect server each, on one database and one Redis, and what talks to them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._secrets = folder, folder / "secrets"
        self._secrets.mkdir(mode=0o700)
        found = programs()
        assert found is not None
        self.database = stack.enter_context(postgres(found))
        self.database.database("prefect")
        self._password = f"admin:{uuid4().hex}"
        (self._secrets / "pgpass").write_bytes(self.database.passwords.read_bytes())
        (self._secrets / "pgpass").chmod(0o600)
        (self._secrets / "prefect").write_text(self._password)
        self._redis_port = stack.enter_context(redis_server(self._secrets))
        self._groups: dict[str, list[subprocess.Popen[bytes]]] = {}
        stack.callback(self._stop)
        self.settings = "\n".join(_exports())
        upgrade = self._shell("upgrade", f"{self.settings}\nprefect server database upgrade -y")
        assert upgrade.wait(LIMIT_S) == 0, "the database is not made"
        self.ports = {name: free_port() for name in "AB"}
        self.clients = {name: stack.enter_context(self._client(port)) for name, port in self.ports.items()}
        for name, client in self.clients.items():  # one after the other, as the page says
            for command in _commands():
                self._shell(name, f"{self.settings}\nexec {self._here(command, self.ports[name])}")
            wait_for(partial(_is_ready, client), f"server {name}", LIMIT_S)
        self.ports["AB"] = stack.enter_context(balancer([self.ports["A"], self.ports["B"]]))

    def post(self, name: str, path: str, /, **body: Any) -> Any:
        """A server's answer to a request, as JSON; None: it has no content."""
        answer = self.clients[name].post(path, json=body.get("rows", body))
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def add_worker(self, name: str, command: str = "prefect worker start --pool {} --type process --limit 3") -> None:
        """A worker of the pool of this name, which talks to the server of this name. command: its command line."""
        url = f"http://127.0.0.1:{self.ports[name]}/api"
        self._shell(name, f"exec {command.format(name)}", PREFECT_API_URL=url)

    def limit(self, name: str, tag: str) -> None:
        """One task with a tag at a time, as a server is told."""
        url = f"http://127.0.0.1:{self.ports[name]}/api"
        script = f"prefect concurrency-limit create {tag} 1"
        assert self._shell("limit", script, PREFECT_API_URL=url).wait(LIMIT_S) == 0

    def deploy(self, name: str, pool: str, flow_name: str, **more: Any) -> str:
        """A deployment in a pool, made at a server; its id."""
        known = self.post(name, "flows/", name=flow_name)
        steps = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
        made = self.post(
            name, "deployments/", name=f"{pool}-{uuid4().hex[:8]}", flow_id=known["id"], work_pool_name=pool,
            entrypoint=f"benchmarks/several_servers.py:{flow_name}", pull_steps=steps, enforce_parameter_schema=False,
            **more,
        )  # fmt: skip
        return str(made["id"])

    def run(self, name: str, deployment: str, **parameters: Any) -> str:
        """A flow run that is asked of a server; its id."""
        path = f"deployments/{deployment}/create_flow_run"
        return str(self.post(name, path, parameters=parameters, state={"type": "SCHEDULED"})["id"])

    def state(self, name: str, flow_run: str) -> str:
        """The type of a flow run's state, as a server tells it."""
        answer = self.clients[name].get(f"flow_runs/{flow_run}").raise_for_status()
        return str(answer.json()["state_type"])

    def is_completed(self, name: str, flow_runs: Sequence[str]) -> bool:
        """Whether all of them are. AssertionError: one has ended otherwise."""
        states = [self.state(name, one) for one in flow_runs]
        assert not {"FAILED", "CRASHED", "CANCELLED"} & set(states), states
        return set(states) == {"COMPLETED"}

    def kill(self, name: str) -> None:
        """kill -9 all processes of a machine, and those that they have started."""
        groups = [one for one in self._groups.pop(name) if one.poll() is None]
        below = [child for one in groups for child in psutil.Process(one.pid).children(recursive=True)]
        for one in groups:
            os.killpg(one.pid, signal.SIGKILL)
        for child in below:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        for one in groups:
            one.wait()

    def _client(self, port: int) -> httpx.Client:
        user, _, password = self._password.partition(":")
        again = httpx.HTTPTransport(retries=3)
        url = f"http://127.0.0.1:{port}/api/"
        return httpx.Client(base_url=url, auth=(user, password), timeout=120, trust_env=False, transport=again)

    def _shell(self, name: str, script: str, **more: str) -> subprocess.Popen[bytes]:
        """A script of a machine in the background."""
        number = sum(map(len, self._groups.values()))
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PREFECT_HOME": str(self.folder / f"home-{name}"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS": str(CANCELLING_S),
            "PREFECT_API_AUTH_STRING": self._password,
            "PREFECT_REDIS_MESSAGING_PORT": str(self._redis_port),
            "PREFECT_REDIS_WORKER_CLEANUP_QUEUE_PORT": str(self._redis_port),
            **more,
        }
        with (self.folder / f"{name}-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-euc", self._here(script)], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._groups.setdefault(name, []).append(process)
        return process

    def _here(self, script: str, port: int = 0) -> str:
        """Lines of the page, with the addresses of this machine."""
        script = script.replace("/srv/autotailor/secrets", str(self._secrets)).replace("_HOST=redis", "_HOST=127.0.0.1")
        script = script.replace("--host 10.0.0.5", f"--host 127.0.0.1 --port {port}")
        return script.replace("@db:5432/", f"@127.0.0.1:{self.database.port}/")

    def _stop(self) -> None:
        for name in list(self._groups):
            self.kill(name)


def _exports() -> Iterator[str]:
    """The settings of a server, as the page exports them."""
    for words in SETTINGS:
        (text,) = (one.text for one in blocks(ROOT / "docs" / PAGE) if words in one.text)
        yield from (line for line in text.splitlines() if line.startswith("export PREFECT_") or words in line)


def _commands() -> list[str]:
    """A server's command line, and that of its services, as the page has them."""
    (text,) = (one.text for one in blocks(ROOT / "docs" / PAGE) if SETTINGS[-1] in one.text)
    return re.findall(r"^(prefect server .*?) +#", text, re.MULTILINE)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("ready").is_success
    except httpx.TransportError:
        return False


@contextmanager
def balancer(ports: Sequence[int]) -> Iterator[int]:
    """A port of loopback that leads each connection to the first of some ports where somebody answers."""

    def lead(client: socket.socket) -> None:
        for port in ports:
            with suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port))
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_passed_on, args=(one, other), daemon=True).start()
                return
        client.close()

    def listen() -> None:
        with suppress(OSError):  # it is closed
            while True:
                lead(listening.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=listen, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def _passed_on(one: socket.socket, other: socket.socket) -> None:
    """What comes at one end goes out at the other, until either is closed."""
    with suppress(OSError):
        while content := one.recv(1 << 16):
            other.sendall(content)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _before(servers: Servers, runs: int, events: int) -> Iterator[tuple[str, str]]:
    """What two servers do as one."""
    for pool in ("A", "B", "AB", "nobody"):
        servers.post("A", "work_pools/", name=pool, type="process")
    servers.add_worker("B")
    deployment = servers.deploy("A", "B", "waits")
    began = time.monotonic()
    asked = [servers.run("A", deployment) for _ in range(runs)]
    wait_for(lambda: servers.is_completed("A", asked), "flow runs of A's API, by B's worker", LIMIT_S)
    yield "flow runs of A's API, worked by B's worker", f"{runs} of {runs}, {time.monotonic() - began:.0f} s"
    yield "measurements at once, limit 1, workers of A and B", _at_once(servers, runs)
    automation = Automation(servers)
    automation.hear("A", events)
    time.sleep(SETTLE_S)
    yield "events of A, actions of B's automation", f"{events}, {automation.acted()}"
    yield "flow runs of a schedule, of which twice", _scheduled(servers)
    yield "flow runs that A should cancel, infrastructure ended by B's worker", _ended(servers, runs)


def _at_once(servers: Servers, runs: int) -> str:
    """How many pairs of measurements overlap where a device takes one at a time."""
    servers.limit("A", DEVICE)
    servers.add_worker("A")
    of_pools = [servers.deploy("A", pool, "measures") for pool in "AB"]
    files = [servers.folder / f"measured-{number}.json" for number in range(runs)]
    asked = [
        servers.run("A", of_pools[number % 2], seconds=MEASURED_S, file=str(file)) for number, file in enumerate(files)
    ]
    wait_for(lambda: servers.is_completed("B", asked), "measurements", LIMIT_S)
    spans = sorted(json.loads(file.read_text()) for file in files)
    overlaps = sum(later[0] < earlier[1] for earlier, later in pairwise(spans))
    return f"{overlaps} of {runs}"


class Automation:
    """An automation that is made at B, and asks for a flow run by each event."""

    def __init__(self, servers: Servers) -> None:
        self._servers, self._deployment = servers, servers.deploy("B", "nobody", "waits")
        trigger = {"type": "event", "posture": "Reactive", "expect": [EVENT], "threshold": 1, "within": 0}
        action = {"type": "run-deployment", "source": "selected", "deployment_id": self._deployment}
        servers.post("B", "automations/", name=EVENT, trigger=trigger, actions=[action])
        time.sleep(SETTLE_S)

    def acted(self) -> int:
        """How often it has."""
        wanted = {"id": {"any_": [self._deployment]}}
        return int(self._servers.post("B", "flow_runs/count", deployments=wanted))

    def hear(self, name: str, events: int) -> None:
        """Tell a server of events, and wait until there was an action for each."""
        rows = [
            {
                "id": str(uuid4()),
                "event": EVENT,
                "occurred": datetime.now(UTC).isoformat(),
                "resource": {"prefect.resource.id": f"{EVENT}.{number}"},
            }
            for number in range(events)
        ]
        self._servers.post(name, "events", rows=rows)
        wait_for(lambda: self.acted() >= events, "actions of the automation", LIMIT_S)


def _scheduled(servers: Servers) -> str:
    """Flow runs that a schedule has made by now, and how many of them for a time that another one is for."""
    schedule = {"schedule": {"interval": 3600}, "active": True}
    deployment = servers.deploy("A", "nobody", "waits", schedules=[schedule])

    def made() -> list[str]:
        rows = servers.post("B", "flow_runs/filter", deployments={"id": {"any_": [deployment]}})
        return [str(row["expected_start_time"]) for row in rows]

    wait_for(made, "flow runs of a schedule", LIMIT_S)
    time.sleep(SETTLE_S)
    found = made()
    return f"{len(found)}, {len(found) - len(set(found))}"


def _ended(servers: Servers, runs: int) -> str:
    """How many flow runs are said to run and to be cancelled, and how many of them have lost their infrastructure."""
    servers.post("A", "work_pools/", name="ends", type=EndingWorker.type)
    words = "from benchmarks.several_servers import EndingWorker; import asyncio"
    servers.add_worker("B", f"python -c \"{words}; asyncio.run(EndingWorker(work_pool_name='ends').start())\"")
    deployment = servers.deploy("A", "ends", "waits")
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": (datetime.now(UTC) + LATER).isoformat()}}
    files = [servers.folder / f"ended-{number}" for number in range(runs)]
    for file in files:
        one = servers.post("A", f"deployments/{deployment}/create_flow_run", state=later)["id"]
        servers.clients["A"].patch(f"flow_runs/{one}", json={"infrastructure_pid": str(file)}).raise_for_status()
        for state in ("RUNNING", "CANCELLING"):
            servers.post("A", f"flow_runs/{one}/set_state", state={"type": state}, force=True)
    with suppress(AssertionError):  # what was ended by then is told
        wait_for(lambda: all(file.exists() for file in files), "the end of infrastructure", ENDED_S)
    return f"{runs}, {sum(file.exists() for file in files)}"


def _after(servers: Servers) -> Iterator[tuple[str, str]]:
    """What goes on after a machine was killed."""
    servers.add_worker("AB")
    holds, waiting = servers.folder / "holds.json", servers.folder / "waits.json"
    through = servers.run("A", servers.deploy("A", "AB", "waits"), seconds=THROUGH_S)
    automation = Automation(servers)
    servers.run("A", servers.deploy("A", "A", "measures"), seconds=HELD_S, file=str(holds))
    wait_for(holds.exists, "a measurement of A's worker", LIMIT_S)
    servers.run("A", servers.deploy("A", "B", "measures"), seconds=0.0, file=str(waiting))
    next_one = servers.deploy("A", "B", "waits")
    wait_for(lambda: servers.state("B", through) == "RUNNING", "a flow run behind the balancer", LIMIT_S)
    servers.kill("A")
    killed = time.time()
    automation.hear("B", EVENTS_AFTER)
    heard_s = time.time() - killed
    asked = servers.run("B", next_one)
    wait_for(lambda: servers.is_completed("B", [asked]), "the next flow run", LIMIT_S)
    yield "A is killed: the next flow run of B's API is completed after", f"{time.time() - killed:.1f} s"
    yield "events of B then, actions", f"{EVENTS_AFTER}, {automation.acted()}, {heard_s:.1f} s after the kill"
    wait_for(lambda: servers.is_completed("B", [through]), "the flow run behind the balancer", LIMIT_S)
    yield "the flow run of the worker behind the balancer", "completed"
    wait_for(waiting.exists, "the device's turn", LIMIT_S)
    turn_s = json.loads(waiting.read_text())[0] - killed
    yield "the device's turn of A's worker is given on after", f"{turn_s:.0f} s"


if __name__ == "__main__":
    main()
