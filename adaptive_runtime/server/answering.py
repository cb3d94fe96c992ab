"""A model that answers requests from any interface, with its queue, deadlines and counters.

The queue holds a limited number of requests, and none past its deadline. The model works in separate threads, and may be
replaced between two requests. All other code here runs in the event loop's thread.

Legend: N samples, C channels, H height, W width.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.server.metrics import ServiceMetrics
from adaptive_runtime.server.protocol import RequestRefused, shown
from adaptive_runtime.server.recent import RecentService
from adaptive_runtime.server.served import ServedModel
from adaptive_runtime.state.traces import LoadRecorder

REMEMBERED = 0.8
"""Weight of the old value in the mean duration of a request."""


@dataclass(slots=True, eq=False)
class _Waiting:
    images: Array
    until_s: float
    subnet: str | None
    answer: asyncio.Future[ModelAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    runs: bool = False


class RequestQueue:
    """At most `places` requests that wait, and `workers` that run.

    infer: answers images, by a deadline if it can, and by a named SubNet if given.

    The clock is monotonic: the wall clock may jump.
    """

    def __init__(self, infer: Callable[[Array, float, str | None], ModelAnswer], places: int, workers: int) -> None:
        self._infer, self.places, self.workers = infer, places, workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="infer")
        self._waiting: deque[_Waiting] = deque()
        self._news = asyncio.Semaphore(0)
        self._taken = self._running = 0
        self._typical_s: float | None = None

    @property
    def depth(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request, already while its body arrives. RequestRefused (429): the queue is full."""
        if self._taken >= self.places + self.workers:
            line = f"the queue is full: {self._taken} requests wait or run; try again later"
            wait_s = (self._typical_s or 0.0) * self._taken / self.workers
            raise RequestRefused(429, line, outcome="rejected", retry_after_s=max(1.0, math.ceil(wait_s)))
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def answer(self, images: Array, until_s: float, subnet: str | None = None) -> ModelAnswer:
        """The model's answer, after waiting in the queue. until_s: deadline on the monotonic clock.

        subnet: digest of the SubNet that should answer. RequestRefused (504): the request cannot start, or has not started, by
        then. A started request is finished, late or not. AdaptiveError: raised by the model. If cancelled while waiting, the
        request leaves the queue.
        """
        ahead = len(self._waiting) + self._running
        wait_s = (self._typical_s or 0.0) * (ahead // self.workers)
        if time.monotonic() + wait_s >= until_s:
            line = f"no answer before the deadline: {ahead} requests are ahead"
            raise RequestRefused(504, line, outcome="expired")
        own = _Waiting(images, until_s, subnet)
        self._waiting.append(own)
        self._news.release()
        try:
            done, _ = await asyncio.wait([own.answer], timeout=until_s - time.monotonic())
            if not done and not own.runs:
                raise RequestRefused(504, "the deadline was over before it was this request's turn", outcome="expired")
            return await own.answer
        finally:
            if not own.runs:
                self._waiting.remove(own)

    async def work(self) -> None:
        """Answer one request after the other, until cancelled."""
        while True:
            await self._news.acquire()
            if not self._waiting:  # the request has left
                continue
            own = self._waiting.popleft()
            own.runs = True
            self._running += 1
            start_s = time.monotonic()
            try:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._threads, self._infer, own.images, own.until_s, own.subnet)
            except Exception as error:  # noqa: BLE001 - raised again where the request waits
                if not own.answer.done():
                    own.answer.set_exception(error)
            else:
                if not own.answer.done():
                    own.answer.set_result(found)
            finally:
                self._running -= 1
            took_s = time.monotonic() - start_s
            old_s = took_s if self._typical_s is None else self._typical_s
            self._typical_s = REMEMBERED * old_s + (1 - REMEMBERED) * took_s

    def close(self) -> None:
        """Shut down the threads after their current work."""
        self._threads.shutdown()


