"""The agent's job queue, and its lease: the lock on the device for one client, for a time that the client renews.

Jobs of the lease's holder are measured one at a time, and results are kept until they are fetched. Jobs are numbered
from 0 for each lease. Waiting jobs and results are kept as JSON bytes and bounded in number and size, so memory stays
flat; models are files. A job's time limit starts when the device starts on it.
"""

import asyncio
import hmac
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from profiling_agents import messages
from profiling_agents.execution.child import Runner
from profiling_agents.frames import to_line
from profiling_agents.network.guard import RequestRefused
from profiling_agents.serving.store import ModelFiles


class Leases:
    """At most one lease at a time; it expires by itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holder: str | None = None
        self._ttl_s = 0.0
        self._expires_at = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires by itself."""
        return max(0.0, self._expires_at - self._clock()) if self._holder is not None else 0.0

    def acquire(self, lease: str, ttl_s: float) -> bool:
        """Take or renew the lease; return whether it is new. RequestRefused while another client holds it."""
        remaining_s = self.remaining_s
        if remaining_s > 0 and not self._holds(lease):
            raise RequestRefused(f"the device is leased by another client; free in at most {remaining_s:.1f} s", 423)
        self._holder = lease
        self._ttl_s = ttl_s
        self._expires_at = self._clock() + ttl_s
        return remaining_s <= 0

    def renew(self, lease: str) -> float:
        """Restart the lease's time and return it [s]. RequestRefused unless the lease is the holder's."""
        if self.remaining_s <= 0 or not self._holds(lease):
            raise RequestRefused("no valid lease: it was never granted or has expired; ask for a new one", 409)
        self._expires_at = self._clock() + self._ttl_s
        return self._ttl_s

    def release(self, lease: str) -> None:
        """Free the device; RequestRefused when the lease is not the holder's."""
        self.renew(lease)
        self._holder = None

    def _holds(self, lease: str) -> bool:
        return self._holder is not None and hmac.compare_digest(self._holder.encode(), lease.encode())


MAX_JOBS = 20_000
MAX_BYTES = 16 * messages.MIB
HEARTBEAT_S = 5.0
"""A stream without a result for this long sends an empty line, to distinguish a slow job from a dead connection."""
FAULT_PAUSE_S = 1.0
LONGEST_WAIT_S = 60.0
CANCELLED = "cancelled by the client"


