"""What travels between client, service and child process: JSON messages, strict on both ends; the errors.

Shapes count the batch axis first; times are milliseconds with the nanosecond clock's resolution kept.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Format = Literal["onnx", "ncnn"]
Precision = Literal["fp32", "bf16", "fp16", "fp16_storage"]
Cache = Literal["warm", "cold"]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Dimension = Annotated[int, Field(ge=1, lt=2**31)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=8)]

MIB = 1 << 20
FILES_OF_FORMAT: dict[str, tuple[int, ...]] = {"onnx": (1,), "ncnn": (1, 2)}
MAX_JOBS_PER_BATCH = 256
MAX_TENSORS_MIB = 256
"""Inputs or outputs of one run."""
TENSOR_TYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


class AgentError(Exception):
    """Something the user can mend (unreachable, wrong token, busy, …); `str(error)` is one finished line."""

    def __init__(self, line: str) -> None:
        super().__init__(" ".join(line.split()))


class AgentBusyError(AgentError):
    """The device is leased by another client; it will be free later."""


class Message(BaseModel):
    """Base of all messages: immutable, unknown fields refused, NaN and infinity refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ErrorBody(Message):
    """Body of every refusal: one line for the user. `missing`: files to upload (again) first."""

    error: str
    missing: tuple[Digest, ...] = ()


class RuntimeInfo(Message):
    """The inference runtime as its own process reports it. `build`: hash of the library that runs.

    `precisions`: what was found to compute here, by a probe; `arithmetic`: what fp16 products are added up in.
    `provider`: which implementation of the runtime computes; `accelerator`: the processor that it runs on, if another.
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


class CoreState(Message):
    """One core: `capacity` tells big from little ones; the frequencies [MHz] that are allowed, and that of now."""

    number: int
    capacity: int | None
    governor: str | None
    min_mhz: float | None
    max_mhz: float | None
    current_mhz: float | None


class Temperature(Message):
    """One sensor of temperature."""

    name: str
    celsius: float


class PowerSensor(Message):
    """One sensor that can be read: a counter of energy, or power at the moment."""

    name: str
    kind: Literal["rapl", "ina3221", "hwmon", "nvml"]
    measures: Literal["energy", "power"]


class DeviceState(Message):
    """What changes while a device is up; what cannot be read is None.

    `throttle_events`: how often the cores were slowed down since the system started; `throttled`: whether they are now.
    """

    cores: tuple[CoreState, ...]
    memory_available_mib: int
    temperatures: tuple[Temperature, ...]
    throttle_events: int | None
    throttled: bool | None
    power_source: Literal["ac", "battery"] | None


class Capabilities(RuntimeInfo):
    """One device: runtime, processor, limits. `fingerprint`: what makes two measurements comparable.

    `state` is read anew whenever the device is asked. `running_system`: equal for processes that share processors.
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


class LeaseRequest(Message):
    """Ask for the device, alone, for `ttl_s` seconds; renew before they pass.

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


class MeasureSettings(Message):
    """How one model is timed; the defaults cost about 40 ms for a small operator.

    Runs are repeated until one sample lasts `sample_us`; samples come in blocks with pauses between them. It
    stops when the 95 % confidence interval of p50 is within ± `confidence` of it, or at `time_cap_ms` (pauses
    included; `min_samples` come first). Of samples that the system interrupted, the CPU time counts with one
    thread; with more they are left out, unless fewer than `min_samples` are left. So are, with one thread, samples on a
    core that others slow down; it waits for a calm core up to `patience` times as long as the cap, then the rest counts,
    as noisy. A `spread` = (p90 - p10) / p50 above `spread_limit` is measured once more, then flagged noisy. `layers_ms`
    above 0: then the runtime's layers are timed inside the model for so long (warm caches only).
    `cache` "cold": the processor's caches are emptied before each sample, which is then a single run.
    `energy_ms` above 0 (warm caches only): then it runs for so long while the device's sensors count the energy.
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


class JobMessage(Message):
    """One model to run: digests of its uploaded files, and its inputs and outputs by name.

    ncnn: files (param, bin), or (param,) with zeros for all weights: then it can be timed, not run for its outputs.
    `output_shapes` restores shapes that the runtime does not keep.
    """

    key: Name
    format: Format
    files: tuple[Digest, ...]
    input_names: tuple[Name, ...] = Field(max_length=64)
    input_shapes: tuple[Shape, ...]
    output_names: tuple[Name, ...] = Field(min_length=1, max_length=64)
    output_shapes: tuple[Shape, ...] | None = None

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
    """The jobs of a batch have the numbers from `first` up to and without `next`."""

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


class LayerTiming(Message):
    """One layer that the runtime executed inside a model: its own name and kind for it, and the blobs it wrote.

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
    """Latency of one model, or why there is none. A failure has a reason and never a time.

    `spread` = (p90 - p10) / p50. `noisy`: still above the limit when measured a second time.
    `energy_mj`: of one run, by the device's sensors; None: not asked for, or unknown.
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
        """A model without a time, and why."""
        return cls(key=key, state="failed", reason=" ".join(reason.split())[:500])


class TensorHeader(Message):
    """One tensor of a frame: little-endian, C order."""

    dtype: Literal["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=8)]


class RunRequest(Message):
    """Header of a run: the job and its inputs, whose bytes follow in order."""

    job: JobMessage
    tensors: tuple[TensorHeader, ...] = Field(max_length=64)


class RunResult(Message):
    """Header of a run's answer: the outputs, whose bytes follow in order; or the reason of the failure."""

    tensors: tuple[TensorHeader, ...] = ()
    reason: str | None = None


class Pulled(Message):
    """Header of what an agent pulls from its relay: one request of a client, whose body follows."""

    request: Nonce
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: Annotated[str, Field(pattern=r"^/v1/[a-z]+(/[0-9]{1,15})?$")]
    lease: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""


class Answered(Message):
    """Header of an answer that an agent sends to its relay; the body follows."""

    status: int = Field(ge=200, le=599)
    content_type: Annotated[str, Field(max_length=256, pattern=r"^[\x20-\x7e]*$")] = ""
    retry_after: Annotated[str, Field(pattern=r"^[0-9]{0,6}$")] = ""


class ChildRequest(Message):
    """Service to child: time one model, or run it once on the tensors that follow."""

    job: JobMessage
    settings: MeasureSettings | None = None
    tensors: tuple[TensorHeader, ...] = ()


class ChildReply(Message):
    """Child to service: the runtime (first frame), a timing, outputs, or the reason of a failure."""

    runtime: RuntimeInfo | None = None
    timing: Timing | None = None
    tensors: tuple[TensorHeader, ...] = ()
    reason: str | None = None
    out_of_memory: bool = False


def one_line(error: ValidationError) -> str:
    """The first fault of a message: where, what, and how many more there are."""
    faults = error.errors(include_url=False, include_context=False)
    where = ".".join(str(part) for part in faults[0]["loc"]) or "message"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{where}: {faults[0]['msg']}{more}"
