"""`engine.json`: the options with which a device's runtime runs whole networks, and how they were chosen."""

from typing import ClassVar

from pydantic import Field

from profiling_agents.messages import Engine
from tasks.base.schemas.stored import Record, Stored

ENGINE_FILE = "engine.json"


class Gain(Record):
    """Time with an engine over time with another: the geometric mean over SubNets, and its 95 % interval, if known."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


class TriedChoice(Record):
    """A choice that was timed against the engine `beside`. `reason`: why it is not kept; None if it is kept."""

    option: str
    choice: str
    beside: dict[str, str]
    gain: Gain
    reason: str | None


class LeftOut(Record):
    """A choice that was not timed to the end, and why."""

    option: str
    choice: str
    reason: str


class TimedSubNet(Record):
    """A SubNet on which engines were compared: its latency with the runtime's defaults and with the chosen engine."""

    digest: str
    kind: str
    default_ms: float
    chosen_ms: float


class ChosenEngine(Stored):
    """The engine of one device. `gain`: gain over the runtime's defaults, timed anew after the choice; None: not compared.

    `fixed`: choices given by the settings. `options`: all options of the device: name -> choices, the default first. `failed`:
    SubNets on which nothing could be compared -> reason.
    """

    STAGE: ClassVar[str] = "engine"
    COMMAND: ClassVar[str] = "profile"

    device: str
    chosen: dict[str, str]
    fixed: dict[str, str] = Field(default_factory=dict)
    gain: Gain | None
    tried: tuple[TriedChoice, ...]
    left_out: tuple[LeftOut, ...]
    options: dict[str, tuple[str, ...]]
    subnets: tuple[TimedSubNet, ...]
    failed: dict[str, str] = Field(default_factory=dict)
    measured_s: float

    @property
    def engine(self) -> Engine:
        """The engine in the form that clients take."""
        return Engine(choices=self.chosen)

    @property
    def kept(self) -> tuple[TriedChoice, ...]:
        """The tried choices that the engine consists of, in order, without the fixed choices."""
        return tuple(one for one in self.tried if one.reason is None)

    @property
    def text(self) -> str:
        """Description for people."""
        return ", ".join(f"{option}={choice}" for option, choice in self.chosen.items()) or "the runtime's defaults"

    @property
    def speed_up(self) -> float:
        """Time with the runtime's defaults over time with the chosen engine."""
        return 1.0 if self.gain is None else 1 / self.gain.ratio
