"""A small real training that the tests share; run as a script, it is a pipeline that can be killed.

`python small_training.py FOLDER PROCESSES`
"""

import sys
from pathlib import Path

from tasks.base.progress import Progress, Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training import base_network as base

EPOCHS = 3
STEPS = 18 * EPOCHS
MODEL = ModelSettings(name="test_resnet", options={"drop_rate": 0.1})


def settings(processes: int) -> base.Settings:
    return base.Settings(
        epochs=EPOCHS,
        batch_size=64,
        micro_batch=32,
        optimiser="sgd",
        learning_rate=0.05,
        weight_decay=1e-4,
        processes=processes,
        checkpoint_every_s=0.5,
        recalibration_images=256,
        device="cpu",
        precision="float64",
    )


def train(folder: Path, processes: int, progress: Progress | None = None) -> StageResult:
    """Base training of timm's test_resnet on the digits."""
    folder.mkdir(exist_ok=True)
    return base.run(settings(processes), MODEL, DataSettings(kind="digits"), folder, progress or Silent())


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
