"""The job that a launcher passes to its workers, as one JSON file, and the phases of its training.

Each phase has a strategy, a number of epochs, and its own rise and fall of the learning rate.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict

from tasks.base.artifacts import read_json
from tasks.base.own_code import is_live
from tasks.base.schemas.results import HISTORY_FILE
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.training.finetune.settings import FROZEN, Settings, Strategy, TrainSettings

REFINING = 0.7
"""Factor of the learning rate when `tune` continues with weights that an earlier phase trained."""
GENTLE = 0.3
"""Factor of the learning rate for a network that was trained before."""


@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """Steps with the same training: from `first_step` (exclusive) to `last_step`.

    strategy: None for a plain network. rate: the factor of the learning rate. part: the position of the trained exit.
    """

    strategy: Strategy | None
    first_step: int
    last_step: int
    rate: float = 1.0
    part: int | None = None

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.last_step - self.first_step


def phases_of(
    settings: Settings | None, epochs: int, steps_per_epoch: int, total_steps: int, exits: int = 0
) -> list[TrainingPhase]:
    """The phases of a training, in order; phases that `total_steps` does not reach are left out.

    exits: number of exits; `staged` has a phase for each.
    """
    if settings is None:
        return [TrainingPhase(None, 0, total_steps)]
    assert settings.strategies, f"the strategy is {settings.strategy}"
    found, first = [], 0
    shares = settings.phase_shares or (1.0,) * len(settings.strategies)
    rates = settings.phase_rates or default_rates(settings.strategies, gentle=bool(settings.gentle))
    for strategy, own, rate in zip(settings.strategies, split_epochs(epochs, shares), rates, strict=True):
        stages = split_epochs(own, settings.exits.shares or (1.0,) * exits) if strategy == "staged" else [own]
        for part, length in enumerate(stages):
            last = min(first + length * steps_per_epoch, total_steps)
            if last > first:
                found.append(TrainingPhase(strategy, first, last, rate, part if strategy == "staged" else None))
            first = last
    return found


def default_rates(strategies: Sequence[Strategy], *, gentle: bool = False) -> list[float]:
    """Factors of the learning rate: smaller if `tune` continues after an earlier phase.

    gentle: smaller, too, for phases that train the network's own weights.
    """
    own = [GENTLE if gentle and strategy not in FROZEN else 1.0 for strategy in strategies]
    return [
        REFINING if place and strategy == "tune" else rate
        for place, (strategy, rate) in enumerate(zip(strategies, own, strict=True))
    ]


def split_epochs(epochs: int, shares: Sequence[float]) -> list[int]:
    """Split epochs by shares, at least one for each: the split nearest to the shares, the earlier share first among equals."""
    assert epochs >= len(shares)
    found = [1] * len(shares)
    for _ in range(epochs - len(shares)):
        wanted = [share / sum(shares) * epochs for share in shares]
        missing = [want - have for want, have in zip(wanted, found, strict=True)]
        found[missing.index(max(missing))] += 1
    return found


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
    def is_live(self) -> bool:
        """Whether the network, the samples, the loss or the score are objects of this process, which no other one has."""
        return any(map(is_live, (*self.data.functions.values(), self.model.name if self.model else None)))

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
