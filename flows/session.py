"""The frame around a run: its output folder alone, its devices checked first, its MLflow run begun and ended."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from flows.config import AdaptConfig, RunConfig
from flows.devices import Devices
from flows.locks import only_run
from flows.progress import Stopped, terminal_bars
from flows.run import Run
from flows.tracking import Tracker, start_tracking
from tasks.artifacts import Store, digest_of, write_bytes

STORE_FOLDER = "stages"
RUNS_FOLDER = "runs"
CONFIG_FILE = "config.yaml"
WITHOUT_DEVICES = ("compile", "finetune", "enumerate")

Config = RunConfig | AdaptConfig


@contextmanager
def open_run(config: Config, until: str) -> Iterator[Run]:
    """A run of `config` up to stage `until`. Bad devices or folders are reported before anything is worked."""
    plain = config.model_dump(mode="json")
    key = digest_of(plain, until)
    with ExitStack() as stack:
        stack.enter_context(only_run(config.output_dir))
        devices = stack.enter_context(Devices(config.device))
        if until not in WITHOUT_DEVICES:
            for name in config.device:
                devices.fingerprint(name)
        folder = config.output_dir / RUNS_FOLDER / key
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / CONFIG_FILE, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode())
        tracker = _start_tracking(config, key)
        tracker.log_params(tracker.run_id, plain)
        tracker.log_artifact(tracker.run_id, folder / CONFIG_FILE, digest_of(plain))
        bars = stack.enter_context(terminal_bars(Console(stderr=True)))
        run = Run(Store(config.output_dir / STORE_FOLDER), tracker, bars, devices, folder)
        yield from _ended(run, tracker)


def _ended(run: Run, tracker: Tracker) -> Iterator[Run]:
    try:
        yield run
    except (KeyboardInterrupt, Stopped):
        tracker.finish(tracker.run_id, "KILLED")
        raise
    except Exception:
        tracker.finish(tracker.run_id, "FAILED")
        raise
    tracker.finish(tracker.run_id)


def _start_tracking(config: Config, key: str) -> Tracker:
    output = config.output_dir.resolve()
    uri = config.tracking.uri or f"sqlite:///{output / 'mlflow.db'}"
    artifacts: Path | None = None if config.tracking.uri else output / "mlartifacts"
    return start_tracking(uri, config.tracking.experiment, artifacts, key, config.name)


def plain_config(config: Config) -> dict[str, Any]:
    """The config as JSON."""
    return config.model_dump(mode="json")
