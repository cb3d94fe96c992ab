"""SuperNets made by the command line, for measurements that need real accuracies."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from benchmarks.bars import Terminal
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.artifacts import write_json
from tasks.data import DataSettings
from tasks.prediction.settings import Settings as PredictSettings
from tasks.training import base_network

SMALL_GLYPHS = (
    "data=glyphs",
    "data.images=12000",
    "data.classes=10",
    "data.resolution=32",
    "data.validation_share=0.2",
    "data.test_share=0.2",
    "data.workers=1",
    "base.processes=1",
)
"""Words of the command line: ten characters of glyphs at 32 pixels, trained on by one process."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The folder of a SuperNet, what it is predicted with, and what its stage tells of it."""

    supernet: Path
    data: DataSettings
    predict: PredictSettings
    result: dict[str, float]


def train(overrides: Sequence[str], output: Path, command: Literal["compile", "finetune"] = "finetune") -> Trained:
    """`autotailor COMMAND`: base network, compiling, and for finetune the training of the SuperNet.

    Goes on from what is in `output`.
    """
    config = settings_of(overrides)
    stage = worked(command, overrides, output)
    return Trained(Path(stage["folder"]) / "supernet", config.data, config.predict, stage["result"])


def once(folder: Path, make: Callable[[Path], Mapping[str, Any]]) -> Path:
    """A folder that `make` fills, unless it has. `result.json` keeps what it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "result.json").exists():
        write_json(folder / "result.json", make(folder))
    return folder


def base_weights(config: RunConfig, work: Path) -> Path:
    """The file of the trained weights of the base network, in `work`, as stage `base` writes it; trained once."""
    settings, model, data = config.base, config.model, config.data
    folder = once(work / "base", lambda folder: base_network.run(settings, model, data, folder, Terminal()))
    return folder / base_network.WEIGHTS_FILE


def settings_of(overrides: Sequence[str]) -> RunConfig:
    """The settings of a run with these overrides."""
    return validate(RunConfig, compose_config("config", list(overrides)))


def worked(command: str, overrides: Sequence[str], output: Path) -> dict[str, Any]:
    """The last stage of a command with one device: its `folder` and `result`. Goes on from what is in `output`."""
    return stages_of(command, overrides, output)[-1]


def stages_of(command: str, overrides: Sequence[str], output: Path) -> list[dict[str, Any]]:
    """All stages of a command in their order: the name, `stage`, the `folder` and the `result` of each.

    Goes on from what is in `output`.
    """
    words = [sys.executable, "-m", "flows.cli", command, f"output_dir={output.resolve()}", *overrides]
    with TemporaryDirectory() as folder:
        told = Path(folder) / "result.json"
        subprocess.run([*words, "--json", str(told)], check=True)
        stages: list[dict[str, Any]] = json.loads(told.read_text())["stages"]
    return stages
