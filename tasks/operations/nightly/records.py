"""The record of a night: one file that is written once and never changed."""

from typing import Any, ClassVar, Literal, NamedTuple

from tasks.base.schemas.stored import Record, Stored

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
    """A device in one night. facts: its runtime, processor and system, by name.

    latency_errors: relative errors of the latency predictor on held-out SubNets, by digest.
    """

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
