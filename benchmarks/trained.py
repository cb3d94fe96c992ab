"""SuperNets trained by the command line, for measurements that need real accuracies."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.compose import compose_config
from flows.config import RunConfig
from flows.validate import validate
from tasks.data import DataSettings
from tasks.predict.settings import Settings as PredictSettings


@dataclass(frozen=True, slots=True)
class Trained:
    """The folder of a trained SuperNet, what it is predicted with, and accuracies as its stage tells them."""

    supernet: Path
    data: DataSettings
    predict: PredictSettings
    result: dict[str, float]


def train(overrides: Sequence[str], output: Path) -> Trained:
    """`autotailor finetune`: base network, compiling, fine-tuning. Goes on from what is in `output`."""
    config = validate(RunConfig, compose_config("config", list(overrides)))
    command = [sys.executable, "-m", "flows.cli", "finetune", f"output_dir={output.resolve()}", *overrides]
    with TemporaryDirectory() as folder:
        told = Path(folder) / "result.json"
        subprocess.run([*command, "--json", str(told)], check=True)
        (stage,) = json.loads(told.read_text())["stages"]
    return Trained(Path(stage["folder"]) / "supernet", config.data, config.predict, stage["result"])
