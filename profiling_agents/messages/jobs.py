"""Messages about jobs: the lease, uploads, the queue, settings and times of a model, and pulls from a relay."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiling_agents.messages.device import (
    DEFAULT_ENGINE,
    Cache,
    Checksum,
    Digest,
    Engine,
    Format,
    Message,
    Name,
    Nonce,
    Shape,
)


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
