"""Several identical devices as one. A free device takes the next jobs; jobs of a failed device go to the others."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Self

from profiling_agents.client import AgentBusyError, AgentClient, ModelJob
from profiling_agents.messages import AgentError, Capabilities, Measurement, MeasureSettings
from tasks.base.errors import UserError

BATCH_JOBS = 8
"""Jobs that one device takes at a time: at most this many are measured again if the device fails."""
RESULTS_AHEAD = 64
LEASE_TTL_S = 10.0
"""Short, since a lost device is noticed, and free again, only after this time."""
ATTEMPTS = 4
FIRST_PAUSE_S = 2.0


Result = Measurement | BaseException | None
"""A message of a device's thread: a measurement, or its end (the last failure; None if all jobs are done)."""


class _Member:
    """One device, and its lease from the first use until it is lost or given back."""

    def __init__(self, client: AgentClient) -> None:
        self.client = client
        self._lease = ExitStack()
        self._held = False

    def lease(self) -> None:
        """Take the lease unless it is held; AgentError if the device is away, AgentBusyError if it is not free."""
        if not self._held:
            self._lease.enter_context(self.client.lease(ttl_s=LEASE_TTL_S))
            self._held = True

    def release(self) -> None:
        """Give the lease back, if it is held."""
        self._held = False
        self._lease.close()


