"""One agent, by address and token: its lease, its queue, its results."""

import contextlib
import copy
import math
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from profiling_agents import frames, messages
from profiling_agents.client.jobs import BATCH_BYTES, ModelJob, ModelTooLargeError, RunError, batches
from profiling_agents.client.transport import READ_TIMEOUT_S, LostError, MissingFilesError, Retries, Transport

LEASE_TTL_S = 30.0
SILENCE_S = 20.0
"""A stream of results that brings nothing for this long, not even the agent's empty lines, is lost."""
SHORT_TIMEOUT_S = 5.0


M = TypeVar("M", bound=messages.Message)
AroundBatch = Callable[[int], AbstractContextManager[None]]
"""Context entered while the device works at a batch of this many models."""


class AgentClient:
    """One agent, by address and token. `ca_file`: certificate (PEM) that https is checked against.

    While the client holds the lease, it retries a lost connection for `patience_s` [s]; None: as long as the lease lasts. Then
    it fetches the results that the agent has produced meanwhile; no job is measured twice.
    """

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None, patience_s: float | None = None) -> None:
        self._transport = Transport(url, token, ca_file=ca_file)
        self._patience_s = patience_s
        self._capabilities: messages.Capabilities | None = None
        self._lease: str | None = None
        self._uploaded: set[str] = set()
        self._engine = messages.DEFAULT_ENGINE
        self.around_batch: AroundBatch = lambda models: nullcontext()

    def with_engine(self, engine: messages.Engine) -> "AgentClient":
        """A client over the same connections whose jobs run with this engine; it takes its own lease.

        Its `capabilities` name the engine and have another fingerprint. AgentError is raised by them, and by every job, for an
        option that the device does not have.
        """
        other = copy.copy(self)
        other._engine = engine
        other._lease, other._uploaded = None, set()
        return other

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

    def capabilities(self) -> messages.Capabilities:
        """The device's description, with this client's engine; the agent is asked only once."""
        own, engine = self._asked(), self._known_engine()
        return own.model_copy(update={"engine": engine, "fingerprint": engine.fingerprint(own.fingerprint)})

    def _known_engine(self) -> messages.Engine:
        """The engine without choices that equal the defaults; AgentError for an engine that the device does not know."""
        return self._engine.without_defaults(self._asked().engine_options) if self._engine.choices else self._engine

    def _asked(self) -> messages.Capabilities:
        """The description as the agent gave it."""
        if self._capabilities is None:
            found = self._read(messages.Capabilities, self._transport.request("GET", "/v1/capabilities"))
            if found.protocol != messages.PROTOCOL:
                raise messages.AgentError(
                    f"agent {self.url}: speaks protocol {found.protocol}; allowed: {messages.PROTOCOL}; "
                    "install the same version of autotailor here and there"
                )
            self._capabilities = found
        return self._capabilities

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Raise AgentError if the requests in the block take longer, even if the agent keeps sending signs of life."""
        self._transport.until_s = time.monotonic() + seconds
        try:
            yield
        finally:
            self._transport.until_s = math.inf

    @contextmanager
    def lease(self, *, ttl_s: float = LEASE_TTL_S, wait_s: float = 0.0) -> Iterator[None]:
        """Exclusive use of the device until the block ends. AgentBusyError if not free within `wait_s`."""
        if self._lease is not None:
            raise messages.AgentError(f"agent {self.url}: this client already holds the lease")
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
            # A lease that cannot be released (agent gone, expired) ends by itself.
            with contextlib.suppress(messages.AgentError):
                self._send("DELETE", "/v1/lease", timeout_s=SHORT_TIMEOUT_S)
            self._lease = None

    def measure(
        self, jobs: Iterable[ModelJob], settings: messages.MeasureSettings | None = None
    ) -> Generator[messages.Measurement, None, None]:
        """One result for each job, in order, as they arrive; `jobs` may be lazy. Takes a lease if the client holds none.

        Jobs that wait when the caller leaves are dropped. Models are uploaded while nothing is timed.
        """
        settings = settings or messages.MeasureSettings()
        with self._leased():
            batch_bytes = min(BATCH_BYTES, self.capabilities().max_model_mib * messages.MIB)
            for batch in batches(jobs, batch_bytes):
                with self.around_batch(len(batch)):
                    yield from self._measure_batch(batch, settings)

    def submit(self, jobs: Sequence[ModelJob], settings: messages.MeasureSettings | None = None) -> range:
        """Queue jobs on the leased device and return their numbers. `results` fetches results. Jobs end with the lease.

        AgentError when a job is too large or the queue stays full; the jobs before it are queued.
        """
        queued: list[range] = []
        for batch in batches(jobs, min(BATCH_BYTES, self.capabilities().max_model_mib * messages.MIB)):
            for job in batch:
                self._refuse_large(job)
            queued.append(
                self._queue(
                    [(job, job.message(self._known_engine())) for job in batch], settings or messages.MeasureSettings()
                )
            )
        return range(queued[0].start, queued[-1].stop) if queued else range(0)

    def results(self, numbers: range) -> Generator[messages.Measurement, None, None]:
        """Results of submitted jobs, in order, as they arrive; the agent forgets results of jobs before these.

        A lost connection is opened again, and results continue where the connection broke.
        """
        retries = Retries(self._transport)
        number = numbers.start
        while number < numbers.stop:
            try:
                path, headers = f"/v1/results/{number}", self._headers()
                with self._transport.lines(path, headers=headers, timeout_s=SILENCE_S) as lines:
                    for line in lines:
                        retries.reset()
                        number += 1
                        yield self._read(messages.Measurement, line)
                        if number == numbers.stop:
                            return
                raise LostError(f"the stream ended before result {number}")
            except LostError as error:
                retries.wait(error)

    def progress(self, number: int) -> messages.JobProgress:
        """The position of a submitted job and the finished part of the queue."""
        return self._read(messages.JobProgress, self._send("GET", f"/v1/jobs/{number}"))

    def cancel(self, number: int) -> messages.JobProgress:
        """Stop a submitted job; its result is a failure, with the reason. A finished job keeps its result."""
        return self._read(messages.JobProgress, self._send("DELETE", f"/v1/jobs/{number}"))

    def run(self, job: ModelJob, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs of the device's runtime for these inputs. RunError with the reason when the model fails."""
        message = job.message(self._known_engine())
        header = messages.RunRequest(job=message, tensors=frames.describe(inputs)).model_dump_json().encode()
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
        result = self._read(messages.RunResult, result_header)
        if result.reason is not None:
            raise RunError(f"job '{job.key}': {result.reason}")
        return [array.copy() for array in frames.from_bytes(result.tensors, payload)]

    def _read(self, kind: type[M], content: bytes) -> M:
        """Parse a message. AgentError for a message from another version of the agent."""
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise messages.AgentError(
                f"agent {self.url}: speaks another protocol ({messages.one_line(error)})"
            ) from error

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
        request = messages.LeaseRequest(lease=secrets.token_hex(16), ttl_s=ttl_s)
        while True:
            try:
                self._transport.request("POST", "/v1/lease", content=request.model_dump_json().encode())
                return request.lease
            except messages.AgentBusyError:
                if time.monotonic() >= until:
                    raise
            time.sleep(min(1.0, ttl_s / 3))

    def _renew(self, lease: str, every_s: float, ended: threading.Event) -> None:
        """Renew until the lease ends. If the lease is lost, the agent refuses the next call."""
        while not ended.wait(every_s):
            try:
                self._transport.request("PUT", "/v1/lease", headers={"Lease": lease}, timeout_s=SHORT_TIMEOUT_S)
            except messages.AgentError:
                return

    def _measure_batch(
        self, batch: list[ModelJob], settings: messages.MeasureSettings
    ) -> Iterator[messages.Measurement]:
        too_large: dict[int, str] = {}
        fitting: list[tuple[ModelJob, messages.JobMessage]] = []
        for index, job in enumerate(batch):
            try:
                self._refuse_large(job)
                fitting.append((job, job.message(self._known_engine())))
            except ModelTooLargeError as error:
                too_large[index] = str(error)
        results = self.results(self._queue(fitting, settings) if fitting else range(0))
        complete = False
        try:
            for index, job in enumerate(batch):
                yield (
                    messages.Measurement.failed(job.key, too_large[index])
                    if index in too_large
                    else self._of(job, results)
                )
            complete = True
        finally:
            results.close()
            if not complete:
                self._drop()

    def _of(self, job: ModelJob, results: Iterator[messages.Measurement]) -> messages.Measurement:
        """The next result. AgentError when it belongs to another job: then no further result can be trusted either."""
        found = next(results)
        if found.key != job.key:
            raise messages.AgentError(f"agent {self.url}: answered for '{found.key}' where '{job.key}' was asked")
        return found

    def _refuse_large(self, job: ModelJob) -> None:
        limit_mib = self.capabilities().max_model_mib
        if max(map(len, job.files), default=0) > limit_mib * messages.MIB:
            raise ModelTooLargeError(f"model larger than {limit_mib} MiB, the agent's --max-model-mib")

    def _queue(self, batch: list[tuple[ModelJob, messages.JobMessage]], settings: messages.MeasureSettings) -> range:
        """Upload and submit one batch; return the numbers of its jobs. The batch is queued once however often it is sent."""
        jobs = tuple(message for _, message in batch)
        request = (
            messages.JobsRequest(batch=secrets.token_hex(16), jobs=jobs, settings=settings).model_dump_json().encode()
        )
        retries = Retries(self._transport)
        while True:
            for job, message in batch:
                self._upload(job, message)
            try:
                queued = self._read(messages.JobsQueued, self._send("POST", "/v1/jobs", request))
                if queued.first < 0 or queued.next - queued.first != len(batch):
                    raise messages.AgentError(
                        f"agent {self.url}: numbered {len(batch)} jobs from {queued.first} to {queued.next}"
                    )
                return range(queued.first, queued.next)
            except MissingFilesError as missing:
                self._uploaded.difference_update(missing.digests)
                retries.wait(missing)

    def _drop(self) -> None:
        """Drop all submitted jobs. An unreachable agent has forgotten them, or forgets them when the lease ends."""
        patience_s, self._transport.patience_s = self._transport.patience_s, 0.0
        with contextlib.suppress(messages.AgentError):
            self._send("DELETE", "/v1/jobs", timeout_s=SHORT_TIMEOUT_S)
        self._transport.patience_s = patience_s

    def _upload(self, job: ModelJob, message: messages.JobMessage) -> None:
        """Send the files that were not yet sent under this lease, until the agent has exactly these contents."""
        for content, digest in zip(job.files, message.files, strict=True):
            retries = Retries(self._transport)
            while digest not in self._uploaded:
                if self._read(messages.ModelStored, self._send("POST", "/v1/models", content)).sha256 == digest:
                    self._uploaded.add(digest)
                else:
                    retries.wait(LostError("a model came there garbled", reached=True))
