"""Messages between client, service and child process: JSON, strict on both ends; and the errors of one line.

About a device: runtime, processor, sensors, limits, sandbox, and the engine (how a runtime runs whole networks, as choices
of its options). About jobs: lease, uploads, queue, settings and times of a model, pulls from a relay. About a stream: one
kept connection, over which a coordinator sends requests to a device that serves segments, or one device gives values to
another. Shapes count the batch axis first; times are milliseconds that keep the nanosecond clock's resolution.

All tensors of a stream are float32 in the SubNet. They cross it in one of three codings, without their shapes: both sides
know the shapes from the SubNet, whose digest they compare first.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

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
                raise AgentError(f"no runtime option '{name}' on this device with its threads; allowed: {allowed}")
            if choice not in known[name].choices:
                raise AgentError(f"runtime option '{name}': got '{choice}'; allowed: {', '.join(known[name].choices)}")
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


class LayerTiming(Message):
    """One layer that the runtime executed inside a model: the runtime's name and kind of the layer, and the blobs it wrote.

    `time_ms`: interquartile mean over the runs; 0 is below the resolution of the runtime's clock.
    """

    name: str = Field(max_length=1024)
    kind: str = Field(max_length=256)
    outputs: tuple[str, ...] = ()
    time_ms: float = Field(ge=0.0)


class Timing(Message):
    """Statistics of one timing: p50, p90 over `n` samples [ms per run], each the mean of `repeats` runs."""

    p50_ms: float = Field(gt=0.0)
    p90_ms: float = Field(gt=0.0)
    spread: float = Field(ge=0.0)
    n: int = Field(ge=1)
    repeats: int = Field(ge=1)
    noisy: bool
    energy_mj: float | None = Field(default=None, gt=0.0)
    layers: tuple[LayerTiming, ...] = ()


class Measurement(Message):
    """Latency of one model, or the reason of a failure. A failure never has a time.

    `spread` = (p90 - p10) / p50. `noisy`: the spread was above the limit in a second measurement, too.
    `energy_mj`: energy of one run, by the device's sensors; None if not requested or unknown.
    """

    key: Name
    state: Literal["ok", "failed"]
    reason: str | None = None
    p50_ms: float | None = Field(default=None, gt=0.0)
    p90_ms: float | None = Field(default=None, gt=0.0)
    spread: float | None = Field(default=None, ge=0.0)
    n: int = 0
    repeats: int = 0
    noisy: bool = False
    energy_mj: float | None = Field(default=None, gt=0.0)
    layers: tuple[LayerTiming, ...] = ()

    @model_validator(mode="after")
    def _state_agrees(self) -> Self:
        times = (self.p50_ms, self.p90_ms, self.spread)
        if self.state == "failed" and self.energy_mj is not None:
            raise ValueError("a failed measurement has no energy")
        if self.state == "ok" and None in times:
            raise ValueError("an ok measurement has times")
        if self.state == "failed" and (self.reason is None or times != (None, None, None)):
            raise ValueError("a failed measurement has a reason and no times")
        return self

    @classmethod
    def ok(cls, key: str, timing: Timing) -> "Measurement":
        """A measured model."""
        return cls(key=key, state="ok", **timing.model_dump())

    @classmethod
    def failed(cls, key: str, reason: str) -> "Measurement":
        """A failure, with its reason."""
        return cls(key=key, state="failed", reason=" ".join(reason.split())[:500])


class Pulled(Message):
    """Header of a message that an agent pulls from its relay: one request of a client, whose body follows."""

    request: Nonce
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, Field(pattern=r"^/v1/[a-z]+(/[0-9]{1,15})?$")]
    lease: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""
    checksum: Checksum = ""


class Answered(Message):
    """Header of an answer that an agent sends to its relay; the body follows."""

    status: int = Field(ge=200, le=599)
    content_type: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""
    retry_after: Annotated[str, Field(pattern=r"^[0-9]{0,6}$")] = ""
    checksum: Checksum = ""


LAYER_RUNS = 5
"""Fewest runs of a model in which its layers are timed."""


class MeasureSettings(Message):
    """How one model is timed; the defaults cost about 40 ms for a small operator.

    Runs are repeated until one sample lasts `sample_us`. Samples come in blocks with pauses between them. Sampling
    stops when the 95 % confidence interval of p50 is within ± `confidence` of p50, or at `time_cap_ms` (pauses
    included; `min_samples` come first). With one thread, an interrupted sample counts with its CPU time. With several
    threads it is left out, unless fewer than `min_samples` are left. With one thread, samples on a core that other
    processes slow down are left out, too. The agent waits for a calm core up to `patience` times as long as the cap;
    after that, slow samples count, and the time is flagged noisy. A model whose `spread` = (p90 - p10) / p50 is above
    `spread_limit` is measured once more, then flagged noisy.

    `layers_ms` above 0 (warm caches only): the runtime's layers are timed inside the model for this long afterwards.
    `cache` "cold": the processor's caches are emptied before each sample, which is then a single run.
    `energy_ms` above 0 (warm caches only): the model runs for this long while the device's sensors count the energy.
    """

    warmup_ms: float = Field(default=4.0, ge=0.0, le=10_000.0)
    warmup_runs: int = Field(default=2, ge=1, le=1_000)
    sample_us: float = Field(default=250.0, ge=10.0, le=1_000_000.0)
    samples_per_block: int = Field(default=8, ge=1, le=1_000)
    min_blocks: int = Field(default=3, ge=1, le=1_000)
    min_samples: int = Field(default=5, ge=3, le=10_000)
    block_pause_ms: float = Field(default=1.0, ge=0.0, le=1_000.0)
    time_cap_ms: float = Field(default=30.0, ge=1.0, le=600_000.0)
    patience: float = Field(default=10.0, ge=0.0, le=1_000.0)
    confidence: float = Field(default=0.02, gt=0.0, le=1.0)
    spread_limit: float = Field(default=0.25, gt=0.0)
    cache: Cache = "warm"
    layers_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    energy_ms: float = Field(default=0.0, ge=0.0, le=600_000.0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _energy_and_layers_are_those_of_warm_runs(self) -> Self:
        if self.cache == "cold" and self.layers_ms:
            raise ValueError(
                "layers_ms with cache 'cold': layers are timed with warm ones; allowed: 0, or cache 'warm'"
            )
        if self.cache == "cold" and self.energy_ms:
            raise ValueError("energy_ms with cache 'cold' would count the emptying too; allowed: 0, or cache 'warm'")
        return self


FILES_OF_FORMAT: dict[str, tuple[int, ...]] = {"onnx": (1,), "ncnn": (1, 2), "executorch": (1,)}
MAX_JOBS_PER_BATCH = 256


class LeaseRequest(Message):
    """Request for exclusive use of the device for `ttl_s` seconds; renew before they pass.

    `lease`: random, made by the client, so that asking again after a lost answer is the same request.
    """

    lease: Nonce
    ttl_s: float = Field(default=30.0, ge=0.2, le=600.0)


class LeaseGranted(Message):
    """The device is yours for `expires_in_s`, unless renewed. `lease` goes into the `Lease` header."""

    lease: Nonce
    expires_in_s: float


class ModelStored(Message):
    """The agent's own digest of the bytes it received."""

    sha256: Digest
    size: int


