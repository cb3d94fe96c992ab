"""Messages about a device (runtime, processor, sensors, limits, sandbox, engine), and the base of all messages.

The base has strictness, types of names and shapes, and errors of one line. Shapes count the batch axis first; times are
milliseconds that keep the nanosecond clock's resolution. The engine is how a runtime runs whole networks, as choices of
its options.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from profiling_agents.lines import one_line_of

Format = Literal["onnx", "ncnn", "executorch"]
Precision = Literal["fp32", "bf16", "fp16", "fp16_storage", "int8"]
Cache = Literal["warm", "cold"]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Checksum = Annotated[str, Field(pattern=r"^([0-9a-f]{8})?$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Dimension = Annotated[int, Field(ge=1, lt=2**31)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=8)]
MIB = 1 << 20


class AgentError(Exception):
    """Something the user can mend (unreachable, wrong token, busy, …); `str(error)` is one finished line."""

    def __init__(self, line: str) -> None:
        super().__init__(one_line_of(line))


class AgentBusyError(AgentError):
    """The device is leased by another client; it will be free later."""


class Message(BaseModel):
    """Base of all messages: immutable, unknown fields refused, NaN and infinity refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ErrorBody(Message):
    """Body of every refusal: one line for the user. `missing`: files to upload (again) first."""

    error: str
    missing: tuple[Digest, ...] = ()


def one_line(error: ValidationError) -> str:
    """The first fault of a message: its place, its description, and the number of further faults."""
    faults = error.errors(include_url=False, include_context=False)
    where = ".".join(str(part) for part in faults[0]["loc"]) or "message"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{where}: {faults[0]['msg']}{more}"


MOST_OPTIONS = 32
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Setting = bool | int | Word
RuntimeSettings = Annotated[dict[Word, Setting], Field(max_length=MOST_OPTIONS)]
"""Runtime settings, by the names of the runtime's own API."""


class EngineOption(Message):
    """An option of a runtime. `default`: the choice that the runtime's agent takes by itself. `does`: one sentence.

    `by_operator`: a model's file can make the same choice for each of its operators. `sets`: the changes of the runtime's
    settings per choice; a choice without an entry changes nothing.
    """

    name: Word
    choices: tuple[Word, ...] = Field(min_length=2, max_length=MOST_OPTIONS)
    default: Word
    does: str = Field(max_length=256)
    by_operator: bool = False
    sets: dict[Word, RuntimeSettings] = Field(default={}, max_length=MOST_OPTIONS)

    @model_validator(mode="after")
    def _names_choices(self) -> Self:
        for choice in (self.default, *self.sets):
            if choice not in self.choices:
                raise ValueError(f"choice '{choice}'; allowed: {', '.join(self.choices)}")
        return self


class Engine(Message):
    """Choices by option, in the order of names. An option without a choice has its default.

    An empty engine has all defaults.
    """

    choices: dict[Word, Word] = Field(default={}, max_length=MOST_OPTIONS)

    @field_validator("choices")
    @classmethod
    def _in_order(cls, choices: dict[str, str]) -> dict[str, str]:
        return dict(sorted(choices.items()))

    @property
    def text(self) -> str:
        """Text for people and for keys: `graph=basic order=priority`; "" for an empty engine."""
        return " ".join(f"{name}={choice}" for name, choice in self.choices.items())

    def changed(self, option: str, choice: str) -> "Engine":
        """The engine with one option changed to another choice."""
        return Engine(choices={**self.choices, option: choice})

    def settled(self, options: Sequence[EngineOption]) -> Mapping[str, str]:
        """The choice of every option of a runtime. AgentError, one line, for an unknown option or choice."""
        known = {option.name: option for option in options}
        for name, choice in self.choices.items():
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise AgentError(f"engine: no option '{name}' on this device with its threads; allowed: {allowed}")
            if choice not in known[name].choices:
                raise AgentError(f"engine option '{name}': got '{choice}'; allowed: {', '.join(known[name].choices)}")
        return {name: self.choices.get(name, option.default) for name, option in known.items()}

    def applied(self, settings: RuntimeSettings, options: Sequence[EngineOption]) -> RuntimeSettings:
        """The runtime's settings with the changes of this engine. AgentError as in `settled`."""
        choices = self.settled(options)
        changes = [option.sets.get(choices[option.name], {}) for option in options]
        return {**settings, **{name: value for change in changes for name, value in change.items()}}

    def without_defaults(self, options: Sequence[EngineOption]) -> "Engine":
        """The same engine without choices that equal the defaults, so that equal engines have one text.

        AgentError as in `settled`.
        """
        self.settled(options)
        defaults = {option.name: option.default for option in options}
        return Engine(choices={name: choice for name, choice in self.choices.items() if choice != defaults[name]})

    def fingerprint(self, device: str) -> str:
        """The fingerprint (hex) of a device whose models run with this engine; the device's own with an empty engine."""
        return hashlib.sha256(f"{device} {self.text}".encode()).hexdigest() if self.choices else device


