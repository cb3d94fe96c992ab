"""Outputs of a run go straight to another device, over one kept connection, if this device's operator allows it.

The coordinator sends the address and a proof that it has the other device's token. This device connects only to addresses
that its operator has named, whatever a coordinator sends.

Runs of this device wait for values, which arrive with a ticket from another device or from the coordinator. The ticket is a
random number of one run, which only the coordinator and the device to which it sends the ticket know.
"""

import asyncio
import itertools
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from profiling_agents import messages
from profiling_agents.network.endpoint import host_and_port
from profiling_agents.streams import FrameHead, FrameReader, FrameWriter, StreamEndError, StreamError, abandon, kept

CONNECT_LIMIT_S = 2.0
PAUSE_S = 0.5
"""Pause after a device was not reached, before this device tries again."""
MOST_RECEIVERS = 8
"""Limit of kept connections; the least recently used one makes room."""
SCHEMES = ("tcp", "tls")
LONGEST_LINE = 300


class NotGivenError(messages.AgentError):
    """The values have not reached the other device; the coordinator takes them. One line."""


class _Where(NamedTuple):
    """The target of a connection."""

    url: str
    digest: str
    proof: str


class GivingValues:
    """The connections over which this device gives values. allowed: addresses in the form of `peer_address`.

    ca_file: certificate (PEM) that other devices are checked against; None: the system's certificates.
    """

    def __init__(self, allowed: Sequence[str], ca_file: Path | None = None) -> None:
        self.allowed = frozenset(allowed)
        self._ca_file = ca_file
        self._open: dict[_Where, asyncio.Task[_Connection]] = {}
        self._failed_s: dict[str, float] = {}

    async def give(
        self, receiver: messages.Receiver, tensors: tuple[messages.SentActivation, ...], content: bytes, within_s: float
    ) -> messages.GivenTimes:
        """Give coded tensors to the run that waits for them. NotGivenError: they did not arrive, or may not be given."""
        host, port, secure = self._checked(receiver.url)
        start_s = time.perf_counter()
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connection(receiver, host, port, secure=secure)
                received_ms = await connection.give(receiver.ticket, tensors, content)
                total_ms = (time.perf_counter() - start_s) * 1e3
                return messages.GivenTimes(
                    bytes=len(content), total_ms=total_ms, received_ms=min(received_ms, total_ms)
                )
        except TimeoutError as error:
            raise NotGivenError(f"{host_and_port(host, port)}: has not taken values in time") from error
        except (OSError, StreamError, StreamEndError) as error:
            said = str(error) or "has closed the connection"
            raise NotGivenError(f"{host_and_port(host, port)}: {said}"[:LONGEST_LINE]) from error

    def close(self) -> None:
        """End all connections."""
        for where in tuple(self._open):
            self._drop(where)

    def _checked(self, url: str) -> tuple[str, int, bool]:
        """Host, port, and whether TLS is used. NotGivenError: an invalid address, or one that the operator does not allow."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or port is None or parts.scheme not in SCHEMES:
            raise NotGivenError("the receiver's address is none; allowed: tcp://HOST:PORT, tls://HOST:PORT")
        if (address := host_and_port(host, port)) not in self.allowed:
            shown = "".join(char if char.isprintable() else " " for char in address)[:100]
            raise NotGivenError(f"{shown} is not allowed here; its operator allows it with --allow-peer {shown}")
        return host, port, parts.scheme == "tls"

    async def _connection(self, receiver: messages.Receiver, host: str, port: int, *, secure: bool) -> "_Connection":
        """The open connection, or a new one; concurrent callers wait for the same one. OSError, StreamError, StreamEndError."""
        where, address = _Where(receiver.url, receiver.digest, receiver.proof), host_and_port(host, port)
        opening = self._open.pop(where, None)
        if opening is None or _has_ended(opening):
            if time.monotonic() - self._failed_s.get(address, -PAUSE_S) < PAUSE_S:
                raise StreamError("was not reached just now")
            opening = asyncio.create_task(self._opened(where, host, port, secure=secure))
        self._open[where] = opening  # most recently used last
        for old in tuple(self._open)[:-MOST_RECEIVERS]:
            self._drop(old)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise StreamError("the connection was ended") from None
            raise

    async def _opened(self, where: _Where, host: str, port: int, *, secure: bool) -> "_Connection":
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                context = ssl.create_default_context(cafile=self._ca_file) if secure else None
                return await _connected(where, host, port, context)
        except BaseException:
            self._failed_s[host_and_port(host, port)] = time.monotonic()
            raise

    def _drop(self, where: _Where) -> None:
        opening = self._open.pop(where)
        if not opening.done():
            opening.cancel()
        elif not _has_ended(opening):
            opening.result().end("the connection was ended")


@dataclass(slots=True)
class _Connection:
    """An open connection to a device that takes values."""

    stream: asyncio.StreamWriter
    frames: FrameReader[messages.DeviceMessage]
    ended: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _waiting: "dict[int, asyncio.Future[float]]" = field(default_factory=dict)
    _reading: "asyncio.Task[None] | None" = None
    _giver: FrameWriter | None = None

    async def greet(self, where: _Where) -> None:
        """Show the proof. StreamError, StreamEndError, OSError."""
        self._giver = FrameWriter(self.stream)
        await self._giver.send(
            messages.HelloDevice(protocol=messages.STREAM_PROTOCOL, digest=where.digest, proof=where.proof)
        )
        head = await self.frames.head()
        await self.frames.payload(head, 0)
        if isinstance(head.message, messages.RefusedStream):
            raise StreamError(f"refuses: {_shown(head.message.line)}")
        if not isinstance(head.message, messages.Welcome):
            raise StreamError(f"answers with '{head.message.kind}'")
        self._reading = asyncio.create_task(self._read())

    async def give(self, ticket: str, tensors: tuple[messages.SentActivation, ...], content: bytes) -> float:
        """Give values and return the time to receive them, as the other device reports it [ms]."""
        assert self._giver is not None, "greeted"
        number = next(self._numbers)
        taken: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[number] = taken
        try:
            await self._giver.send(messages.GivenValues(request=number, ticket=ticket, tensors=tensors), [content])
            return await taken
        except BaseException:
            self.end("values were not given")  # a part of their frame may be on the way
            raise
        finally:
            self._waiting.pop(number, None)

    def end(self, reason: str) -> None:
        """Close at once; values that were not taken fail with the reason."""
        if self.ended:
            return
        self.ended = True
        if self._reading is not None:
            self._reading.cancel()
        abandon(self.stream)
        for taken in self._waiting.values():
            if not taken.done():
                taken.set_exception(StreamError(reason))

    async def _read(self) -> None:
        reason = "has closed the connection"
        with suppress(StreamEndError):
            try:
                while True:
                    head = await self.frames.head()
                    await self.frames.payload(head, 0)
                    self._take(head.message)
            except (OSError, StreamError) as error:
                reason = str(error)
        self.end(reason)

    def _take(self, message: object) -> None:
        if isinstance(message, messages.RefusedStream):
            raise StreamError(f"refuses: {_shown(message.line)}")
        taken = self._waiting.get(message.request) if isinstance(message, messages.TookValues) else None
        if not isinstance(message, messages.TookValues) or taken is None:
            raise StreamError("answers what was not asked")
        if not taken.done():
            taken.set_result(message.received_ms)


async def _connected(where: _Where, host: str, port: int, context: ssl.SSLContext | None) -> _Connection:
    """A connection that is greeted. OSError, StreamError, StreamEndError."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ValueError as error:  # TLS reports certificate errors as two kinds of exceptions
        raise StreamError(f"cannot be reached ({error})") from error
    kept(writer)
    connection = _Connection(writer, FrameReader(reader, messages.DEVICE_MESSAGES))
    try:
        await connection.greet(where)
    except BaseException:
        connection.end("not greeted")
        raise
    return connection


