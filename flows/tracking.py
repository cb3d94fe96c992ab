"""MLflow: one run per pipeline run, one nested run per stage; run ids are passed explicitly, no run is ever 'active'."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from flows.versions import library_versions
from tasks.errors import UserError

PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "mlflow.runName"
KEY_TAG = "autotailor.key"
STAGE_TAG = "autotailor.stage"
DIGEST_TAG = "autotailor.digest"
NAME_FORBIDS = re.compile(r"[^\w\-. :/]")
MAX_PARAM_LENGTH = 6000
MAX_PARAMS = 100
MAX_METRICS = 500
FLUSH_SECONDS = 1.0


@dataclass(slots=True)
class MetricLog:
    """Metrics of one run, written about once a second: a database transaction per training step is too slow."""

    client: MlflowClient
    run_id: str
    _waiting: list[Metric] = field(default_factory=list)
    _written_s: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Metrics of one step."""
        now_ms = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now_ms, step) for name, value in values.items()]
        if time.monotonic() - self._written_s > FLUSH_SECONDS or len(self._waiting) >= MAX_METRICS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for first in range(0, len(self._waiting), MAX_METRICS):
            self.client.log_batch(self.run_id, metrics=self._waiting[first : first + MAX_METRICS])
        self._waiting = []
        self._written_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class Tracker:
    """Writes one pipeline run into MLflow."""

    client: MlflowClient
    experiment: str
    run_id: str

    def start_stage(self, stage: str, key: str) -> str:
        """Run id of the stage, nested; a run that was killed in the same stage under the same key goes on."""
        tags = {STAGE_TAG: stage, KEY_TAG: key, PARENT_TAG: self.run_id, NAME_TAG: stage}
        return _start(self.client, self.experiment, tags)

    def metrics(self, run_id: str) -> MetricLog:
        """Where a stage's metrics go; flush it at the end."""
        return MetricLog(self.client, run_id)

    def log_params(self, run_id: str, config: Mapping[str, Any]) -> None:
        """The flattened config; values longer than MLflow keeps are cut (the whole config is an artifact)."""
        known = self.client.get_run(run_id).data.params
        flat = {NAME_FORBIDS.sub("_", key): value[:MAX_PARAM_LENGTH] for key, value in flatten(config)}
        params = [Param(key, value) for key, value in flat.items() if key not in known]
        for first in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + MAX_PARAMS])

    def log_artifact(self, run_id: str, path: Path, digest: str) -> None:
        """Upload a file or folder; its digest becomes a tag."""
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), artifact_path=path.name)
        else:
            self.client.log_artifact(run_id, str(path))
        self.client.set_tag(run_id, f"{DIGEST_TAG}.{path.name}", digest)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(run_id, status=status)

    def register(self, name: str, run_id: str, folder: str, digest: str) -> None:
        """A version of model `name` in the registry that points at the run's artifact folder; once per digest."""
        filter_name = f"name = '{name}'"
        if not self.client.search_registered_models(filter_string=filter_name):
            self.client.create_registered_model(name, description="SuperNet: tailor_ir.load(folder) opens it")
        versions = self.client.search_model_versions(filter_name)
        if any(version.tags.get(DIGEST_TAG) == digest for version in versions):
            return
        source = f"{self.client.get_run(run_id).info.artifact_uri}/{folder}"
        self.client.create_model_version(name, source, run_id, tags={DIGEST_TAG: digest})


def start_tracking(uri: str, experiment: str, artifacts: Path | None, key: str, name: str) -> Tracker:
    """Open (or go on with) the MLflow run of a pipeline; UserError when the tracking server does not answer.

    artifacts: folder for a new experiment's artifacts; None leaves it to the server.
    """
    try:
        client = MlflowClient(uri, uri)
        found = client.get_experiment_by_name(experiment)
        location = artifacts.resolve().as_uri() if artifacts else None
        experiment_id = found.experiment_id if found else client.create_experiment(experiment, location)
        run_id = _start(client, experiment_id, {KEY_TAG: key, STAGE_TAG: "pipeline", NAME_TAG: name})
    except (MlflowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"tracking.uri '{uri}'", reason, next_step="set tracking.uri=sqlite:///FILE or a server"
        ) from error
    tracker = Tracker(client, experiment_id, run_id)
    tracker.tag(run_id, {f"version.{library}": version for library, version in library_versions().items()})
    return tracker


def _start(client: MlflowClient, experiment_id: str, tags: dict[str, str]) -> str:
    """The run with these tags that was killed or interrupted, running again, or a new one."""
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items() if key != NAME_TAG)
    unfinished = f"{wanted} and attributes.status != 'FINISHED' and attributes.status != 'FAILED'"
    found: list[Run] = client.search_runs([experiment_id], unfinished, ViewType.ACTIVE_ONLY, max_results=1)
    if not found:
        return str(client.create_run(experiment_id, tags=tags).info.run_id)
    client.update_run(found[0].info.run_id, status="RUNNING")
    return str(found[0].info.run_id)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and text of every leaf."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, str(value)
