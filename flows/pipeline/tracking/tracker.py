"""The writer of one pipeline run in MLflow, and MLflow's SQLite database, under its name only when complete.

Run ids are passed explicitly, and no run is ever 'active'.

MLflow makes a database by dozens of migrations, which take several seconds. A process that is killed between two of
them leaves tables without a version number, and no later start can continue from there. A database is therefore made,
or migrated to this MLflow's version, as a copy under another name, and then renamed.
"""

import os
import re
import secrets
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import mlflow
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from adaptive_runtime.base.errors import without_passwords
from flows.pipeline.results import Series
from flows.pipeline.tracking import flatten
from flows.pipeline.tracking.addresses import (
    CHOOSE,
    SETTING,
    SQLITE,
    TrackingAddress,
    alone_at,
    database_of,
    follow,
    page_of,
    path_of,
)
from flows.pipeline.versions import library_versions
from profiling_agents.lines import no_space
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError, shortened

MAKING = ".making"


def made_whole(file: Path) -> str | None:
    """Make MLflow's database, or migrate it; returns a line if a half-made one was quarantined for it, else None.

    The caller has exclusive use of the file. The database of a newer MLflow is left as it is. UserError: a half-made one that
    has runs.
    """
    _remove_unfinished(file)
    found = _first(file, "SELECT version_num FROM alembic_version")
    if found is not None and not _is_older(found):
        return None
    try:
        _publish(file, file if file.exists() else None)
    except (SQLAlchemyError, MlflowException, CommandError) as error:
        if no_space(error) or not file.exists():
            raise
        quarantined = _quarantined(file, error)
        _publish(file, None)
        was = "was left half-made by a run that was killed"
        return f"MLflow's database '{file}' {was}: quarantined as '{quarantined}', and made anew"
    finally:
        _remove_unfinished(file)
    return None


