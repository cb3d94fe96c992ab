"""A model that answers requests from any interface, with its queue, deadlines and counters.

Legend: N samples, C channels, H height, W width.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.model.deployed import ModelAnswer, ModelState
from adaptive_runtime.server.metrics import ServiceMetrics
from adaptive_runtime.server.models import ServedModel
from adaptive_runtime.server.recent import RecentService
from adaptive_runtime.server.refusals import RequestRefused
from adaptive_runtime.server.tensors import shown
from adaptive_runtime.server.waiting import RequestQueue
from adaptive_runtime.state.traces import LoadRecorder

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
        subnets = self.model.subnets()
        if asked.subnet is not None and asked.subnet not in subnets:
            raise RequestRefused(404, f"subnet '{shown(asked.subnet)}'; allowed: {', '.join(subnets)}")
        until_s = asked.arrived_s + (asked.deadline_ms or self._deadline_ms) / 1e3
        try:
            answer = await self.queue.answer(asked.images_NCHW, until_s, asked.subnet)
        except AdaptiveError as error:
            raise RequestRefused(503, str(error), outcome="failed") from error
        late_ms = max(0.0, passed_ms(until_s))
        return GivenAnswer(answer, max(0.0, passed_ms(asked.arrived_s) - answer.latency_ms), late_ms)

    def answered(self, given: GivenAnswer) -> None:
        """Count an answer that is returned to its client."""
        self._count("late" if given.late_ms else "answered")
        self.metrics.observe(given.answer, given.waited_ms)
        self.recent.answered(*given)
        self.observe()

    def _count(self, outcome: str) -> None:
        self.metrics.count(outcome)
        self.recent.outcomes[outcome] += 1


def passed_ms(since_s: float) -> float:
    """Time since a moment of the monotonic clock [ms]."""
    return 1e3 * (time.monotonic() - since_s)
