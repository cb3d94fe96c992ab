"""Records of nights, one file each in an output folder, and the settings of a night.

A record is written once, atomically, and never changed, so a killed night leaves earlier nights unchanged. Settings are
the latencies that are timed anew, the tolerances, and the actions that follow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tasks.base.errors import UserError
from tasks.base.schemas.stored import Record, Stored, Strict

Promotion = Literal["unless regressed", "always", "never"]


class Settings(Strict):
    """How a night is compared with the one before. Latencies and fronts in shares of themselves: 0.05 is 5 %."""

    operators: int = Field(
        40, ge=0, le=1000, description="of the largest SubNet, the slowest; timed alone on each device every night"
    )
    rounds: int = Field(5, ge=3, le=50, description="times that each operator and SubNet is loaded and timed anew")
    slower: float = Field(0.05, ge=0, le=1, description="share that a latency may rise by from one night to the next")
    smaller_front: float = Field(0.05, ge=0, le=1, description="share that the area under a front may shrink by")
    error_points: float = Field(
        2.0, ge=0, le=100, description="points that errors of predictors may rise by on held-out SubNets"
    )
    false_alarms: float = Field(
        0.01, gt=0, lt=1, description="probability that a night without any change is found worse, over all tests"
    )
    promote: Promotion = Field(
        "unless regressed", description="when the night's candidate becomes the champion in MLflow's model registry"
    )
    webhook_file: Path | None = Field(
        None, description="file with the URL that the message of a regression is posted to; null: none"
    )


FindingKind = Literal["operator", "SubNet", "front", "latency predictor", "accuracy predictor"]


class OperatorRounds(Record):
    """An operator, timed alone. rounds_ms: p50 of each calm round; empty if it failed or no round was calm."""

    digest: str
    title: str
    rounds_ms: tuple[float, ...]
    reason: str | None = None


class SubNetRounds(Record):
    """The largest SubNet, or a winner, timed as a whole. accuracy: on the test split; None if the largest is no winner."""

    digest: str
    title: str
    rounds_ms: tuple[float, ...]
    accuracy: float | None = None
    reason: str | None = None


class NightTimes(Stored):
    """Latencies of one device in one night. measured_with: a digest of the method; only equal digests are compared."""

    STAGE: ClassVar[str] = "watch"
    COMMAND: ClassVar[str] = "nightly"
    KIND: ClassVar[str] = "latencies of a night"

    measured_with: str
    largest: str
    operators: tuple[OperatorRounds, ...]
    subnets: tuple[SubNetRounds, ...]


class DeviceNight(Record):
    """A device in one night. facts: by name. latency_errors: relative, of the predictor on held-out SubNets, by digest."""

    fingerprint: str
    facts: dict[str, str]
    times: NightTimes
    latency_errors: dict[str, float]


class StageNight(Record):
    """A stage of a night. needs: titles of the stages that it reads. worked: it was run, not found complete.
    settings: those in its key; None if its folder does not contain them.
    """

    stage: str
    key: str
    code: str
    needs: tuple[str, ...]
    devices: tuple[str, ...]
    worked: bool
    seconds: float
    settings: dict[str, Any] | None = None


class StageChange(NamedTuple):
    """A stage that differs from the night before. worked: it was run again; why: reasons in a few words each."""

    stage: str
    worked: bool
    why: tuple[str, ...]


class Finding(Record):
    """A measure that is worse than tolerated. unit: of `before` and `now`. p_value: of the test that it is not worse."""

    device: str
    kind: FindingKind
    what: str
    name: str
    before: float | None
    now: float | None
    unit: Literal["ms", "area", "%", "points"]
    p_value: float

    @property
    def place(self) -> tuple[str, str, str]:
        """Key that identifies the finding when a device is measured again."""
        return self.device, self.kind, self.name


class Night(Stored):
    """One night.

    network: name of the run. run: its key. inputs: digests or versions, by name. settings: the config, except for sections that
    no stage reads; None in a record of version 1. supernet: digest of the trained SuperNet. test_images: number of images
    behind the accuracies. accuracy_errors: of the accuracy predictor on held-out SubNets [points], by digest. compared_with:
    when the night before began; None: there was none. promoted: it became the champion.
    """

    STAGE: ClassVar[str] = "nightly"
    KIND: ClassVar[str] = "record of a night"

    version: int = 2
    began: str
    network: str
    run: str
    settings: dict[str, Any] | None = None
    supernet: str
    inputs: dict[str, str]
    stages: tuple[StageNight, ...]
    devices: dict[str, DeviceNight]
    test_images: int
    accuracy_errors: dict[str, float]
    compared_with: str | None = None
    findings: tuple[Finding, ...] = ()
    promoted: bool = False

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Upgrade a record of version 1, which lacked settings."""
        return {**content, "version": 2} if content.get("version") == 1 else content


NIGHTS = "*.json"


@dataclass(frozen=True, slots=True)
class History:
    """The folder of the records. Files are added, and never changed; their names are the times at which nights began."""

    folder: Path

    def names(self) -> set[str]:
        """Names of the existing files."""
        return {file.name for file in self.folder.glob(NIGHTS)}

    def file(self, night: Night) -> Path:
        """The file of a night."""
        return self.folder / f"{datetime.fromisoformat(night.began):%Y%m%dT%H%M%S%fZ}.json"

    def nights(self, network: str, warn: Callable[[str], None]) -> list[Night]:
        """Nights of a network, the latest last. `warn` gets a line for each unreadable record, which is left out."""
        return [night for night in self._all(warn) if night.network == network]

    def latest(self, warn: Callable[[str], None]) -> list[Night]:
        """The latest night of each network. warn: as above."""
        return list({night.network: night for night in self._all(warn)}.values())

    def _all(self, warn: Callable[[str], None]) -> Iterator[Night]:
        for file in sorted(self.folder.glob(NIGHTS)):
            try:
                yield Night.read(file)
            except UserError as error:
                warn(f"left out: {error}")

    def add(self, night: Night) -> Path:
        """Write one more record, atomically. UserError if this fails."""
        file = self.file(night)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            night.write(file)
        except OSError as error:
            hint = "make room; the same command goes on"
            raise UserError(f"'{file}'", f"cannot be written ({error.strerror})", next_step=hint) from error
        return file