class JobMessage(Message):
    """One model to run: digests of its uploaded files, and its inputs and outputs by name.

    ncnn: files (param, bin), or (param,) with zeros for all weights: it can then be timed, but not run for its outputs.
    executorch: one program (.pte), which has no names: the job names its inputs and outputs in order.
    `output_shapes` restores shapes that the runtime does not keep. `engine`: how the runtime runs it.
    """

    key: Name
    format: Format
    files: tuple[Digest, ...]
    input_names: tuple[Name, ...] = Field(max_length=64)
    input_shapes: tuple[Shape, ...]
    output_names: tuple[Name, ...] = Field(min_length=1, max_length=64)
    output_shapes: tuple[Shape, ...] | None = None
    engine: Engine = DEFAULT_ENGINE

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if len(self.files) not in (allowed := FILES_OF_FORMAT[self.format]):
            raise ValueError(f"{self.format} takes {' or '.join(map(str, allowed))} file(s), got {len(self.files)}")
        if len(self.input_shapes) != len(self.input_names):
            raise ValueError(f"{len(self.input_names)} input names but {len(self.input_shapes)} input shapes")
        if self.output_shapes is not None and len(self.output_shapes) != len(self.output_names):
            raise ValueError(f"{len(self.output_names)} output names but {len(self.output_shapes)} output shapes")
        return self


