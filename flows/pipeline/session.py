"""The frame around a run: lock the output folder, check the devices, open its workers, begin and end the MLflow run.

Dask is imported only if there are workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from flows.config import FlowConfig, RunConfig
from flows.config.settings import EvaluateSettings
from flows.machine import interruptible_again
from flows.pipeline.devices import Devices
from flows.pipeline.progress import is_interruption, terminal_bars
from flows.pipeline.run import Run, Surroundings
from flows.pipeline.tracking import Tracker, description, parameters, start_tracking
from flows.pipeline.tracking.addresses import address_of
from flows.storage import EXPORTS_FOLDER, STAGES_FOLDER
from flows.storage.mirror import mirror_of
from flows.storage.sharing import RunLocks, StageList, run_locks
from tasks.base.artifacts import Store, write_bytes
from tasks.base.errors import UserError
from tasks.base.pages.text import PlainConsole
from tasks.report import DATA_FILE, PAGE_FILE

if TYPE_CHECKING:
    from tasks.evaluation.subnets import EvaluationWorkers


@contextmanager
def evaluation_workers(settings: EvaluateSettings, *, needed: bool) -> Iterator[EvaluationWorkers | None]:
    """The workers of a run; None: this process evaluates SubNets. Processes started here end with the block.

    needed: connect to a scheduler elsewhere now, not at the first evaluation. UserError if there is none, or Dask is missing.
    """
    if settings.workers is None:
        yield None
        return
    try:
        from flows.pipeline.workers.cluster import DaskWorkers
    except ImportError as error:
        where, hint = f"evaluate.workers={settings.workers}", "in the clone: pip install -e '.[dask]'"
        raise UserError(where, str(error), next_step=hint) from error
    with DaskWorkers(settings) as workers:
        if needed and settings.scheduler:
            workers.connect()
        yield workers


CONFIG_FILE = "config.yaml"
WITHOUT_DEVICES = ("compile", "finetune", "enumerate")
STREAM = "stream"
REPORT = "report"
EXPORTING = ("export", REPORT)
"""Commands that write files under readable names."""
WITHOUT_EVALUATION = (*WITHOUT_DEVICES, "plan", "profile", STREAM)
"""Commands up to stages before those that evaluate SubNets; a stream with a search evaluates some."""


@contextmanager
def open_run(config: FlowConfig, until: str) -> Iterator[Run]:
    """A run of `config` up to stage `until`. Bad devices or folders are reported before anything is worked."""
    folder = config.run_folder(until)
    key = folder.name
    with ExitStack() as stack:
        stack.enter_context(interruptible_again())
        locks = stack.enter_context(run_locks(config.locks, config.folder, key))
        mirror = mirror_of(config.output_dir)
        if mirror is not None:
            mirror.check()
        devices = stack.enter_context(Devices(config.device, locks.turn))
        plays = until == STREAM and isinstance(config, RunConfig) and not config.stream.searched
        if until not in WITHOUT_DEVICES and not plays:  # it measures there, or continues from measurements there
            for name in config.device:
                devices.fingerprint(name)
        workers = stack.enter_context(evaluation_workers(config.evaluate, needed=until not in WITHOUT_EVALUATION))
        with locks.own_turn("beginning"):
            tracker = _begun(config, until, folder, locks)
        bars = stack.enter_context(terminal_bars(PlainConsole(stderr=True)))
        around = Surroundings(Store(config.folder / STAGES_FOLDER), devices, workers, mirror)
        yield from _ended(Run(around, tracker, bars, folder, locks), config, until)


def _begun(config: FlowConfig, until: str, folder: Path, locks: RunLocks) -> Tracker:
    """Begin the run in its folder, which is named by its key, and in MLflow; the workers of one run share both."""
    plain = config.plain()
    folder.mkdir(parents=True, exist_ok=True)
    StageList(folder).add()
    write_bytes(folder / CONFIG_FILE, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode())
    tracker = start_tracking(address_of(config.tracking.uri), config.tracking.experiment, folder.name, config.name)
    tracker.end_lost(locks.place, lambda other: locks.others(other) > 0)
    tracker.log_params(tracker.run_id, parameters(config))
    tracker.describe(description(config, until))
    tracker.log_artifact(tracker.run_id, folder, CONFIG_FILE)
    return tracker


def _ended(run: Run, config: FlowConfig, until: str) -> Iterator[Run]:
    """The run; MLflow records how it ended, even if Prefect cancels it. A run that other workers continue has not failed."""
    try:
        yield run
        run.keep_own_stages()
        if run.mirror is not None:  # files for users: the run's folder, the latest report, and those of each device
            exports = [f"{EXPORTS_FOLDER}/{name}" for name in config.device] if until in EXPORTING else []
            own = [file for file in sorted(run.folder.rglob("*")) if file.is_file()]
            files = [file.relative_to(run.mirror.folder).as_posix() for file in own]
            run.mirror.publish_results(exports, [*files, *((PAGE_FILE, DATA_FILE) if until == REPORT else ())])
    except BaseException as error:
        if not run.locks.is_lost and not run.is_shared:
            run.tracker.end("KILLED" if is_interruption(error) else "FAILED")
        raise
    if run.is_shared:
        run.tracker.finish(run.tracker.run_id)
    else:
        run.tracker.end()
