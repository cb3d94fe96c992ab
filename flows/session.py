"""The frame around a run: its output folder locked, its devices checked first, its MLflow run begun and ended."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from flows.config import FlowConfig, RunConfig
from flows.devices import Devices
from flows.machine.signals import interruptible_again
from flows.progress import is_interruption, terminal_bars
from flows.run import Run
from flows.sharing import RunLocks, run_locks
from flows.tracking import Tracker, start_tracking
from flows.tracking.addresses import address_of
from flows.workers.opened import evaluation_workers
from tasks.artifacts import Store, digest_of, write_bytes

STORE_FOLDER = "stages"
RUNS_FOLDER = "runs"
CONFIG_FILE = "config.yaml"
WITHOUT_DEVICES = ("compile", "finetune", "enumerate")
STREAM = "stream"
WITHOUT_EVALUATION = (*WITHOUT_DEVICES, "plan", "profile", STREAM)
"""Commands up to stages before those that evaluate SubNets; a stream that searches evaluates some."""


@contextmanager
def open_run(config: FlowConfig, until: str) -> Iterator[Run]:
    """A run of `config` up to stage `until`. Bad devices or folders are reported before anything is worked."""
    plain = config.model_dump(mode="json")
    key = digest_of(plain, until)
    with ExitStack() as stack:
        stack.enter_context(interruptible_again())
        locks = stack.enter_context(run_locks(config.locks, config.output_dir, key))
        devices = stack.enter_context(Devices(config.device, locks.turn))
        if _asks_devices(config, until):
            for name in config.device:
                devices.fingerprint(name)
        workers = stack.enter_context(evaluation_workers(config.evaluate, needed=until not in WITHOUT_EVALUATION))
        folder = config.output_dir / RUNS_FOLDER / key
        with locks.own_turn("beginning"):
            tracker = _begun(config, plain, key, folder, locks)
        bars = stack.enter_context(terminal_bars(Console(stderr=True)))
        run = Run(Store(config.output_dir / STORE_FOLDER), tracker, bars, devices, workers, folder, locks)
        yield from _ended(run)


def _asks_devices(config: FlowConfig, until: str) -> bool:
    """Whether a run up to a stage measures on devices, or goes on from what was measured there."""
    if until == STREAM and isinstance(config, RunConfig):
        return bool(config.stream.searched)
    return until not in WITHOUT_DEVICES


def _begun(config: FlowConfig, plain: dict[str, Any], key: str, folder: Path, locks: RunLocks) -> Tracker:
    """The run in its folder and in MLflow; the workers of one run share both."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / CONFIG_FILE, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode())
    tracker = start_tracking(address_of(config.tracking.uri), config.tracking.experiment, key, config.name)
    tracker.end_lost(locks.place, lambda other: locks.others(other) > 0)
    tracker.log_params(tracker.run_id, plain)
    tracker.log_artifact(tracker.run_id, folder, CONFIG_FILE)
    return tracker


def _ended(run: Run) -> Iterator[Run]:
    """The run; MLflow hears how it ended, also when Prefect cancels it. With workers that go on, a run has not failed."""
    try:
        yield run
    except BaseException as error:
        if not run.locks.is_lost and not run.is_shared:
            run.tracker.end("KILLED" if is_interruption(error) else "FAILED")
        raise
    if run.is_shared:
        run.tracker.finish(run.tracker.run_id)
    else:
        run.tracker.end()


def plain_config(config: FlowConfig) -> dict[str, Any]:
    """The config as JSON."""
    return config.model_dump(mode="json")