class JobsRequest(Message):
    """Models to be measured one after the other.

    Jobs of a lease are numbered from 0 in the order of submission. `batch`: random, made by the client, so that
    sending the last batch again after a lost answer queues nothing twice.
    """

    batch: Nonce
    jobs: tuple[JobMessage, ...] = Field(min_length=1, max_length=MAX_JOBS_PER_BATCH)
    settings: MeasureSettings = MeasureSettings()


class JobsQueued(Message):
    """The jobs of a batch have the numbers from `first` up to, but not including, `next`."""

    first: int
    next: int


class JobProgress(Message):
    """One job and the queue around it. `position`: jobs in front of it (0: running, next, or done).

    `done` and `total` count all jobs of the lease; `rest_s` [s] estimates when the last one is done (None: unknown).
    """

    number: int
    state: Literal["queued", "running", "done"]
    position: int
    done: int
    total: int
    rest_s: float | None


STREAM_PROTOCOL = 2
"""Raised with every incompatible change of a stream."""
MOST_SEGMENTS = 256
MOST_BOUNDARY_BYTES = 1 << 28
"""Limit for the fp32 bytes of all tensors that enter or leave segments together."""
MOST_PROBE_BYTES = 1 << 18
MOST_WITHIN_MS = 600_000.0

ActivationCoding = Literal["fp32", "fp16", "int8"]
CODED_BYTES: dict[ActivationCoding, int] = {"fp32": 4, "fp16": 2, "int8": 1}
"""Bytes per value."""
RequestNumber = Annotated[int, Field(ge=0, lt=2**53)]
Milliseconds = Annotated[float, Field(ge=0.0)]
ProbeBytes = Annotated[int, Field(ge=0, le=MOST_PROBE_BYTES)]


class ServedSubNet(Message):
    """Segments of one SubNet in running order; each reads the network's input and outputs of segments before it.

    answer: the network's result, an output of the last segment. file_bytes: size of each file by its sha256.
    """

    segments: Annotated[tuple[JobMessage, ...], Field(min_length=1, max_length=MOST_SEGMENTS)]
    input: Name
    answer: Name
    file_bytes: dict[Digest, Annotated[int, Field(ge=1)]]

    @model_validator(mode="after")
    def _segments_read_what_is_there(self) -> Self:
        shapes: dict[str, Shape] = {}
        for number, segment in enumerate(self.segments):
            if segment.output_shapes is None:
                raise ValueError(f"segment {number} states no output shapes")
            for name, shape in zip(segment.input_names, segment.input_shapes, strict=True):
                known = shapes.setdefault(name, shape) if name == self.input else shapes.get(name)
                if known != shape:
                    got = "nothing before it gives" if known is None else f"is {known} elsewhere, not {shape}"
                    raise ValueError(f"segment {number} reads '{name}', which {got}")
            for name, shape in zip(segment.output_names, segment.output_shapes, strict=True):
                if name in shapes or name == self.input:
                    raise ValueError(f"segment {number} gives '{name}', which is there already")
                shapes[name] = shape
        if self.answer not in self.segments[-1].output_names:
            raise ValueError(f"the last segment does not give the answer '{self.answer}'")
        if self.input not in shapes:
            raise ValueError(f"no segment reads the input '{self.input}'")
        if {digest for segment in self.segments for digest in segment.files} != set(self.file_bytes):
            raise ValueError("file_bytes does not name the files of the segments")
        if 4 * sum(map(math.prod, shapes.values())) > MOST_BOUNDARY_BYTES:
            raise ValueError(f"its tensors have more than {MOST_BOUNDARY_BYTES} bytes")
        return self

    @property
    def digest(self) -> str:
        """sha256 of the whole message: names, shapes, and the digests of the files."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every value that enters or leaves a segment."""
        found: dict[str, Shape] = {}
        for one in self.segments:
            assert one.output_shapes is not None, "checked"
            found |= zip(one.input_names, one.input_shapes, strict=True)
            found |= zip(one.output_names, one.output_shapes, strict=True)
        return found

    def entering(self, first: int, last: int) -> tuple[str, ...]:
        """Values that segments first … last read from outside: each once, by first use."""
        made = {name for one in self.segments[first : last + 1] for name in one.output_names}
        read = (name for one in self.segments[first : last + 1] for name in one.input_names)
        return tuple(dict.fromkeys(name for name in read if name not in made))

    def leaving(self, first: int, last: int) -> tuple[str, ...]:
        """Outputs of segments first … last that later segments read, or the answer."""
        later = {name for one in self.segments[last + 1 :] for name in one.input_names} | {self.answer}
        made = (name for one in self.segments[first : last + 1] for name in one.output_names)
        return tuple(name for name in made if name in later)

    def has(self, first: int, last: int) -> bool:
        """Whether first … last are segments of this SubNet."""
        return 0 <= first <= last < len(self.segments)