class CurrentModel:
    """The model that currently answers; it may be replaced between two requests. Several threads may call it."""

    def __init__(self, model: DeployedModel) -> None:
        self.model = model
        self._running, self._held = 0, False
        self._changed = threading.Condition()

    def infer(self, x_NCHW: NDArray[np.float32], until_s: float, subnet: str | None) -> ModelAnswer:
        """Like `DeployedModel.infer`, with a deadline on the monotonic clock."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._running += 1
            model = self.model
        try:
            return model.infer(x_NCHW, 1e3 * (until_s - time.monotonic()), subnet)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def replace(self, model: DeployedModel) -> None:
        """Switch to another model for the next request, which waits until running requests have ended."""
        with self._changed:
            self._held = True
            try:
                self._changed.wait_for(lambda: not self._running)
                model.take_over(self.model)
                before, self.model = self.model, model
            finally:
                self._held = False
                self._changed.notify_all()
        before.close()
        model.load_ahead()


BODY_S = 10.0
"""A request that is incomplete after this time is refused, since it holds a place in the queue."""


class AskedAnswer(NamedTuple):
    """A parsed request. arrived_s: monotonic clock. deadline_ms: from the arrival on; None: the service's.

    subnet: the digest of the SubNet that should answer; None: the serving one.
    """

    images_NCHW: NDArray[np.float32]
    arrived_s: float
    deadline_ms: float | None
    subnet: str | None


class GivenAnswer(NamedTuple):
    """An answer of the model. waited_ms: time in the queue. late_ms: after its deadline; 0: in time."""

    answer: ModelAnswer
    waited_ms: float
    late_ms: float


class ModelService:
    """A model with its queue. name: used by clients to address it. deadline_ms: of requests that name none.

    recorder: records the sensed state of the device and the arrivals of requests.
    """

    def __init__(
        self,
        model: ServedModel,
        queue: RequestQueue,
        *,
        name: str,
        deadline_ms: float,
        recorder: LoadRecorder | None = None,
    ) -> None:
        self.model, self.queue, self.recorder = model, queue, recorder
        self.name, self.version, self._deadline_ms = name, model.version, deadline_ms
        self.recent = RecentService(model.state())
        self.metrics = ServiceMetrics(model, lambda: queue.depth)

    def observe(self) -> ModelState:
        """Report changes since the last call. Returns the current state."""
        state = self.model.state()
        self.recent.observe(state)
        if self.model.devices is not None:
            self.recent.decisions.extend(self.model.devices.news())
        if self.recorder is not None:
            self.recorder.sensed(self.model.load.device, self.model.load.now.slow_down)
        return state

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue for a new request. RequestRefused: the queue is full."""
        if self.recorder is not None:
            self.recorder.arrived(time.monotonic())
        with self.queue.place():
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request that fails in the block, and re-raise its error. Cancelled: the client has left."""
        try:
            yield
        except RequestRefused as refused:
            self._count(refused.outcome)
            raise
        except asyncio.CancelledError:
            self._count("refused")
            raise
        except Exception:
            self._count("failed")
            raise

    async def answer(self, asked: AskedAnswer) -> GivenAnswer:
        """The answer to a request that has a place in the queue. RequestRefused."""
        if asked.subnet is not None and asked.subnet not in (subnets := self.model.subnets()):
            raise RequestRefused(404, f"subnet '{shown(asked.subnet)}'; allowed: {', '.join(subnets)}")
        until_s = asked.arrived_s + (asked.deadline_ms or self._deadline_ms) / 1e3
        try:
            answer = await self.queue.answer(asked.images_NCHW, until_s, asked.subnet)
        except AdaptiveError as error:
            raise RequestRefused(503, str(error), outcome="failed") from error
        late_ms = max(0.0, passed_ms(until_s))
        return GivenAnswer(answer, max(0.0, passed_ms(asked.arrived_s) - answer.latency_ms), late_ms)

    async def answered(self, given: GivenAnswer) -> None:
        """Count an answer after it has been returned to its client."""
        self._count("late" if given.late_ms else "answered")
        self.metrics.observe(given.answer, given.waited_ms)
        self.recent.answered(given.answer, waited_ms=given.waited_ms, late_ms=given.late_ms)
        self.observe()

    def _count(self, outcome: str) -> None:
        self.metrics.count(outcome)
        self.recent.outcomes[outcome] += 1


def passed_ms(since_s: float) -> float:
    """Time since a moment of the monotonic clock [ms]."""
    return 1e3 * (time.monotonic() - since_s)