class Fleet:
    """Clients of devices with equal fingerprints. Use as a context, which holds their leases until it ends.

    A fleet leases all its devices or none, so that two runs never share a device unknowingly. A device that is away at first is
    retried while there is work.
    """

    def __init__(self, clients: Sequence[AgentClient], *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        assert clients
        self._members = tuple(_Member(client) for client in clients)
        self._first_pause_s = first_pause_s

    def __enter__(self) -> Self:
        """AgentBusyError if a device is leased by another client, AgentError if no device can be reached."""
        lost: list[AgentError] = []
        for member in sorted(self._members, key=lambda one: one.client.url):  # one of two runs gets them all
            try:
                member.lease()
            except AgentBusyError:
                self.__exit__()
                raise
            except AgentError as error:
                lost.append(error)
        if len(lost) == len(self._members):
            raise lost[0]
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.release()

    def capabilities(self) -> Capabilities:
        """Capabilities of the devices. UserError if devices differ; AgentError if no device can be reached."""
        found: list[tuple[str, Capabilities]] = []
        lost: list[AgentError] = []
        for member in self._members:
            try:
                found.append((member.client.url, member.client.capabilities()))
            except AgentError as error:
                lost.append(error)
        if not found:
            raise lost[0]
        first_url, first = found[0]
        for url, other in found[1:]:
            if other.fingerprint != first.fingerprint:
                names = ("backend", "version", "build", "precision", "threads", "cpu_model", "governor")
                differing = [name for name in names if getattr(first, name) != getattr(other, name)]
                raise UserError(
                    "agents",
                    f"{url} is not the same device as {first_url} (differs in {', '.join(differing) or 'its cores'})",
                    next_step="make another device profile of it",
                )
        return first

    def measure(
        self, jobs: Iterable[ModelJob], settings: MeasureSettings | None = None
    ) -> Generator[Measurement, None, None]:
        """One result for each job as they come, in any order; `jobs` may be lazy.

        A device that fails is retried while there is work; AgentError if all of them have failed for good.
        """
        self.capabilities()
        work = _Work(iter(jobs))
        results: queue.Queue[Result] = queue.Queue(RESULTS_AHEAD)
        threads = [
            threading.Thread(target=self._serve, args=(member, settings, work, results), daemon=True)
            for member in self._members
        ]
        for thread in threads:
            thread.start()
        running, failures = len(threads), list[BaseException]()
        try:
            while running:
                result = results.get()
                if isinstance(result, Measurement):
                    yield result
                    continue
                running -= 1
                if result is not None:
                    failures.append(result)
        finally:
            work.stop()
            _join(threads, results)
        if not work.finished:
            raise failures[0]

    def _serve(
        self, member: _Member, settings: MeasureSettings | None, work: "_Work", results: "queue.Queue[Result]"
    ) -> None:
        """One device's thread. It always reports its end, so that nobody waits for it."""
        failures, pause_s = 0, self._first_pause_s
        end: BaseException | None = None
        while True:
            before = work.done
            try:
                member.lease()
                _work_off(member.client, settings, work, results.put)
                break
            except AgentError as error:
                member.release()
                failures = 1 if work.done > before else failures + 1
                if failures >= ATTEMPTS:
                    end = error
                    break
            except BaseException as error:  # noqa: BLE001 - raised again where the results are read
                work.stop()
                end = error
                break
            if work.wait(pause_s):
                break
            pause_s *= 2
        results.put(end)


Meter = AgentClient | Fleet
"""A meter of models: one device, or several identical devices."""


class _Work:
    """The queue of a fleet: jobs not yet taken, jobs returned by failed devices, the number of jobs at work. Thread-safe."""

    def __init__(self, jobs: Iterator[ModelJob]) -> None:
        self._jobs = jobs
        self._drawing = threading.Lock()  # making a job may take seconds, in which other devices finish theirs
        self._returned: deque[ModelJob] = deque()
        self._changed = threading.Condition()
        self._out = self.done = 0
        self._drained = self._broken = self.stopped = False  # stopped: nobody wants more results

    @property
    def finished(self) -> bool:
        """Whether every job has its result."""
        with self._changed:
            return self._drained and not self._broken and not self._returned and not self._out

    def take(self) -> list[ModelJob]:
        """The next jobs; waits while other devices may still return theirs. Empty: no job is left."""
        while True:
            with self._changed:
                if self._over():
                    return []
                batch = [self._returned.popleft() for _ in range(min(BATCH_JOBS, len(self._returned)))]
                self._out += len(batch)
                if not batch and self._drained:
                    self._changed.wait(timeout=1.0)
                    continue
            batch = batch or self._draw()
            if batch:
                return batch

    def _draw(self) -> list[ModelJob]:
        """The next jobs that no device has taken yet."""
        with self._drawing:
            if self._drained or self.stopped:
                return []
            try:
                batch = list(islice(self._jobs, BATCH_JOBS))
            except BaseException:
                self._broken = True
                self.stop()
                raise
            with self._changed:
                self._drained = len(batch) < BATCH_JOBS
                self._out += len(batch)
                self._changed.notify_all()
            return batch

    def finish(self) -> None:
        """Count one result."""
        with self._changed:
            self._out -= 1
            self.done += 1
            self._changed.notify_all()

    def give_back(self, jobs: Sequence[ModelJob]) -> None:
        """Put back the jobs that a failed device did not measure."""
        with self._changed:
            self._out -= len(jobs)
            self._returned.extend(jobs)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no device take further jobs."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Whether no job was left within this time."""
        with self._changed:
            return self._changed.wait_for(self._over, timeout=seconds)

    def _over(self) -> bool:
        return self.stopped or (self._drained and not self._returned and not self._out)


def _work_off(
    client: AgentClient, settings: MeasureSettings | None, work: _Work, report: Callable[[Measurement], None]
) -> None:
    """Take and measure jobs until none is left. On any failure the rest of the batch is put back."""
    while batch := work.take():
        waiting = deque(batch)
        try:
            for measurement in client.measure(batch, settings):
                assert measurement.key == waiting[0].key
                report(measurement)
                waiting.popleft()
                work.finish()
                if work.stopped:
                    return
        finally:
            work.give_back(waiting)


def _join(threads: Sequence[threading.Thread], results: "queue.Queue[Result]") -> None:
    """Wait for the threads, and drop their remaining results, so that no thread blocks on a full queue."""
    for thread in threads:
        while thread.is_alive():
            while not results.empty():
                results.get_nowait()
            thread.join(0.05)
