"""The lease, uploads, and the queue of jobs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from profiling_agents.messages.base import Digest, Format, Message, Name, Nonce, Shape
from profiling_agents.messages.engine import DEFAULT_ENGINE, Engine
from profiling_agents.messages.settings import MeasureSettings

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
