"""Workers on real servers share a run: Prefect, MLflow and locks on one PostgreSQL. Some are killed; the others finish.

Nothing that was finished is worked again, nothing is lost, and MLflow has each stage once.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from mlflow import MlflowClient
from prefect.utilities.templating import apply_values

from flows.storage.sharing import run_locks
from tasks.base.artifacts import read_lines
from tests.support.flows.prefect_server import Server, started, stop, wait_for
from tests.support.flows.tiny import TINY
from tests.support.ports import free_port
from tests.support.postgres import Postgres

LIMIT_S = 500
PATIENCE_S = "300"
"""Of the server with its database: on a busy machine Prefect's own 5 and 10 seconds are answers with an error."""
KILLS = 2
DEPLOYMENT = "autotailor/run"
STAGES = {
    "check", "base", "compile", "finetune", "enumerate", "profile/onnxruntime", "sensitivities", "latency/onnxruntime",
    "resources/onnxruntime", "search/onnxruntime",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server on PostgreSQL, with one deployment."""
    database = postgres.database("prefect").replace("+psycopg", "+asyncpg")
    settings = {
        "PREFECT_API_DATABASE_CONNECTION_URL": database,
        "PREFECT_API_DATABASE_TIMEOUT": PATIENCE_S,
        "PREFECT_API_DATABASE_CONNECTION_TIMEOUT": PATIENCE_S,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    with started(tmp_path_factory.mktemp("prefect"), settings) as server:
        server.shell(
            "prefect work-pool create autotailor --type process --overwrite\nprefect --no-prompt deploy --name run"
        )
        yield server


@pytest.fixture(scope="module")
def tracking(shared: Server, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server on PostgreSQL, which keeps the artifacts that it is sent."""
    port = free_port()
    kept = tmp_path_factory.mktemp("mlflow")
    process = shared.start(
        "export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false  # a dozen processes\n"
        f"exec mlflow server --host 127.0.0.1 --port {port} --workers 1 --serve-artifacts --artifacts-destination {kept} "
        f"--backend-store-uri {postgres.database('mlflow')}"
    )

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
        except httpx.TransportError:
            return False

    try:
        wait_for(answers, "MLflow's server")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


class Workers:
    """Prefect's process workers, of one flow run at a time each, and the flow runs of one form that they are given."""

    def __init__(self, server: Server, form: dict[str, Any]) -> None:
        self._server, self._form = server, form
        self._processes: list[subprocess.Popen[bytes]] = []
        self.flow_runs: list[str] = []

    def add(self) -> None:
        """A further flow run, and a worker for it."""
        self.flow_runs.append(self._server.run_of(DEPLOYMENT, self._form))
        self._processes.append(self._server.start("exec prefect worker start --pool autotailor --limit 1"))

    def kill(self, pid: int) -> None:
        """kill -9 a flow run's process, and the worker that started it, as where their machine is gone."""
        (worker,) = [one for one in self._processes if pid in {child.pid for child in _below(one.pid)}]
        started_by_it = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self._processes.remove(worker)
        _, alive = psutil.wait_procs(started_by_it, timeout=LIMIT_S)
        assert alive == []

    def stop(self) -> None:
        """End them in their own way."""
        for one in self._processes:
            stop(one)

    def ended(self) -> dict[str, Any] | None:
        """A flow run that has completed, or failed."""
        runs = map(self._server.flow_run, self.flow_runs)
        return next((run for run in runs if run["state_type"] in ("COMPLETED", "FAILED")), None)


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


class SharedRun:
    """What is to be seen of a run in its output folder, and who is at its stages."""

    def __init__(self, output: Path, locks: str) -> None:
        self.output, self.locks = output, locks

    def finished(self) -> dict[Path, int]:
        """Result files with their times of change."""
        while True:
            with suppress(FileNotFoundError):  # a worker has renamed a folder meanwhile: it is looked at again
                return {file: file.stat().st_mtime_ns for file in self.output.glob("stages/**/result.json")}

    def holder(self) -> int | None:
        """The process that is at some stage now, while another worker is in the run."""
        folders = [folder.parent for folder in self.output.glob("runs/*/config.yaml")]
        stages = self.output / "stages"
        with run_locks(self.locks, self.output, "looked at") as locks:
            if not folders or locks.others(folders[0].name) < 2:
                return None
            with suppress(FileNotFoundError):  # as above; whoever waits asks again
                for folder in stages.rglob("*.partial"):
                    title = str(folder.parent.relative_to(stages))
                    if found := locks.holder(title, folder.name.removesuffix(".partial")):
                        return int(found.rpartition(":")[2])
        return None

    def lines(self, stage: str, name: str) -> list[Any]:
        """Lines that a stage has written."""
        return [line for file in self.output.glob(f"stages/{stage}/*/{name}") for line in read_lines(file)]


@pytest.mark.timeout(4 * LIMIT_S)
def test_whichever_worker_is_killed_the_others_finish_the_run(
    shared: Server, tracking: str, postgres: Postgres, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    run = SharedRun(output, postgres.database("locks of a run"))
    words = [*TINY, "finetune.checkpoint_every_s=0", f"locks='{run.locks}'", f"tracking.uri={tracking}"]
    workers = Workers(shared, {"overrides": [*words, f"output_dir={output}"], "until": "search"})
    try:
        workers.add()
        for _ in range(KILLS):
            workers.add()
            pid = wait_for(run.holder, "two workers, and one of them at a stage", LIMIT_S)
            before = run.finished()
            workers.kill(pid)
            assert all(run.finished()[file] == changed for file, changed in before.items())
        ended = wait_for(workers.ended, "a flow run that completes", LIMIT_S)
    finally:
        workers.stop()
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    found = run.finished()
    assert all(found[file] == changed for file, changed in before.items()), "a finished stage was worked again"
    assert sorted(str(file.parent.parent.relative_to(output / "stages")) for file in found) == sorted(STAGES)
    assert [path for path in (output / "stages").rglob("*.*") if path.is_dir()] == [], "unfinished, or damaged"
    assert [line["step"] for line in run.lines("finetune", "history.jsonl")] == [*range(1, 19)]
    check_tasks(shared, ended["id"])
    check_tracking(tracking, output)
    check_secrets(shared, postgres, ended["id"], output)


def check_tasks(server: Server, flow_run: str) -> None:
    """A task is a stage for a device, and has the device's tag; one that another worker was at may have been tried twice."""
    tasks = server.found("task_runs", flow_runs={"id": {"any_": [flow_run]}})
    assert {task["name"] for task in tasks} <= STAGES
    assert len(tasks) < 2 * len(STAGES)
    asking = {task["name"]: task["tags"] for task in tasks if task["name"].partition("/")[0] in ("profile", "latency")}
    assert asking
    assert set(map(tuple, asking.values())) == {("device:onnxruntime",)}


def check_tracking(uri: str, output: Path) -> None:
    """One pipeline run, which has each stage once, with its artifacts on the server."""
    client = MlflowClient(uri)
    (experiment,) = [found for found in client.search_experiments() if found.name == "autotailor"]
    runs = {run.data.tags["autotailor.stage"]: run for run in client.search_runs([experiment.experiment_id])}
    assert len(client.search_runs([experiment.experiment_id])) == len(runs)
    assert set(runs) == {*STAGES, "pipeline"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    history = client.get_metric_history(runs["pipeline"].info.run_id, "onnxruntime/hypervolume")
    assert len(history) == 1
    trained = runs["finetune"].info
    assert trained.artifact_uri.startswith("mlflow-artifacts:")
    assert {file.path for file in client.list_artifacts(trained.run_id)} == {"supernet", "history.jsonl"}
    (config,) = output.glob("runs/*/config.yaml")
    assert yaml.safe_load(config.read_text())["tracking"]["uri"] == uri


def check_secrets(server: Server, postgres: Postgres, flow_run: str, output: Path) -> None:
    """The password is in no file of the run, and in nothing that Prefect shows of it."""
    files = [file for folder in ("runs", "stages") for file in (output / folder).rglob("*") if file.is_file()]
    assert not any(postgres.password.encode() in file.read_bytes() for file in files)
    assert postgres.password not in str(server.flow_run(flow_run))
    logs = server.found("logs", logs={"flow_run_id": {"any_": [flow_run]}})
    assert logs
    assert postgres.password not in str(logs)


ANOTHER = """
import sys, time
from pathlib import Path
from prefect import flow, task

@task(tags=["device:onnxruntime"])
def measure(begun: Path, ends: Path) -> None:
    begun.touch()
    while not ends.exists():
        time.sleep(0.1)

@flow
def another() -> None:
    measure(Path(sys.argv[1]), Path(sys.argv[2]))

another()
"""
LOOK_S = 5.0


def test_a_limit_on_the_tag_of_a_device_keeps_two_runs_from_measuring_on_it_at_once(
    shared: Server, tmp_path: Path
) -> None:
    """Another run's task has the device; the run works what needs no device, and waits."""
    script, begun, ends, output = tmp_path / "another.py", tmp_path / "begun", tmp_path / "ends", tmp_path / "out"
    script.write_text(ANOTHER)
    shared.shell("prefect concurrency-limit create device:onnxruntime 1")
    other = shared.start(f"exec python {script} {begun} {ends}")
    wait_for(begun.exists, "the other run's task")
    words = [*TINY, f"output_dir={output}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
    run = shared.start(f"exec python -m flows.cli profile {' '.join(words)}", tmp_path / "log")
    try:
        wait_for(lambda: list(output.glob("stages/enumerate/*/result.json")), "the stages before", LIMIT_S)
        time.sleep(LOOK_S)
        assert not (output / "stages" / "profile").exists(), "it measures beside the other run"
        assert run.poll() is None, (tmp_path / "log").read_text()
        ends.touch()
        assert (other.wait(LIMIT_S), run.wait(LIMIT_S)) == (0, 0), (tmp_path / "log").read_text()
        assert len(list(output.glob("stages/profile/onnxruntime/*/result.json"))) == 1
    finally:
        for process in (run, other):
            if process.poll() is None:
                stop(process)
        shared.shell("prefect --no-prompt concurrency-limit delete device:onnxruntime")


NIGHT = """
from pathlib import Path
from prefect import flow
from flows.config import RunConfig
from flows.operations.nightly import tell
from tests.support.nights.made_nights import nights

@flow
def night():
    earlier, now = nights(2, seed=0)
    tell(RunConfig(), now.model_copy(update={"compared_with": earlier.began}), Path("nights.html"), None)

night()
"""


def test_automations_are_made_once_and_notice_nights_that_failed_or_regressed(shared: Server, tmp_path: Path) -> None:
    for _ in range(2):
        shared.shell("python -m flows.operations.deployments.automations")
    made = {row["name"]: f"prefect.automation.{row['id']}" for row in shared.found("automations")}
    assert set(made) == {
        "autotailor: a night failed", "autotailor: a night regressed", "autotailor: a run lost its process"
    }  # fmt: skip
    assert len(shared.found("automations")) == len(made)
    refused = shared.start("python -m flows.operations.deployments.automations slack-webhook/nobody", tmp_path / "log")
    assert refused.wait() == 2
    assert "autotailor: block 'slack-webhook/nobody': is not on the server" in (tmp_path / "log").read_text()

    night = tmp_path / "night.py"
    night.write_text(NIGHT)
    shared.shell(f"python {night}")
    failed = (
        shared.api.post("flow_runs/", json={"flow_id": flow_of(shared), "tags": ["nightly"]}).raise_for_status().json()
    )
    state = {"type": "FAILED", "name": "Failed", "message": "no device"}
    shared.api.post(f"flow_runs/{failed['id']}/set_state", json={"state": state, "force": True}).raise_for_status()

    def fired() -> set[str]:
        wanted = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}}
        found = shared.api.post("events/filter", json=wanted).raise_for_status().json()["events"]
        return {event["resource"]["prefect.resource.id"] for event in found}

    expected = {made["autotailor: a night failed"], made["autotailor: a night regressed"]}
    wait_for(lambda: fired() >= expected, "both automations")
    assert fired() == expected


def test_the_documented_pools_for_containers_take_their_deployments(shared: Server) -> None:
    shared.shell(shared.documented("bash", "prefect variable set", "workers.md"))
    docker, kubernetes = (shared.deployment(f"autotailor/{name}") for name in ("docker", "kubernetes"))
    image = "registry.example.org/autotailor:0.13"
    assert docker["job_variables"]["image"] == kubernetes["job_variables"]["image"] == image
    assert docker["job_variables"]["volumes"] == ["/srv/autotailor:/srv/autotailor"]
    for one in (docker, kubernetes):
        assert one["entrypoint"] == "flows.operations.deployments.deployed.run"
        assert one["parameter_openapi_schema"] == shared.deployment(DEPLOYMENT)["parameter_openapi_schema"]
        (step,) = one["pull_steps"]
        assert step == {"prefect.deployments.steps.set_working_directory": {"directory": "/srv/autotailor"}}
    template = shared.api.get("work_pools/autotailor-kubernetes").raise_for_status().json()["base_job_template"]
    defaults = {name: one["default"] for name, one in template["variables"]["properties"].items() if "default" in one}
    job = apply_values(template["job_configuration"], {**defaults, **kubernetes["job_variables"]})["job_manifest"]
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == image
    assert pod["containers"][0]["env"] == {"PGPASSFILE": "/etc/autotailor/pgpass", "DO_NOT_TRACK": "1"}
    assert {volume["name"] for volume in pod["volumes"]} == {m["name"] for m in pod["containers"][0]["volumeMounts"]}
    assert pod["volumes"][1]["secret"]["secretName"] == "autotailor"
    assert "{{" not in str(pod)


def flow_of(server: Server) -> str:
    """The flow of the deployment."""
    return str(server.deployment(DEPLOYMENT)["flow_id"])
