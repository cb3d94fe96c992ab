"""Requests in the queue: a limited number, and none past its deadline.

All code here runs in the event loop's thread, except for the model's work in separate threads.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.model.deployed import ModelAnswer
from adaptive_runtime.server.refusals import RequestRefused

Images = NDArray[np.float32]
REMEMBERED = 0.8
"""Weight of the old value in the mean duration of a request."""


@dataclass(slots=True, eq=False)
class _Waiting:
    images: Images
    until_s: float
    subnet: str | None
    answer: asyncio.Future[ModelAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    runs: bool = False


class RequestQueue:
    """At most `places` requests that wait, and `workers` that run.

    infer: answers images, by a deadline if it can, and by a named SubNet if given.

    The clock is monotonic: the wall clock may jump.
    """

    def __init__(self, infer: Callable[[Images, float, str | None], ModelAnswer], places: int, workers: int) -> None:
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

    async def answer(self, images: Images, until_s: float, subnet: str | None = None) -> ModelAnswer:
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