def _publish(file: Path, source: Path | None) -> None:
    """Make a database, or migrate a copy of `source`, under a name that no connection knows, then rename it."""
    making = file.with_name(f".{file.name}.{secrets.token_hex(4)}{MAKING}")
    if source is not None:  # the committed content, even if another process has the database open
        with closing(sqlite3.connect(source, timeout=60)) as known, closing(sqlite3.connect(making)) as copy:
            known.backup(copy)
    SqlAlchemyStore(f"{SQLITE}{making}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()
    making.replace(file)


def _is_older(version: str) -> bool:
    """Whether this MLflow knows the version and has a newer one."""
    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    return version not in scripts.get_heads() and version in {one.revision for one in scripts.walk_revisions()}


def _first(file: Path, query: str) -> Any:
    """The first value of a query; None if there is no file, table or row."""
    if not file.exists():
        return None
    with closing(sqlite3.connect(file, timeout=60)) as database, suppress(sqlite3.OperationalError):
        row = database.execute(query).fetchone()
        return None if row is None else row[0]
    return None


def _quarantined(file: Path, error: Exception) -> Path:
    """Move a half-made database away, and return its new path; UserError if it has runs, which the user may want to save."""
    if _first(file, "SELECT 1 FROM runs LIMIT 1"):
        raise UserError(
            f"MLflow's database '{file}'",
            f"has runs and was left half-made by a migration that was killed ({shortened(error)})",
            next_step=f"bring back a copy of it, or move it away, and a new one is made, or {CHOOSE}",
        ) from error
    places = (file.with_name(f"{file.name}.half-made-{number}") for number in count(1))
    return file.rename(next(place for place in places if not place.exists()))


def _remove_unfinished(file: Path) -> None:
    """Remove leftovers of this or a killed command; no other process makes this database now."""
    for left in file.parent.glob(f".{file.name}.*{MAKING}*"):
        left.unlink(missing_ok=True)


PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "mlflow.runName"
KEY_TAG = "autotailor.key"
STAGE_TAG = "autotailor.stage"
NOTE_TAG = "mlflow.note.content"
DIGEST_TAG = "autotailor.digest"
"""Tag of a registered model's version."""
FILE_DIGEST_TAG, FILE_ADDRESS_TAG = "z.digest", "z.artifact"
"""Tags of a run, by artifact. Nobody reads these, so the names sort last."""
OUTPUT_TAG = "autotailor.output"
REPORTED_TAG = "autotailor.reported"
"""Tag of a stage's run: "true" if the pipeline run has all of its data. Prefix of a pipeline run's tags for later steps."""
NAME_FORBIDS = re.compile(r"[^\w\-. :/]")
SUPERNET_DESCRIPTION = "SuperNet: tailor_ir.load(folder) opens it"
KEY_SHOWN = 6
MAX_PARAM_LENGTH = 6000
MAX_PARAMS = 100
MAX_METRICS = 500
FLUSH_SECONDS = 1.0


@dataclass(slots=True)
class MetricLog:
    """Metrics of one run, written about once per second, since a database transaction per training step is too slow."""

    client: MlflowClient
    run_id: str
    _waiting: list[Metric] = field(default_factory=list)
    _written_s: float = field(default_factory=time.monotonic)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add the metrics of one step."""
        now_ms = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now_ms, step) for name, value in values.items()]
        if time.monotonic() - self._written_s > FLUSH_SECONDS or len(self._waiting) >= MAX_METRICS:
            self.flush()

    def flush(self) -> None:
        """Write all waiting metrics."""
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
        """Run id of the stage, nested; a killed run of the same stage under the same key is continued.

        Stage runs of the same name have equal settings, inputs and code.
        """
        name = f"{stage} {key[:KEY_SHOWN]}"
        tags = {STAGE_TAG: stage, KEY_TAG: key, PARENT_TAG: self.run_id, NAME_TAG: name}
        return _start(self.client, self.experiment, tags)

    def has_reported(self, stage: str, key: str) -> bool:
        """Whether the pipeline run already has all data of a stage, from this worker, an earlier one, or another."""
        tags = {STAGE_TAG: stage, KEY_TAG: key, PARENT_TAG: self.run_id, REPORTED_TAG: "true"}
        return bool(self.client.search_runs([self.experiment], _with(tags), ViewType.ACTIVE_ONLY, max_results=1))

    def set_reported(self, run_id: str) -> None:
        """Mark that the pipeline run has all data of this run's stage."""
        self.tag(run_id, {REPORTED_TAG: "true"})

    def once(self, what: str, tell: Callable[[], None]) -> None:
        """Log something that follows the stages to the pipeline run, unless it has been logged before."""
        tag = f"{REPORTED_TAG}.{what}"
        if tag not in self.client.get_run(self.run_id).data.tags:
            tell()
            self.tag(self.run_id, {tag: "true"})

    def describe(self, text: str) -> None:
        """Append Markdown to the top of the pipeline run's page; no effect if it is already there."""
        known = self.client.get_run(self.run_id).data.tags.get(NOTE_TAG, "")
        if text not in known:
            self.tag(self.run_id, {NOTE_TAG: "\n\n".join(filter(None, (known, text)))})

    def metrics(self, run_id: str) -> MetricLog:
        """The buffer of a stage's metrics; flush it at the end."""
        return MetricLog(self.client, run_id)

    def log_params(self, run_id: str, config: Mapping[str, Any]) -> None:
        """Log settings, flattened; values longer than MLflow's limit are cut (the whole config is an artifact)."""
        known = self.client.get_run(run_id).data.params
        flat = {NAME_FORBIDS.sub("_", key): value[:MAX_PARAM_LENGTH] for key, value in flatten(config)}
        params = [Param(key, value) for key, value in flat.items() if key not in known]
        for first in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + MAX_PARAMS])

    def log_series(self, run_id: str, series: Series) -> None:
        """Log metrics with their values by step."""
        metrics = self.metrics(run_id)
        for name, values in series.items():
            for step, value in enumerate(values):
                metrics.add({NAME_FORBIDS.sub("_", name): value}, step)
        metrics.flush()

    def log_artifact(self, run_id: str, folder: Path, name: str) -> str:
        """Log a file or folder `name` of a folder for this run, and return its address. Address and digest become tags.

        Content that another run already has is not stored twice: beside a local database it is linked, and on a server the
        other run's address is used.
        """
        digest = digest_of(folder / name)
        holder, own = self._holder(name, digest), self._folder(run_id)
        source = self._folder(holder) if holder else None
        if holder and own is None:
            address = f"runs:/{holder}/{name}"
        else:
            address = f"runs:/{run_id}/{name}"
            if own and source and (source / name).exists() and digest_of(source / name) == digest:
                link(source / name, own / name)
            elif (folder / name).is_dir():
                self.client.log_artifacts(run_id, str(folder / name), artifact_path=name)
            else:
                inner = Path(name).parent.as_posix()
                self.client.log_artifact(run_id, str(folder / name), artifact_path=None if inner == "." else inner)
        self.tag(run_id, {f"{FILE_DIGEST_TAG}.{name}": digest, f"{FILE_ADDRESS_TAG}.{name}": address})
        return address

    def page_of(self, name: str) -> str | None:
        """Address of the page of an artifact of the pipeline run; None without a server."""
        return page_of(self.client.tracking_uri, self.experiment, self.run_id, name)

    def _holder(self, name: str, digest: str) -> str | None:
        """A run that has an artifact of this name and content."""
        wanted = f"tags.`{FILE_DIGEST_TAG}.{name}` = '{digest}'"
        for run in self.client.search_runs([self.experiment], wanted, ViewType.ACTIVE_ONLY, max_results=1):
            address = str(run.data.tags.get(f"{FILE_ADDRESS_TAG}.{name}", ""))
            return address.removeprefix("runs:/").split("/")[0] or None
        return None

    def _folder(self, run_id: str) -> Path | None:
        """The folder of a run's artifacts; None if a server has them."""
        address = self.client.get_run(run_id).info.artifact_uri
        return path_of(address) if address.startswith("file:") else None

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(run_id, status=status)

    def end(self, status: str = "FINISHED") -> None:
        """End the pipeline run; its unfinished stages become KILLED."""
        self._kill_stages_of(self.run_id)
        self.finish(self.run_id, status)

    def end_lost(self, place: str, is_worked: Callable[[str], bool]) -> None:
        """End runs in the same output folder (`place`) that could not end themselves.

        is_worked: whether another worker is in a run (its key) now.
        """
        self.tag(self.run_id, {OUTPUT_TAG: place})
        output = place.replace("'", "\\'")
        lost = f"tags.`{OUTPUT_TAG}` = '{output}' and attributes.status = 'RUNNING'"
        for run in self.client.search_runs([self.experiment], lost, ViewType.ACTIVE_ONLY):
            if run.info.run_id != self.run_id and not is_worked(run.data.tags.get(KEY_TAG, "")):
                self._kill_stages_of(run.info.run_id)
                self.finish(run.info.run_id, "KILLED")

    def _kill_stages_of(self, run_id: str) -> None:
        running = f"tags.`{PARENT_TAG}` = '{run_id}' and attributes.status = 'RUNNING'"
        for run in self.client.search_runs([self.experiment], running, ViewType.ACTIVE_ONLY):
            self.finish(run.info.run_id, "KILLED")

    def register(
        self, name: str, run_id: str, folder: str, digest: str, description: str = SUPERNET_DESCRIPTION
    ) -> None:
        """Register a version of model `name` that points at the run's artifact folder; once per digest."""
        if not self.client.search_registered_models(filter_string=f"name = '{name}'"):
            self.client.create_registered_model(name, description=description)
        if self._version_of(name, digest) is not None:
            return
        address = self.client.get_run(run_id).data.tags[f"{FILE_ADDRESS_TAG}.{folder}"]
        holder = address.removeprefix("runs:/").split("/")[0]
        source = f"{self.client.get_run(holder).info.artifact_uri}/{folder}"
        self.client.create_model_version(name, source, holder, tags={DIGEST_TAG: digest})

    def point(self, name: str, digest: str, alias: str) -> None:
        """Point an alias of model `name` at its registered version of this content."""
        version = self._version_of(name, digest)
        assert version is not None, f"{name} has a version of {digest}"
        self.client.set_registered_model_alias(name, alias, version)

    def _version_of(self, name: str, digest: str) -> str | None:
        versions = self.client.search_model_versions(f"name = '{name}'")
        return next((str(one.version) for one in versions if one.tags.get(DIGEST_TAG) == digest), None)


