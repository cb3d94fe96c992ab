"""A device: its runtime, processor, sensors, limits and sandbox."""

from typing import Literal

from pydantic import Field

from profiling_agents.messages.base import Format, Message, Precision
from profiling_agents.messages.engine import DEFAULT_ENGINE, Engine, EngineOption, RuntimeSettings

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
