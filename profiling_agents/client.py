"""The client of device agents: lease a device, measure models on it as a stream, run models on it.

with local_agent(backend="ncnn") as client, client.lease():
    for measurement in client.measure(jobs):
        ...
"""

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
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
    JobProgress,
    JobsQueued,
    JobsRequest,
    LeaseRequest,
    Measurement,
    MeasureSettings,
    RunRequest,
    RunResult,
    Shape,
    one_line,
)
from profiling_agents.transport import READ_TIMEOUT_S, LostError, MissingFilesError, Retries, Transport

__all__ = [
    "AgentBusyError",
    "AgentClient",
    "AgentError",
    "MeasureSettings",
    "Measurement",
    "ModelJob",
    "ModelTooLargeError",
    "RunError",
    "local_agent",
]

BATCH_JOBS = 16
BATCH_BYTES = 64 << 20
LEASE_TTL_S = 30.0
SILENCE_S = 20.0
"""A stream of results that brings nothing for so long, not even the agent's empty lines, is lost."""
SHORT_TIMEOUT_S = 5.0
LOCAL_PATIENCE_S = 2.0
"""An agent on this machine that does not answer for so long has ended and will not come back."""


class ModelTooLargeError(AgentError):
    """The agent does not take models of this size."""


class RunError(AgentError):
    """The device is there, and could not run the model."""


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
    """One agent, by address and token. `ca_file`: certificate (PEM) that https is checked against.

    While it holds the lease it tries for `patience_s` [s] to get a lost connection back; None: as long as the lease
    lasts. What was measured meanwhile is then fetched, nothing is measured twice.
    """

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None, patience_s: float | None = None) -> None:
        self._transport = Transport(url, token, ca_file=ca_file)
        self._patience_s = patience_s
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
        self._transport.patience_s = ttl_s if self._patience_s is None else self._patience_s
        self._uploaded.clear()
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(self._lease, ttl_s / 3, ended), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            self._transport.patience_s = 0.0
            renewal.join()
            # A lease that cannot be given back (agent gone, expired) ends by itself.
            with contextlib.suppress(AgentError):
                self._send("DELETE", "/v1/lease", timeout_s=SHORT_TIMEOUT_S)
            self._lease = None

    def measure(self, jobs: Iterable[ModelJob], settings: MeasureSettings | None = None) -> Iterator[Measurement]:
        """One result for each job, in order, as they come; `jobs` may be lazy. Leases if nobody did yet.

        What was not measured when the caller leaves is dropped. Models travel while nothing is timed.
        """
        settings = settings or MeasureSettings()
        with self._leased():
            batch_bytes = min(BATCH_BYTES, self.capabilities().max_model_mib * MIB)
            for batch in _batches(jobs, batch_bytes):
                yield from self._measure_batch(batch, settings)

    def submit(self, jobs: Sequence[ModelJob], settings: MeasureSettings | None = None) -> range:
        """Queue jobs on the leased device and return their numbers; `results` fetches, the lease's end drops them.

        AgentError when one is too large or the queue stays full; those before it are queued.
        """
        queued: list[range] = []
        for batch in _batches(jobs, min(BATCH_BYTES, self.capabilities().max_model_mib * MIB)):
            for job in batch:
                self._refuse_large(job)
            queued.append(self._queue([(job, job.message()) for job in batch], settings or MeasureSettings()))
        return range(queued[0].start, queued[-1].stop) if queued else range(0)

    def results(self, numbers: range) -> Generator[Measurement, None, None]:
        """Results of submitted jobs, in order, as they come; results of jobs before them are forgotten.

        A lost connection is made anew, and results go on where it broke.
        """
        retries = Retries(self._transport)
        number = numbers.start
        while number < numbers.stop:
            try:
                for measurement in self._stream(number):
                    retries.reset()
                    number += 1
                    yield measurement
                    if number == numbers.stop:
                        return
                raise LostError(f"the stream ended before result {number}")
            except LostError as error:
                retries.wait(error)

    def progress(self, number: int) -> JobProgress:
        """Where a submitted job is, and how much of the queue is done."""
        return JobProgress.model_validate_json(self._send("GET", f"/v1/jobs/{number}"))

    def cancel(self, number: int) -> JobProgress:
        """Stop a submitted job; its result is a failure that says so. One that is done stays."""
        return JobProgress.model_validate_json(self._send("DELETE", f"/v1/jobs/{number}"))

    def run(self, job: ModelJob, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs of the device's runtime for these inputs. RunError with the reason when the model fails."""
        message = job.message()
        header = RunRequest(job=message, tensors=frames.describe(inputs)).model_dump_json().encode()
        body = frames.pack(header, frames.to_bytes(inputs))
        with self._leased():
            self._upload(job, message)
            timeout_s = 2 * self.capabilities().wall_limit_s + 60.0
            try:
                answer = self._send("POST", "/v1/run", body, timeout_s=timeout_s)
            except MissingFilesError as missing:
                self._uploaded.difference_update(missing.digests)
                self._upload(job, message)
                answer = self._send("POST", "/v1/run", body, timeout_s=timeout_s)
        result_header, payload = frames.unpack(answer, len(answer))
        result = RunResult.model_validate_json(result_header)
        if result.reason is not None:
            raise RunError(f"job '{job.key}': {result.reason}")
        return [array.copy() for array in frames.from_bytes(result.tensors, payload)]

    def _headers(self) -> dict[str, str]:
        return {} if self._lease is None else {"Lease": self._lease}

    def _send(self, method: str, path: str, content: bytes = b"", *, timeout_s: float = READ_TIMEOUT_S) -> bytes:
        return self._transport.request(method, path, content=content, headers=self._headers(), timeout_s=timeout_s)

    @contextmanager
    def _leased(self) -> Iterator[None]:
        with contextlib.nullcontext() if self._lease is not None else self.lease():
            yield

    def _acquire(self, ttl_s: float, wait_s: float) -> str:
        until = time.monotonic() + wait_s
        request = LeaseRequest(lease=secrets.token_hex(16), ttl_s=ttl_s)
        while True:
            try:
                self._transport.request("POST", "/v1/lease", content=request.model_dump_json().encode())
                return request.lease
            except AgentBusyError:
                if time.monotonic() >= until:
                    raise
            time.sleep(min(1.0, ttl_s / 3))

    def _renew(self, lease: str, every_s: float, ended: threading.Event) -> None:
        """Renew until the lease ends. A lost lease shows in the next call, which the agent refuses."""
        while not ended.wait(every_s):
            try:
                self._transport.request("PUT", "/v1/lease", headers={"Lease": lease}, timeout_s=SHORT_TIMEOUT_S)
            except AgentError:
                return

    def _measure_batch(self, batch: list[ModelJob], settings: MeasureSettings) -> Iterator[Measurement]:
        too_large: dict[int, str] = {}
        fitting: list[tuple[ModelJob, JobMessage]] = []
        for index, job in enumerate(batch):
            try:
                self._refuse_large(job)
                fitting.append((job, job.message()))
            except ModelTooLargeError as error:
                too_large[index] = str(error)
        results = self.results(self._queue(fitting, settings) if fitting else range(0))
        complete = False
        try:
            for index, job in enumerate(batch):
                yield Measurement.failed(job.key, too_large[index]) if index in too_large else next(results)
            complete = True
        finally:
            results.close()
            if not complete:
                self._drop()

    def _refuse_large(self, job: ModelJob) -> None:
        limit_mib = self.capabilities().max_model_mib
        if max(map(len, job.files), default=0) > limit_mib * MIB:
            raise ModelTooLargeError(f"model larger than {limit_mib} MiB, the agent's --max-model-mib")

    def _queue(self, batch: list[tuple[ModelJob, JobMessage]], settings: MeasureSettings) -> range:
        """Upload and submit one batch, queued once however often it is sent; the numbers of its jobs."""
        jobs = tuple(message for _, message in batch)
        request = JobsRequest(batch=secrets.token_hex(16), jobs=jobs, settings=settings).model_dump_json().encode()
        retries = Retries(self._transport)
        while True:
            for job, message in batch:
                self._upload(job, message)
            try:
                queued = JobsQueued.model_validate_json(self._send("POST", "/v1/jobs", request))
                return range(queued.first, queued.next)
            except MissingFilesError as missing:
                self._uploaded.difference_update(missing.digests)
                retries.wait(missing)

    def _stream(self, first: int) -> Iterator[Measurement]:
        """Results from `first` on, until the agent has no more or the connection is lost."""
        with self._transport.lines(f"/v1/results/{first}", headers=self._headers(), timeout_s=SILENCE_S) as lines:
            for line in lines:
                yield Measurement.model_validate_json(line)

    def _drop(self) -> None:
        """Forget all submitted jobs. A device that is gone has forgotten them, or will when the lease ends."""
        patience_s, self._transport.patience_s = self._transport.patience_s, 0.0
        with contextlib.suppress(AgentError):
            self._send("DELETE", "/v1/jobs", timeout_s=SHORT_TIMEOUT_S)
        self._transport.patience_s = patience_s

    def _upload(self, job: ModelJob, message: JobMessage) -> None:
        """Send the files that this lease has not sent yet."""
        for content, digest in zip(job.files, message.files, strict=True):
            if digest not in self._uploaded:
                self._send("POST", "/v1/models", content)
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
        AgentClient(url, token, patience_s=LOCAL_PATIENCE_S) as client,
    ):
        yield client
