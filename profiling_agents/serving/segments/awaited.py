"""Runs of this device that wait for values, which arrive with a ticket from another device or from the coordinator.

The coordinator makes a random ticket for one run. Only the device to which it sends the ticket knows it, too.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from profiling_agents.messages import AgentError, GivenValues, SentActivation, Shape, coded_bytes
from profiling_agents.streams.wire import FrameHead, FrameReader

MOST_LATE = 256
"""Limit of remembered runs whose values came too late; late values are read and dropped."""
TICKET_LIMIT_S = 2.0
"""The values may arrive before their run does, since the two use different connections."""


class TicketError(AgentError):
    """Values that no run waits for, or that differ from the awaited ones. One line."""


class CameValues(NamedTuple):
    """Coded tensors, and the time to receive them [ms]."""

    tensors: tuple[SentActivation, ...]
    content: bytearray
    received_ms: float


@dataclass(frozen=True, slots=True)
class _Awaited:
    shapes: tuple[Shape, ...]
    values: "asyncio.Future[CameValues]"


class AwaitedValues:
    """All runs of this device that wait for values; used by one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Awaited] = {}
        self._late: dict[str, _Awaited] = {}
        self._announced = asyncio.Event()

    async def wait(self, ticket: str, shapes: Sequence[Shape], within_s: float) -> CameValues | None:
        """The values of a ticket; None if they do not arrive in time. TicketError if another run has the ticket."""
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
        """Read values for the run that waits, or has waited, for them; return the time to receive them [ms].

        Nothing is read before it is known how many bytes the run waits for. TicketError, StreamError.
        """
        awaited = await self._known(given.ticket)
        if len(given.tensors) != len(awaited.shapes):
            raise TicketError(f"{len(given.tensors)} tensors; the run waits for {len(awaited.shapes)}")
        (self._waiting if given.ticket in self._waiting else self._late).pop(given.ticket, None)  # valid once
        start_s = time.perf_counter()
        try:
            content = await frames.payload(head, coded_bytes(awaited.shapes, given.tensors))
        except BaseException:
            if not awaited.values.done():
                self._waiting[given.ticket] = awaited  # the coordinator may still send them
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
