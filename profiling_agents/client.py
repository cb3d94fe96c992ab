"""The client of device agents: lease a device, measure models on it as a stream, run models on it.

with local_agent(backend="ncnn") as client, client.lease():
    for measurement in client.measure(jobs):
        ...
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from profiling_agents import frames
from profiling_agents.local import start_local_agent
from profiling_agents.messages import (
    MIB,
    AgentBusyError,
    AgentError,
    Capabilities,
    Format,
    JobMessage,
    LeaseGranted,
    LeaseRequest,
    Measurement,
    MeasureRequest,
    MeasureSettings,
    RunRequest,
    RunResult,
    Shape,
    one_line,
)
from profiling_agents.transport import LostError, MissingFilesError, Transport

__all__ = [
    "AgentBusyError",
    "AgentClient",
    "AgentError",
    "MeasureSettings",
    "Measurement",
    "ModelJob",
    "local_agent",
]

BATCH_JOBS = 16
BATCH_BYTES = 64 << 20
LEASE_TTL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """A model to run. Files: ONNX (model,), ncnn (param, bin). Shapes count the batch axis (ncnn: 1).

    `output_shapes` restores what the runtime does not keep; without it ncnn's outputs get a batch axis of 1.
    """

    key: str
    format: Format
    files: tuple[bytes, ...]
    input_names: tuple[str, ...]
    input_shapes: tuple[Shape, ...]
    output_names: tuple[str, ...]
    output_shapes: tuple[Shape, ...] | None = None

    def message(self) -> JobMessage:
        """What goes over the wire: digests instead of files. AgentError when the job contradicts itself."""
        try:
            return JobMessage(
                key=self.key,
                format=self.format,
                files=tuple(hashlib.sha256(content).hexdigest() for content in self.files),
                input_names=tuple(self.input_names),
                input_shapes=tuple(map(tuple, self.input_shapes)),
                output_names=tuple(self.output_names),
                output_shapes=None if self.output_shapes is None else tuple(map(tuple, self.output_shapes)),
            )
        except ValidationError as error:
            raise AgentError(f"job '{self.key}': {one_line(error)}") from error


class AgentClient:
    """One agent, by address and token. `ca_file`: certificate (PEM) that https is checked against."""

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        self._transport = Transport(url, token, ca_file=ca_file)
        self._capabilities: Capabilities | None = None
        self._lease: str | None = None
        self._uploaded: set[str] = set()

    @property
    def url(self) -> str:
        """Address of the agent."""
        return self._transport.url

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> "AgentClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def capabilities(self) -> Capabilities:
        """What the device is; asked once."""
        if self._capabilities is None:
            body = self._transport.request("GET", "/v1/capabilities")
            try:
                self._capabilities = Capabilities.model_validate_json(body)
            except ValidationError as error:
                raise AgentError(f"agent {self.url}: speaks another protocol ({one_line(error)})") from error
        return self._capabilities

    @contextmanager
    def lease(self, *, ttl_s: float = LEASE_TTL_S, wait_s: float = 0.0) -> Iterator[None]:
        """Exclusive use of the device until the block ends. AgentBusyError if not free within `wait_s`."""
        if self._lease is not None:
            raise AgentError(f"agent {self.url}: this client already holds the lease")
        self._lease = self._acquire(ttl_s, wait_s)
        self._uploaded.clear()
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(self._lease, ttl_s / 3, ended), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
            # A lease that cannot be given back (agent gone, expired) ends by itself.
            with contextlib.suppress(AgentError):
                self._transport.request("DELETE", "/v1/lease", headers=self._headers())
            self._lease = None

    def measure(self, jobs: Iterable[ModelJob], settings: MeasureSettings | None = None) -> Iterator[Measurement]:
        """One result for each job, in order, as they come; `jobs` may be lazy. Leases if nobody did yet."""
        settings = settings or MeasureSettings()
        with self._leased():
            batch_bytes = min(BATCH_BYTES, self.capabilities().max_model_mib * MIB)
            for batch in _batches(jobs, batch_bytes):
                yield from self._measure_batch(batch, settings)

    def run(self, job: ModelJob, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs of the device's runtime for these inputs. AgentError with the reason when it fails."""
        message = job.message()
        header = RunRequest(job=message, tensors=frames.describe(inputs)).model_dump_json().encode()
        body = frames.pack(header, frames.to_bytes(inputs))
        with self._leased():
            self._upload(job, message)
            try:
                answer = self._transport.request("POST", "/v1/run", content=body, headers=self._headers())
            except MissingFilesError as missing:
                self._uploaded.difference_update(missing.digests)
                self._upload(job, message)
                answer = self._transport.request("POST", "/v1/run", content=body, headers=self._headers())
        result_header, payload = frames.unpack(answer, len(answer))
        result = RunResult.model_validate_json(result_header)
        if result.reason is not None:
            raise AgentError(f"job '{job.key}': {result.reason}")
        return [array.copy() for array in frames.from_bytes(result.tensors, payload)]

    def _headers(self) -> dict[str, str]:
        return {} if self._lease is None else {"Lease": self._lease}

    @contextmanager
    def _leased(self) -> Iterator[None]:
        with contextlib.nullcontext() if self._lease is not None else self.lease():
            yield

    def _acquire(self, ttl_s: float, wait_s: float) -> str:
        until = time.monotonic() + wait_s
        content = LeaseRequest(ttl_s=ttl_s).model_dump_json().encode()
        while True:
            try:
                granted = self._transport.request("POST", "/v1/lease", content=content)
                return LeaseGranted.model_validate_json(granted).lease
            except AgentBusyError:
                if time.monotonic() >= until:
                    raise
            time.sleep(min(1.0, ttl_s / 3))

    def _renew(self, lease: str, every_s: float, ended: threading.Event) -> None:
        """Renew until the lease ends. A lost lease shows in the next call, which the agent refuses."""
        while not ended.wait(every_s):
            try:
                self._transport.request("PUT", "/v1/lease", headers={"Lease": lease})
            except AgentError:
                return

    def _measure_batch(self, batch: list[ModelJob], settings: MeasureSettings) -> Iterator[Measurement]:
        """One result for each job; after a lost connection the rest of the batch is sent again."""
        fitting = []
        limit_mib = self.capabilities().max_model_mib
        for job in batch:
            if max(map(len, job.files)) <= limit_mib * MIB:
                fitting.append((job, job.message()))
            else:
                yield Measurement.failed(job.key, f"model larger than {limit_mib} MiB, the agent's --max-model-mib")
        attempts = 0
        while fitting:
            done = 0
            try:
                for measurement in self._stream(fitting, settings):
                    done += 1
                    yield measurement
                return
            except MissingFilesError as missing:
                self._uploaded.difference_update(missing.digests)
                lost: Exception = missing
            except LostError as error:
                lost = error
            fitting = fitting[done:]
            attempts = attempts + 1 if done == 0 else 1
            self._transport.pause(attempts, lost)

    def _stream(self, batch: list[tuple[ModelJob, JobMessage]], settings: MeasureSettings) -> Iterator[Measurement]:
        for job, message in batch:
            self._upload(job, message)
        request = MeasureRequest(jobs=tuple(message for _, message in batch), settings=settings)
        timeout_s = 2 * self.capabilities().wall_limit_s + 60.0
        received = 0
        with self._transport.lines(
            "/v1/measure",
            content=request.model_dump_json().encode(),
            headers=self._headers(),
            timeout_s=timeout_s,
        ) as lines:
            for line in lines:
                received += 1
                yield Measurement.model_validate_json(line)
        if received != len(batch):
            raise LostError(f"the stream ended after {received} of {len(batch)} results")

    def _upload(self, job: ModelJob, message: JobMessage) -> None:
        """Send the files that this lease has not sent yet."""
        for content, digest in zip(job.files, message.files, strict=True):
            if digest not in self._uploaded:
                self._transport.request("POST", "/v1/models", content=content, headers=self._headers())
                self._uploaded.add(digest)


def _batches(jobs: Iterable[ModelJob], batch_bytes: int) -> Iterator[list[ModelJob]]:
    """Groups of at most BATCH_JOBS jobs and about `batch_bytes` of models, drawn as they are needed."""
    batch: list[ModelJob] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += sum(map(len, job.files))
        if len(batch) == BATCH_JOBS or size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def local_agent(
    backend: str = "ncnn",
    threads: int = 1,
    *,
    cores: Sequence[int] | None = None,
    options: Sequence[str] = (),
) -> Iterator[AgentClient]:
    """An agent as a separate process on loopback with a random token, and its client; it ends with the block.

    It also ends when this process dies. `options`: further options of `autotailor agent`, such as limits.
    """
    with (
        start_local_agent(backend, threads, cores, options) as (url, token),
        AgentClient(url, token) as client,
    ):
        yield client
