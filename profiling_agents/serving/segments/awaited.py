"""Runs of this device that wait for their values, which come with a ticket: from another device, or from home itself.

A ticket is made by the home, at random, for one run. Nobody else knows it but the device to which the home has told it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from profiling_agents.messages import AgentError, GivenValues, SentActivation, Shape, coded_bytes
from profiling_agents.streams.wire import FrameHead, FrameReader

MOST_LATE = 256
"""Runs that have missed their values; what comes for them after all is read, and thrown away."""
TICKET_LIMIT_S = 2.0
"""The values may come before the run that waits for them, since both come over different connections."""


class TicketError(AgentError):
    """Values that no run waits for, or other values than it waits for. One line."""


class CameValues(NamedTuple):
    """Tensors, coded; and how long they took to come [ms]."""

    tensors: tuple[SentActivation, ...]
    content: bytearray
    received_ms: float


@dataclass(frozen=True, slots=True)
class _Awaited:
    shapes: tuple[Shape, ...]
    values: "asyncio.Future[CameValues]"


class AwaitedValues:
    """All runs of this device that wait. Of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Awaited] = {}
        self._late: dict[str, _Awaited] = {}
        self._announced = asyncio.Event()

    async def wait(self, ticket: str, shapes: Sequence[Shape], within_s: float) -> CameValues | None:
        """The values of a ticket; None: they have not come in time. TicketError: another run has the ticket."""
        if ticket in self._waiting or ticket in self._late:
            raise TicketError("a ticket of another run")
        awaited = _Awaited(tuple(shapes), asyncio.get_running_loop().create_future())
        self._waiting[ticket] = awaited
        self._announced.set()
        self._announced = asyncio.Event()
        try:
            async with asyncio.timeout(within_s):
                return await awaited.values
        except TimeoutError:
            self._late[ticket] = awaited
            for old in tuple(self._late)[:-MOST_LATE]:
                del self._late[old]
            return None
        finally:
            self._waiting.pop(ticket, None)

    async def take(self, frames: FrameReader[Any], head: FrameHead[Any], given: GivenValues) -> float:
        """Read values and hand them to the run that waits for them, or has waited; how long they took to come [ms].

        Nothing is read before it is known how many bytes the run waits for. TicketError, StreamError.
        """
        awaited = await self._known(given.ticket)
        if len(given.tensors) != len(awaited.shapes):
            raise TicketError(f"{len(given.tensors)} tensors; the run waits for {len(awaited.shapes)}")
        (self._waiting if given.ticket in self._waiting else self._late).pop(given.ticket, None)  # once
        start_s = time.perf_counter()
        try:
            content = await frames.payload(head, coded_bytes(awaited.shapes, given.tensors))
        except BaseException:
            if not awaited.values.done():
                self._waiting[given.ticket] = awaited  # home may still bring them
            raise
        received_ms = (time.perf_counter() - start_s) * 1e3
        if not awaited.values.done():
            awaited.values.set_result(CameValues(given.tensors, content, received_ms))
        return received_ms

    async def _known(self, ticket: str) -> _Awaited:
        try:
            async with asyncio.timeout(TICKET_LIMIT_S):
                while (found := self._waiting.get(ticket) or self._late.get(ticket)) is None:
                    await self._announced.wait()
        except TimeoutError as error:
            raise TicketError("values that no run waits for") from error
        return found