class JobQueue:
    """Numbers: jobs [first, done) have results, jobs [done, next) wait; job `done` runs."""

    def __init__(self, runner: Runner, models: ModelFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self.bench = asyncio.Lock()
        """The lock is held by the current user of the runner."""
        self._runner = runner
        self._models = models
        self._clock = clock
        self._waiting: deque[tuple[bytes, messages.MeasureSettings]] = deque()
        self._results: deque[bytes] = deque()
        self._cancelled: set[int] = set()
        self._first = self._done = 0
        self._last: tuple[str, messages.JobsQueued] | None = None
        self._bytes = 0
        self._busy_s = 0.0
        self._generation = 0
        self._running: asyncio.Task[messages.Measurement] | None = None
        self._fault: str | None = None
        self._news = asyncio.Event()

    @property
    def next(self) -> int:
        """Number of the next submission."""
        return self._done + len(self._waiting)

    def clear(self) -> None:
        """Begin another lease: forget all jobs and results, stop the running job, count from 0."""
        self.drop()
        self._first = self._done = 0
        self._last = None
        self._busy_s = 0.0

    def drop(self) -> messages.JobsQueued:
        """Forget waiting jobs and all results, stop the running job. Numbers continue from the returned number."""
        for content, _ in self._waiting:
            self._models.release(messages.JobMessage.model_validate_json(content).files)
        self._first = self._done = self.next
        self._waiting.clear()
        self._results.clear()
        self._cancelled.clear()
        self._bytes = 0
        self._generation += 1
        self._fault = None
        if self._running is not None:
            self._running.cancel()
        self._tell()
        return messages.JobsQueued(first=self._done, next=self._done)

    def submit(self, request: messages.JobsRequest) -> messages.JobsQueued:
        """Queue jobs whose files are stored. If a client sends its last batch again, it is not queued twice.

        RequestRefused when not all jobs fit; then no job is queued.
        """
        if self._last is not None and self._last[0] == request.batch:
            return self._last[1]
        contents = [job.model_dump_json().encode() for job in request.jobs]
        size = sum(map(len, contents))
        count = len(self._waiting) + len(self._results) + len(contents)
        if count > MAX_JOBS or self._bytes + size > MAX_BYTES:
            line = f"the queue is full: {len(self._waiting)} jobs wait, {len(self._results)} results were not fetched"
            likely_s = len(contents) * (self._mean_s() or 0.0)
            raise RequestRefused(line, 429, min(LONGEST_WAIT_S, max(1.0, likely_s)))
        queued = messages.JobsQueued(first=self.next, next=self.next + len(contents))
        for job, content in zip(request.jobs, contents, strict=True):
            self._models.hold(job.files)
            self._waiting.append((content, request.settings))
        self._bytes += size
        self._last = request.batch, queued
        self._tell()
        return queued

    def progress(self, number: int) -> messages.JobProgress:
        """The position of a job; RequestRefused for a job that was never queued."""
        self._check(number)
        if number < self._done:
            state = "done"
        else:
            state = "running" if number == self._done and self._running is not None else "queued"
        mean_s = self._mean_s()
        return messages.JobProgress.model_validate(
            {
                "number": number,
                "state": state,
                "position": max(0, number - self._done),
                "done": self._done,
                "total": self.next,
                "rest_s": None if mean_s is None else round(mean_s * len(self._waiting), 3),
            }
        )

    def cancel(self, number: int) -> None:
        """Fail a waiting or running job as cancelled; a finished job keeps its result. RequestRefused for an unknown job."""
        self._check(number)
        if number < self._done:
            return
        self._cancelled.add(number)
        if number == self._done and self._running is not None:
            self._running.cancel()

    def results(self, first: int) -> AsyncIterator[bytes]:
        """Lines of results (JSON and its checksum) from job `first` on, as they come, until every queued job has one.

        Results before `first` count as fetched and are forgotten. RequestRefused when `first` itself was forgotten or was not
        submitted, or when the agent cannot measure.
        """
        if not self._first <= first <= self.next:
            raise RequestRefused(
                f"results from number {first}: those from {self._first} to {self.next} can be had", 409
            )
        if self._fault is not None and first >= self._done:
            raise RequestRefused(self._fault, 503)
        while self._first < min(first, self._done):
            self._bytes -= len(self._results.popleft())
            self._first += 1
        return self._stream(first)

    async def work(self) -> None:
        """Measure jobs as they come; never returns."""
        try:
            while True:
                while not self._waiting:
                    await self._news.wait()
                async with self.bench:
                    if self._waiting:
                        await self._do_next()
                if self._fault is not None:
                    await asyncio.sleep(FAULT_PAUSE_S)
        finally:
            if self._running is not None:
                self._running.cancel()

    async def _do_next(self) -> None:
        """Measure the first waiting job; it stays first if the agent, not the job, fails."""
        number, generation = self._done, self._generation
        content, settings = self._waiting[0]
        job = messages.JobMessage.model_validate_json(content)
        start_s = self._clock()
        if number in self._cancelled:
            self._finish(job, content, messages.Measurement.failed(job.key, CANCELLED))
            return
        self._running = asyncio.create_task(self._runner.measure(job, settings))
        await asyncio.wait({self._running})
        task, self._running = self._running, None
        if task.cancelled():
            await self._runner.close()
        if generation != self._generation:
            return
        if task.cancelled():
            self._finish(job, content, messages.Measurement.failed(job.key, CANCELLED))
            return
        error = task.exception()
        if error is not None:
            self._fault = f"the agent cannot measure: {' '.join(f'{type(error).__name__}: {error}'.split())}"
            self._tell()
            return
        self._fault = None
        self._busy_s += self._clock() - start_s
        self._finish(job, content, task.result())

    def _finish(self, job: messages.JobMessage, content: bytes, result: messages.Measurement) -> None:
        line = to_line(result.model_dump_json().encode())
        self._waiting.popleft()
        self._cancelled.discard(self._done)
        self._models.release(job.files)
        self._results.append(line)
        self._bytes += len(line) - len(content)
        self._done += 1
        self._tell()

    async def _stream(self, number: int) -> AsyncIterator[bytes]:
        generation = self._generation
        while generation == self._generation and self._first <= number < self.next:
            news = self._news
            if number < self._done:
                yield self._results[number - self._first]
                number += 1
            elif self._fault is not None:
                return
            else:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield b"\n"

    def _check(self, number: int) -> None:
        if not 0 <= number < self.next:
            raise RequestRefused(f"job {number}: not in the queue, which holds numbers below {self.next}", 404)

    def _tell(self) -> None:
        """Wake all that wait for a change."""
        self._news.set()
        self._news = asyncio.Event()

    def _mean_s(self) -> float | None:
        """Mean duration of a job of this lease [s]."""
        return self._busy_s / self._done if self._done else None