class SentActivation(Message):
    """The coding of one tensor. scale: for int8, a value is its integer times the scale; one scale for the whole tensor."""

    coding: ActivationCoding
    scale: Annotated[float, Field(gt=0.0)] = 1.0


Activations = Annotated[tuple[SentActivation, ...], Field(max_length=256)]


def coded_bytes(shapes: Iterable[Shape], activations: Iterable[SentActivation]) -> int:
    """Bytes of the coded tensors."""
    return sum(math.prod(shape) * CODED_BYTES[one.coding] for shape, one in zip(shapes, activations, strict=True))


class Hello(Message):
    """The coordinator's first message, with the token."""

    kind: Literal["hello"] = "hello"
    protocol: int
    token: Annotated[str, Field(max_length=256)]


class HelloDevice(Message):
    """The first message of another device that gives values. proof: shows that a coordinator with this device's token sent it.

    digest: the SubNet of the values. `profiling_agents.streams.proof_of` makes the proof.
    """

    kind: Literal["hello_device"] = "hello_device"
    protocol: int
    digest: Digest
    proof: Digest


class Welcome(Message):
    """The device's answer to a right token: its description, and the file formats that it takes.

    hands: the device's operator allows it to give values to other devices.
    """

    kind: Literal["welcome"] = "welcome"
    protocol: int
    backend: Name
    precision: Name
    threads: int
    fingerprint: Name
    formats: tuple[Format, ...]
    hands: bool = False


class LoadSubNet(Message):
    """The coordinator wants to run segments of this SubNet from now on."""

    kind: Literal["load"] = "load"
    subnet: ServedSubNet


class LoadedSubNet(Message):
    """The SubNet with this digest is ready, or files are missing: the coordinator sends them and asks again."""

    kind: Literal["loaded"] = "loaded"
    digest: Digest
    missing: tuple[Digest, ...] = ()


class SentFile(Message):
    """A missing file, whose bytes follow; the answer is `KeptFile`."""

    kind: Literal["file"] = "file"
    sha256: Digest


class KeptFile(Message):
    """The device's own digest of the received bytes."""

    kind: Literal["kept"] = "kept"
    sha256: Digest


class Receiver(Message):
    """The device that takes the outputs of a run instead of the coordinator: its address, and a proof for the giving device.

    digest: its SubNet. ticket: identifies its run that waits for the values.
    """

    url: Annotated[str, Field(max_length=300)]
    digest: Digest
    proof: Digest
    ticket: Nonce


class RunSegments(Message):
    """Run segments first … last on `ServedSubNet.entering`, whose bytes follow in order. coding: for the answer's tensors.

    ticket: no tensors follow; another device or the coordinator sends them with this ticket. receiver: device that takes the
    outputs. within_ms: time limit for receiving values, and for giving them.
    """

    kind: Literal["run"] = "run"
    request: RequestNumber
    first: int
    last: int
    tensors: Activations
    coding: ActivationCoding
    ticket: Nonce | None = None
    receiver: Receiver | None = None
    within_ms: Annotated[float, Field(ge=0.0, le=MOST_WITHIN_MS)] = 0.0


class GivenTimes(Message):
    """Values that another device took: bytes; total time; and the time from the head of their frame to its end."""

    bytes: Annotated[int, Field(ge=0)]
    total_ms: Milliseconds
    received_ms: Milliseconds


