"""Placement of a SubNet's operators on several devices; `joint.json`: SubNets that were chosen together with a placement."""

from typing import Any, ClassVar

from profiling_agents.messages import ActivationCoding
from tasks.base.schemas.accuracy import Uncertainty
from tasks.base.schemas.front import Winner
from tasks.base.schemas.stored import Record, Stored

JOINT_FILE = "joint.json"
CODINGS_FILE = "codings.json"


class StayRow(Record):
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

    others_ms: latency of other methods' plans by name.
    """

    bandwidth_mbps: float
    latency_ms: float
    period_ms: float | None = None
    bottleneck: str | None = None
    stays: tuple[StayRow, ...]
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


class PlacedWinner(Winner):
    """The best SubNet within a latency budget over all devices, with its plan. coding: of sent values.

    lost_points: accuracy lost by the coding. home_ms: latency on the coordinator without offloading; None: it cannot run the
    SubNet.
    """

    coding: ActivationCoding
    lost_points: float
    home_ms: float | None
    plan: PlanRow


class JointFront(Stored):
    """The winners over several devices together. devices: coordinator first. pieces: number of parts that can be placed.

    coding_points: accuracy lost at each cut, by coding. uncertainty: of the winners' accuracies.
    """

    STAGE: ClassVar[str] = "search"
    COMMAND: ClassVar[str] = "search search.placement=[HOME,DEVICE]"
    KIND: ClassVar[str] = "joint front"

    devices: tuple[str, ...]
    winners: tuple[PlacedWinner, ...]
    pieces: int
    coding_points: dict[str, tuple[float, ...]]
    settings: dict[str, Any]
    """`tasks.search.Settings`."""
    uncertainty: Uncertainty = Uncertainty()