def _shown(line: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in line).split())[:200]


def _has_ended(opening: "asyncio.Task[_Connection]") -> bool:
    """Whether a connection could not be opened, or has been closed."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().ended)


MOST_LATE = 256
"""Limit of remembered runs whose values came too late; late values are read and dropped."""
TICKET_LIMIT_S = 2.0
"""The values may arrive before their run does, since the two use different connections."""


class TicketError(messages.AgentError):
    """Values that no run waits for, or that differ from the awaited ones. One line."""


class CameValues(NamedTuple):
    """Coded tensors, and the time to receive them [ms]."""

    tensors: tuple[messages.SentActivation, ...]
    content: bytearray
    received_ms: float


@dataclass(frozen=True, slots=True)
class _Awaited:
    shapes: tuple[messages.Shape, ...]
    values: "asyncio.Future[CameValues]"


class AwaitedValues:
    """All runs of this device that wait for values; used by one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Awaited] = {}
        self._late: dict[str, _Awaited] = {}
        self._announced = asyncio.Event()

    async def wait(self, ticket: str, shapes: Sequence[messages.Shape], within_s: float) -> CameValues | None:
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

    async def take(self, frames: FrameReader[Any], head: FrameHead[Any], given: messages.GivenValues) -> float:
        """Read values for the run that waits, or has waited, for them; return the time to receive them [ms].

        Nothing is read before it is known how many bytes the run waits for. TicketError, StreamError.
        """
        awaited = await self._known(given.ticket)
        if len(given.tensors) != len(awaited.shapes):
            raise TicketError(f"{len(given.tensors)} tensors; the run waits for {len(awaited.shapes)}")
        (self._waiting if given.ticket in self._waiting else self._late).pop(given.ticket, None)  # valid once
        start_s = time.perf_counter()
        try:
            content = await frames.payload(head, messages.coded_bytes(awaited.shapes, given.tensors))
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