class RanSegments(Message):
    """`ServedSubNet.leaving`, whose bytes follow in order.

    received_ms: from the head of the values to their last byte. waited_ms, computed_ms: time waiting for and on the processor.
    given: the receiver has the values, and none follow. not_given: why they follow although the run has a receiver.
    """

    kind: Literal["ran"] = "ran"
    request: RequestNumber
    tensors: Activations
    received_ms: Milliseconds
    waited_ms: Milliseconds
    computed_ms: Milliseconds
    given: GivenTimes | None = None
    not_given: Annotated[str, Field(max_length=300)] = ""


class MissedValues(Message):
    """The values for a run did not arrive in time; the run waits no longer."""

    kind: Literal["missed"] = "missed"
    request: RequestNumber


class GivenValues(Message):
    """Values for a run that waits with this ticket, whose bytes follow in the order of `ServedSubNet.entering`."""

    kind: Literal["give"] = "give"
    request: RequestNumber
    ticket: Nonce
    tensors: Activations


class TookValues(Message):
    """The answer to `GivenValues`. received_ms: from the head of the values to their last byte."""

    kind: Literal["took"] = "took"
    request: RequestNumber
    received_ms: Milliseconds


class SentProbe(Message):
    """Meaningless bytes follow; `back` bytes are to come back."""

    kind: Literal["probe"] = "probe"
    request: RequestNumber
    bytes: ProbeBytes
    back: ProbeBytes


class ReturnedProbe(Message):
    """The answer to a probe, with meaningless bytes. received_ms: from the head of the probe to its last byte."""

    kind: Literal["probed"] = "probed"
    request: RequestNumber
    bytes: ProbeBytes
    received_ms: Milliseconds


class RefusedStream(Message):
    """The last message of a connection, with the reason of its end. final: the same request would be refused again."""

    kind: Literal["refused"] = "refused"
    line: Annotated[str, Field(max_length=1024)]
    final: bool = True


CoordinatorMessage = Annotated[
    Hello | HelloDevice | LoadSubNet | SentFile | RunSegments | GivenValues | SentProbe, Field(discriminator="kind")
]
DeviceMessage = Annotated[
    Welcome | LoadedSubNet | KeptFile | RanSegments | MissedValues | TookValues | ReturnedProbe | RefusedStream,
    Field(discriminator="kind"),
]
COORDINATOR_MESSAGES: TypeAdapter[CoordinatorMessage] = TypeAdapter(CoordinatorMessage)
DEVICE_MESSAGES: TypeAdapter[DeviceMessage] = TypeAdapter(DeviceMessage)


class ChildSegments(Message):
    """Service to child: load a SubNet, or run segments of the loaded SubNet on the tensors that follow."""

    load: ServedSubNet | None = None
    first: int = 0
    last: int = 0
    tensors: Activations = ()
    coding: ActivationCoding = "fp32"


MAX_TENSORS_MIB = 256
"""Limit for the inputs, and for the outputs, of one run."""
TensorType = Literal["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
TENSOR_TYPES: tuple[TensorType, ...] = get_args(TensorType)


class TensorHeader(Message):
    """One tensor of a frame: little-endian, C order."""

    dtype: TensorType
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=8)]


class RunRequest(Message):
    """Header of a run: the job and its inputs, whose bytes follow in order."""

    job: JobMessage
    tensors: tuple[TensorHeader, ...] = Field(max_length=64)


class RunResult(Message):
    """Header of a run's answer: the outputs, whose bytes follow in order; or the reason of the failure."""

    tensors: tuple[TensorHeader, ...] = ()
    reason: str | None = None


class ChildRequest(Message):
    """Service to child: time one model, or run it once on the tensors that follow."""

    job: JobMessage
    settings: MeasureSettings | None = None
    tensors: tuple[TensorHeader, ...] = ()


class ChildReply(Message):
    """Child to service: the runtime and its sandbox (first frame), a timing, outputs, or the reason of a failure.

    activations: the coding of the outputs of segments. computed_ms: time to compute and code them.
    """

    runtime: RuntimeInfo | None = None
    sandbox: Sandbox = Sandbox()
    timing: Timing | None = None
    tensors: tuple[TensorHeader, ...] = ()
    activations: tuple[SentActivation, ...] = ()
    computed_ms: float = 0.0
    reason: str | None = None
    out_of_memory: bool = False