def start_tracking(address: TrackingAddress, experiment: str, key: str, name: str) -> Tracker:
    """Open or continue the MLflow run of a pipeline. UserError in one line if the address cannot be used.

    A new run is named by `name`, its time and its key. Commands that start together share the database and the experiment, so
    they make them one after the other.
    """
    called = f"{name} {datetime.now():%Y-%m-%d %H:%M:%S} {key[:KEY_SHOWN]}"
    try:
        with alone_at(address):
            if (file := database_of(address.uri)) is not None and (line := made_whole(file)) is not None:
                print(f"{SETTING}: {line}", file=sys.stderr)
            follow(address)
            client = MlflowClient(address.uri, address.uri)
            found = client.get_experiment_by_name(experiment)
            location = address.artifacts.as_uri() if address.artifacts else None
            experiment_id = found.experiment_id if found else client.create_experiment(experiment, location)
        run_id = _start(client, experiment_id, {KEY_TAG: key, STAGE_TAG: "pipeline", NAME_TAG: called})
    except (MlflowException, SQLAlchemyError, OSError) as error:
        refused = UserError(f"{SETTING} '{address}'", str(error).splitlines()[0], next_step=CHOOSE)
        if without_passwords(str(error)) != str(error):
            raise refused from None  # Prefect logs the cause of an error
        raise refused from error
    tracker = Tracker(client, experiment_id, run_id)
    tracker.tag(run_id, {f"version.{library}": version for library, version in library_versions().items()})
    return tracker


def _start(client: MlflowClient, experiment_id: str, tags: dict[str, str]) -> str:
    """The killed or interrupted run with these tags, set to running again, or a new run."""
    wanted = _with({key: value for key, value in tags.items() if key != NAME_TAG})
    unfinished = f"{wanted} and attributes.status != 'FINISHED' and attributes.status != 'FAILED'"
    found: list[Run] = client.search_runs([experiment_id], unfinished, ViewType.ACTIVE_ONLY, max_results=1)
    if not found:
        return str(client.create_run(experiment_id, tags=tags).info.run_id)
    client.update_run(found[0].info.run_id, status="RUNNING")
    return str(found[0].info.run_id)


def link(source: Path, target: Path) -> None:
    """Put the same file or folder in another place, by hard links if the file system supports them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link_or_copy, dirs_exist_ok=True)
    else:
        _link_or_copy(source, target)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    if Path(target).exists():
        return  # from an earlier start of the same run
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _with(tags: Mapping[str, str]) -> str:
    """The filter for runs with these tags."""
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
