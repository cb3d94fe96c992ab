"""Schemas of SubNets over devices: operators with their implementations, partitions, and chosen SubNets.

operators.json          every operator of any SubNet
implementations.json    the chosen implementations of operators on one device
chosen/DEVICE.json      one SubNet that a rule chose on one device, also the file of `search … --to FILE.json`

The result of a partition is JSON, too: cuts, and for each bandwidth a plan with other methods' plans.
"""

from typing import Any, ClassVar

from tasks.base.schemas.stored import Config, Record, Stored
from tasks.base.schemas.winners import Winner


class OperatorRow(Record):
    """An operator in running order. compute_ms: by device. flow: its number. beside: whether other flows run beside it."""

    title: str
    place: str
    macs: int
    parameters: int
    compute_ms: dict[str, float]
    flow: int
    beside: bool


class CutRow(Record):
    """A cut. cut: number of operators before it. values: names of the values that cross it. bytes: of all of them together."""

    cut: int
    values: tuple[str, ...]
    bytes: int


class SegmentRow(Record):
    """A segment: operators that one device runs without a change of device. time_ms: of their computation."""

    device: str
    operators: tuple[int, ...]
    time_ms: float


class TransferRow(Record):
    """Data sent from one device to another for one request. time_ms: of its bytes, without latencies of messages."""

    source: str
    target: str
    bytes: float
    messages: int
    time_ms: float


class PlanRow(Record):
    """A plan. bandwidth_mbps: of links that are not named. period_ms: between two answers, with objective=throughput.

    stays: the segments. others_ms: latency of other methods' plans by name.
    """

    bandwidth_mbps: float
    latency_ms: float
    period_ms: float | None = None
    bottleneck: str | None = None
    stays: tuple[SegmentRow, ...]
    transfers: tuple[TransferRow, ...]
    others_ms: dict[str, float]

    @property
    def text(self) -> str:
        """`phone 0–7, server 8–20`."""
        return ", ".join(f"{stay.device} {min(stay.operators)}–{max(stay.operators)}" for stay in self.stays)

    @property
    def sent_bytes(self) -> float:
        """Total bytes sent by a request."""
        return sum(transfer.bytes for transfer in self.transfers)


class PartitionAnswer(Stored):
    """Content of `autotailor partition --json FILE`. network: digest of the SubNet. returns: the answer goes back."""

    STAGE: ClassVar[str] = "partition"
    KIND: ClassVar[str] = "partition"

    network: str
    config: Config
    devices: tuple[str, ...]
    objective: str
    returns: bool
    private: int
    operators: tuple[OperatorRow, ...]
    cuts: tuple[CutRow, ...]
    plans: tuple[PlanRow, ...]


PLACED = ("plan", "coding")
"""Fields of earlier versions that are ignored."""


class ChosenSubNet(Stored):
    """A SubNet to continue with. rule: the reason for its choice, for people."""

    STAGE: ClassVar[str] = "search"
    COMMAND: ClassVar[str] = "search --budget-ms MS --to FILE.json"
    KIND: ClassVar[str] = "chosen SubNet"

    device: str
    rule: str
    subnet: Winner

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """The content without the plan that earlier versions added where SubNets were searched with their devices."""
        return {name: value for name, value in content.items() if name not in PLACED}


OPERATORS_FILE = "operators.json"
IMPLEMENTATIONS_FILE = "implementations.json"
LUT_FOLDER = "lut"
"""The folder of a device's look-up table."""
PARTS = "part-*.parquet"
"""Files of a look-up table."""


class UniqueOperator(Record):
    """An operator. feature: `OperatorFeature.to_json`. witness: difference between a SubNet that has it and the largest one."""

    digest: str
    feature: dict[str, Any]
    witness: Config


class Operators(Stored):
    """All unique operators, by rising digest."""

    STAGE: ClassVar[str] = "enumerate"
    KIND: ClassVar[str] = "operators"

    operators: tuple[UniqueOperator, ...]


class ChosenImplementations(Stored):
    """operators: implementations by operator (digest), for operators that do not run by the runtime's own choice."""

    STAGE: ClassVar[str] = "profile"
    KIND: ClassVar[str] = "implementations"

    operators: dict[str, str]


OWN_CHOICES = ChosenImplementations(operators={})
"""Every operator runs by the runtime's own choice."""
