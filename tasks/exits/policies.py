"""`policies.json`: thresholds for early exits of some SubNets of one device, with the promise and the test results."""

from typing import Any, ClassVar

from tasks.base.schemas.stored import Named, Predicted, Record, Stored

POLICIES_FILE = "policies.json"
TABLE_FILE = "exit_table.json"
"""`adaptive_runtime.exits.ExitTable`: measured choices, for the choice by resources."""
THRESHOLDS_FILE = "{}.thresholds.json"
"""`adaptive_runtime.exits.Thresholds` of a SubNet, by its digest."""


class MeasuredExit(Record):
    """One exit of a SubNet.

    alone_ms: measured latency of the SubNet that ends there. latency_ms: latency with the earlier heads; with thresholds, only
    with the needed heads. accuracy: accuracy on all images, by split. threshold: None if no image leaves, and behind the full
    answer. share, share_accuracy: share and accuracy of the test images that leave there; None without thresholds.
    """

    exit: str
    alone_ms: float
    latency_ms: float
    accuracy: dict[str, float]
    threshold: float | None = None
    share: float | None = None
    share_accuracy: float | None = None


class ClassLeaving(Record):
    """The test images of one class. early: share that leaves before the full answer."""

    name: str
    images: int
    early: float
    expected_ms: float


class LeavingImage(Record):
    """A test image. file: its picture, in the stage's folder. label, answer: names of classes."""

    file: str
    label: str
    answer: str
    exit: str
    confidence: float


class PolicyOutcome(Record):
    """Results of thresholds on the test images, which were not used for choosing them. Latencies of one sample [ms].

    full_accuracy: accuracy of the full answer. whole_ms: latency of the SubNet without exits. saved: share of it that is saved
    on average.
    """

    images: int
    accuracy: float
    full_accuracy: float
    expected_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    whole_ms: float
    saved: float
    expected_mj: float | None = None
    whole_mj: float | None = None

    @property
    def lost_points(self) -> float:
        """Accuracy lost by leaving early, in points."""
        return 100 * (self.full_accuracy - self.accuracy)


class SubnetPolicy(Named):
    """A SubNet with all its exits. thresholds: `adaptive_runtime.exits.Thresholds`; None: `reason` explains why it has none."""

    exits: tuple[MeasuredExit, ...]
    thresholds: dict[str, Any] | None = None
    reason: str | None = None
    by_measure: dict[str, float] | None = None
    tested: PolicyOutcome | None = None
    classes: tuple[ClassLeaving, ...] = ()
    earliest: tuple[LeavingImage, ...] = ()
    latest: tuple[LeavingImage, ...] = ()


class WeighedSubnet(Named):
    """A whole SubNet with its predicted latency [ms], and the mean if its samples leave at the rates of another SubNet."""

    whole_ms: float
    expected_ms: float
    accuracy: float


class ExpectedWinner(Predicted):
    """The best SubNet for a budget by expected latency; `predicted_ms` is the expected latency.

    early: samples leave at its exits; else it runs without exits. whole_ms: largest latency.
    """

    budget_ms: float
    whole_ms: float
    early: bool


class Policies(Stored):
    """The policies of one device. needed: smallest number of holdout images for the promise.

    rates_of: digest of the SubNet whose exit rates weigh other SubNets. reason: why the device has no thresholds at all.
    """

    STAGE: ClassVar[str] = "exits"
    COMMAND: ClassVar[str] = "export"

    device: str
    epsilon: float
    confidence: float
    images: int
    needed: int
    reason: str | None = None
    subnets: tuple[SubnetPolicy, ...] = ()
    rates_of: str | None = None
    weighed: tuple[WeighedSubnet, ...] = ()
    by_expected: tuple[ExpectedWinner, ...] = ()

    @property
    def best(self) -> SubnetPolicy | None:
        """The SubNet with thresholds whose early answers are the most accurate; None if none has thresholds."""
        tested = [(row.tested.accuracy, row) for row in self.subnets if row.tested is not None]
        return max(tested, key=lambda pair: pair[0], default=(0.0, None))[1]
