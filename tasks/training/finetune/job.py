"""The job that a launcher passes to its workers, as one JSON file."""

from contextlib import suppress
from pathlib import Path
from typing import Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict

from tasks.base.artifacts import read_json
from tasks.base.schemas.results import HISTORY_FILE
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training.finetune.phases import TrainingPhase, phases_of
from tasks.training.finetune.settings import Settings, TrainSettings

JOB_FILE = "job.json"
CHECKPOINT_FILE = "checkpoint.safetensors"
LOG_FILE = "workers.log"
TORCHRUN = "torch.distributed.run"
"""The module that starts ranks if there are several, or if they may be restarted."""

FEW_STEPS = 50
"""A training with fewer steps hardly learns."""


class RankError(TypedDict):
    """The error of a failing rank, as the rank wrote it."""

    rank: int
    time_s: float
    line: str
    kind: Literal["user", "memory", "other"]


class Job(BaseModel):
    """Train a plain network (`model`, from `initial` weights) or a SuperNet (folder `supernet`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    data: DataSettings
    total_steps: int
    steps_per_epoch: int
    last_batch: int = 0
    """Samples of each epoch's last, smaller batch; 0: all batches are whole."""
    train: TrainSettings | None = None
    model: ModelSettings | None = None
    initial: Path | None = None
    finetune: Settings | None = None
    supernet: Path | None = None
    exits: tuple[str, ...] = ()
    """Exits of the SuperNet, in order of depth; the last is the whole network."""

    @property
    def settings(self) -> TrainSettings:
        """The settings of the loop."""
        settings = self.finetune or self.train
        assert settings is not None
        return settings

    @property
    def phases(self) -> list[TrainingPhase]:
        """The phases of the training, in order."""
        exits = len(self.exits)
        return phases_of(self.finetune, self.settings.epochs, self.steps_per_epoch, self.total_steps, exits)

    @property
    def plan(self) -> str:
        """A sentence on epochs, steps and batch size."""
        settings = self.settings
        last = f", the last of {self.last_batch}" if self.last_batch else ""
        few = ": few; a smaller batch_size makes more" if self.total_steps < FEW_STEPS else ""
        return (
            f"{settings.epochs} epoch{'s' if settings.epochs > 1 else ''} of {self.steps_per_epoch} steps with batches of "
            f"{settings.batch_size}{last}; {self.total_steps} steps{few}"
        )

    def with_settings(self, **changes: int) -> Self:
        """The same job with some settings changed."""
        field = "finetune" if self.finetune is not None else "train"
        return self.model_copy(update={field: self.settings.model_copy(update=changes)})

    @property
    def checkpoint(self) -> Path:
        """The file in which the workers leave their state."""
        return self.folder / CHECKPOINT_FILE

    @property
    def history(self) -> Path:
        """One JSON line per step."""
        return self.folder / HISTORY_FILE

    def error_file(self, rank: int) -> Path:
        """The file into which a failing rank writes its error."""
        return self.folder / f"error-rank{rank}.json"

    def errors(self) -> list[RankError]:
        """The errors of failing ranks on this machine: the user's own errors first, then by time."""
        found = []
        for file in self.folder.glob("error-rank*.json"):
            with suppress(FileNotFoundError):  # a restarted rank removes its own file
                found.append(read_json(file))
        return sorted(found, key=lambda error: (error["kind"] != "user", error["time_s"]))
