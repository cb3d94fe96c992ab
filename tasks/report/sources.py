"""Sources of the report (folders of finished stages, and facts that only the run knows), and settings of the report stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.base.schemas.placed import PartitionAnswer
from tasks.data.problems import CLASSIFICATION


class Settings(BaseModel):
    """The headline's question: how fast is the fastest SubNet that loses at most this much accuracy?"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy_points: float = Field(
        3.0, ge=0, le=100, description="largest loss of test accuracy against the base model"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSources:
    """Stage folders of one device. `batch`: samples of one run.

    `sensitivities`: of its precision. `compared` is None if there are no baselines, `engine` if none was chosen, `policy` if
    the space has no exits, `levels` if the device stands for itself alone.
    """

    name: str
    batch: int = 1
    profile: Path
    latency: Path
    search: Path
    export: Path
    sensitivities: Path
    compared: Path | None = None
    engine: Path | None = None
    policy: Path | None = None
    levels: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingSources:
    """Stage folders of the first of two training stages.

    `part`: the path of the backbone; `data`: the kind of its data. `trained`: of the backbone as a classifier; None: the
    network had weights. `elastic`: of its SuperNet, `distilled`: of its SuperNet after training, `joined`: with the head, on
    the second data. `epochs`: of the classifier, and of the SuperNet.
    """

    part: str
    data: str
    trained: Path | None
    elastic: Path
    distilled: Path
    joined: Path
    epochs: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Stage folders of one run.

    `base` and `finetune` are None if they were not trained; `given` contains accuracies then. `pretraining`: of a run that is
    trained in two stages; None: in one. `partition`: the largest SubNet over several devices; None: it is not split. `streams`:
    of SubNets that played a stream that drifts. `stages`: rows of stage, seconds and cached (whether it came from the store),
    in the order of execution. `problem`: the learning problem; accuracies are its score by `metric` (None: its first one).
    """

    model: str
    data: str
    problem: str = CLASSIFICATION.name
    metric: str | None = None
    supernet: Path
    base: Path | None
    finetune: Path | None
    given: Path | None = None
    pretraining: PretrainingSources | None = None
    enumerate: Path
    sensitivities: Path
    devices: Sequence[DeviceSources]
    partition: PartitionAnswer | None = None
    streams: Sequence[Path] = ()
    stages: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
