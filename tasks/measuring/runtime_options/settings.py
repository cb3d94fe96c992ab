"""Settings of the stage "runtime_options", and its file: the chosen options of a device's runtime, and their trials."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from profiling_agents.messages import Engine, MeasureSettings, one_line
from tasks.base.schemas.stored import Record, Stored
from tasks.measuring.settings import TimingSettings, Tolerance

RUNTIME_OPTIONS_FILE = "runtime_options.json"


class Gain(Record):
    """Time with an engine over time with another: geometric mean over SubNets, its 95 % interval if known, timed pairs."""

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

    STAGE: ClassVar[str] = "runtime_options"
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


def _words(choices: Any) -> Any:
    """The choices as text: YAML reads `on` and `off` as truth values, and 63 as a number."""
    switches = {True: "on", False: "off"}
    if not isinstance(choices, Mapping):
        return choices
    return {
        name: switches[choice] if isinstance(choice, bool) else str(choice) if isinstance(choice, int) else choice
        for name, choice in choices.items()
    }


def _in_form(choices: dict[str, str]) -> dict[str, str]:
    try:
        return Engine(choices=choices).choices
    except ValidationError as error:
        raise ValueError(one_line(error)) from error


Choices = Annotated[dict[str, str], BeforeValidator(_words), AfterValidator(_in_form)]
"""Option -> choice of an engine, as written in a config."""


class Settings(TimingSettings):
    """Settings of the search for an engine: the tried options, the SubNets, and the gain for which a choice is kept."""

    measure: MeasureSettings = MeasureSettings(warmup_ms=5.0, min_blocks=1, min_samples=3, time_cap_ms=30.0)
    tune: bool = Field(True, description="false: the runtime's defaults, and what is fixed")
    fixed: Choices = Field({}, description="option -> choice: taken as they are, the others are tried")
    random_subnets: int = Field(3, ge=0, le=100, description="SubNets besides the largest and the smallest")
    rounds: int = Field(6, ge=3, le=100, description="times that a choice is timed on each SubNet, at most")
    minimal_gain: float = Field(0.02, ge=0, lt=1, description="share of the time that a choice has to save")
    limit_s: float = Field(60.0, gt=0, description="after so long no further choice is tried")
    tolerance: Tolerance = Tolerance()
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _times_no_layers(self) -> Self:
        if self.measure.layers_ms or self.measure.energy_ms:
            raise ValueError("measure: layers_ms and energy_ms with a comparison of whole SubNets; allowed: 0")
        return self

    @property
    def wanted(self) -> bool:
        """Whether a device's engine may differ from its runtime's defaults."""
        return self.tune or bool(self.fixed)