DEFAULT_ENGINE = Engine()
"""The engine with all defaults of a runtime."""


PROTOCOL = 7
"""Raised with every incompatible change of a message. Client and agent must have the same number."""


PowerSource = Literal["ac", "battery"]


class RuntimeInfo(Message):
    """The inference runtime as its own process reports it. `build`: hash of the library that runs.

    `precision`: precision of the computation; for int8, models are quantised and their remaining layers run in fp32.
    `precisions`: the precisions that a probe found to compute here. `arithmetic`: the precision in which products of fp16 are
    added up. `provider`: the implementation of the runtime. `accelerator`: its processor, if this is not the CPU.
    `settings`: runtime settings of the default engine, by the names of its API. `engine_options`: the options that a client
    may choose for running whole networks with these threads.
    """

    backend: str
    version: str
    build: str
    formats: tuple[Format, ...]
    precision: Precision = "fp32"
    precisions: tuple[Precision, ...] = ("fp32",)
    arithmetic: Precision | None = None
    provider: str = "cpu"
    accelerator: str | None = None
    settings: RuntimeSettings = Field(default={})
    engine_options: tuple[EngineOption, ...] = ()


class CoreState(Message):
    """One core: `capacity` distinguishes big from little cores; the allowed frequencies and the present frequency in MHz."""

    number: int
    capacity: int | None
    governor: str | None
    min_mhz: float | None
    max_mhz: float | None
    current_mhz: float | None


class Temperature(Message):
    """The reading of one temperature sensor."""

    name: str
    celsius: float


class PowerSensor(Message):
    """One readable sensor: a counter of energy, or the momentary power."""

    name: str
    kind: Literal["rapl", "ina3221", "hwmon", "nvml"]
    measures: Literal["energy", "power"]


class DeviceState(Message):
    """Values that change while a device is up; a value that cannot be read is None.

    `throttle_events`: how often the cores were slowed down since the system started. `throttled`: whether they are slow now.
    """

    cores: tuple[CoreState, ...]
    memory_available_mib: int
    temperatures: tuple[Temperature, ...]
    throttle_events: int | None
    throttled: bool | None
    power_source: PowerSource | None


class Sandbox(Message):
    """The sandbox between a model and the rest of the device: its parts that stand, and a line for each missing part."""

    standing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Capabilities(RuntimeInfo):
    """One device: runtime, processor, limits. Measurements with equal `fingerprint` are comparable.

    `state` is read anew whenever the device is asked. `running_system`: equal for processes that share processors.
    `engine`: the engine with which a client runs its models; its choices count in the `fingerprint` that the client sees.
    `walls`: the sandbox, by the key that released agents and clients know.
    """

    protocol: int
    threads: int
    cores: tuple[int, ...]
    cores_shared: bool
    pinned: bool
    cpu_model: str
    machine: str
    system: str
    governor: str | None
    frequency_mhz: float | None
    frequency_state: Literal["pinned", "as shipped", "unknown"]
    operating_system: str | None
    running_system: str | None
    power_sensors: tuple[PowerSensor, ...]
    state: DeviceState
    memory_mib: int
    memory_limit_mib: int
    cpu_limit_s: int
    wall_limit_s: float
    max_model_mib: int
    max_tensors_mib: int
    fingerprint: str
    walls: Sandbox = Sandbox()
    engine: Engine = DEFAULT_ENGINE
