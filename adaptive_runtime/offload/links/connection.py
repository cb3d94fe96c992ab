"""The coordinator's end of one connection to a device that serves segments: greeting, SubNet, requests, probes.

Answers are matched with requests by number. Any frame other than an awaited answer with exactly the size that the SubNet
implies ends the connection before it is read.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.offload.links.measures import SharedLink
from profiling_agents.messages import (
    DEVICE_MESSAGES,
    STREAM_PROTOCOL,
    ActivationCoding,
    DeviceMessage,
    GivenTimes,
    GivenValues,
    Hello,
    KeptFile,
    LoadedSubNet,
    LoadSubNet,
    Message,
    MissedValues,
    RanSegments,
    Receiver,
    RefusedStream,
    ReturnedProbe,
    RunSegments,
    SentActivation,
    SentFile,
    SentProbe,
    ServedSubNet,
    Shape,
    TookValues,
    Welcome,
    coded_bytes,
)
from profiling_agents.streams import (
    Buffer,
    FrameHead,
    FrameReader,
    FrameWriter,
    StreamEndError,
    StreamError,
    abandon,
    kept,
)

ANSWER_LIMIT_S = 60.0
"""For the greeting and for loading a SubNet."""

Answer = TypeVar("Answer", Welcome, LoadedSubNet, KeptFile)


class PeerLostError(Exception):
    """The connection was lost, or was ended because the device broke the protocol. One line."""


class PeerRefusedError(PeerLostError):
    """The device refuses the coordinator, or must not be used; a retry would not help. One line."""


class ValuesMissedError(PeerLostError):
    """The values that a run waited for did not come in time; the connection stays. One line."""


class PeerTimes(NamedTuple):
    """Durations of one request [ms]: total, way to the device, waiting and computing there, way back, round trip."""

    total_ms: float
    up_ms: float
    waited_ms: float
    computed_ms: float
    down_ms: float
    round_trip_ms: float


class RunWay(NamedTuple):
    """Source and destination of a run's values, if they are not the coordinator.

    ticket: identifies the incoming values. receiver: destination of the results. within_ms: the time for both.
    """

    ticket: str | None = None
    receiver: Receiver | None = None
    within_ms: float = 0.0


BY_COORDINATOR = RunWay()


class PeerAnswer(NamedTuple):
    """Coded tensors of an answer, in the order of `ServedSubNet.leaving`.

    given: set if the tensors went to the receiver instead. not_given: why they are here although a receiver was named.
    """

    activations: tuple[SentActivation, ...]
    content: bytearray
    times: PeerTimes
    given: GivenTimes | None = None
    not_given: str = ""


def _future() -> "asyncio.Future[PeerAnswer]":
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A pending request, probe or gift. names: the tensors of a request's answer; empty for probes and gifts.

    alone: no request was pending before it, and it waits for nothing else. counts: whether it is used to measure the link.
    """

    kind: type[RanSegments | ReturnedProbe | TookValues]
    up_bytes: int
    alone: bool
    names: tuple[str, ...] = ()
    coding: ActivationCoding = "fp32"
    back_bytes: int = 0
    counts: bool = True
    way: RunWay = BY_COORDINATOR
    start_s: float = field(default_factory=time.perf_counter)
    answer: "asyncio.Future[PeerAnswer]" = field(default_factory=_future)


class PeerConnection:
    """An open connection, in one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: SharedLink) -> None:
        self._stream, self._frames, self._requests = writer, FrameReader(reader, DEVICE_MESSAGES), FrameWriter(writer)
        self._link = link
        link.opened()
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._subnet: ServedSubNet | None = None
        self._shapes: dict[str, Shape] = {}
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason of the loss, once the connection is lost."""
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: DeviceAddress, link: SharedLink) -> tuple["PeerConnection", Welcome]:
        """Connect and send the token. PeerRefusedError, PeerLostError, AdaptiveError."""
        host, port, context = address.parts
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except (OSError, ValueError) as error:  # also TLS errors: certificate errors are both
            raise PeerLostError(f"cannot be reached ({error})") from error
        kept(writer)
        opened = cls(reader, writer, link)
        try:
            hello = Hello(protocol=STREAM_PROTOCOL, token=address.token)
            welcome = await opened._answer_to(hello, Welcome)
        except BaseException:
            opened.end("not greeted")
            raise
        if welcome.protocol != STREAM_PROTOCOL:
            opened.end("of another protocol")
            raise PeerRefusedError(f"speaks protocol {welcome.protocol}; allowed: {STREAM_PROTOCOL}")
        return opened, welcome

    @property
    def in_flight(self) -> int:
        """Number of pending requests and probes."""
        return len(self._asked)

    async def load(self, subnet: ServedSubNet, files: Mapping[str, bytes]) -> None:
        """Let the device load the SubNet, and send the files that it lacks. Requests are possible afterwards.

        files: contents by sha256. PeerRefusedError, PeerLostError.
        """
        assert self._reading is None, "once for each connection"
        for _ in range(2):
            loaded = await self._answer_to(LoadSubNet(subnet=subnet), LoadedSubNet)
            if loaded.digest != subnet.digest:
                raise PeerRefusedError(f"has another SubNet ({loaded.digest[:16]}… instead of {subnet.digest[:16]}…)")
            if not loaded.missing:
                self._subnet, self._shapes = subnet, subnet.shapes
                self._reading = asyncio.create_task(self._read())
                return
            for digest in loaded.missing:
                if digest not in files:
                    raise PeerRefusedError("asks for a file that its SubNet does not have")
                kept_file = await self._answer_to(SentFile(sha256=digest), KeptFile, [files[digest]])
                if kept_file.sha256 != digest:
                    raise PeerRefusedError(f"has another file ({kept_file.sha256[:16]}… instead of {digest[:16]}…)")
        raise PeerLostError("still lacks files that were sent")

    async def run(
        self,
        first: int,
        last: int,
        tensors: Sequence[tuple[SentActivation, bytes]],
        coding: ActivationCoding,
        way: RunWay = BY_COORDINATOR,
    ) -> PeerAnswer:
        """Run segments first … last on coded tensors, in the order of `ServedSubNet.entering`. PeerLostError.

        tensors: empty if the values come with the ticket of `way`. ValuesMissedError: they have not come.
        """
        assert self._subnet is not None, "loaded"
        content = [part for _, part in tensors]
        names = self._subnet.leaving(first, last)
        alone, number = not self._asked and way is BY_COORDINATOR, next(self._numbers)
        up_bytes = sum(map(len, content))
        asked = _Asked(kind=RanSegments, up_bytes=up_bytes, alone=alone, names=names, coding=coding, way=way)
        message = RunSegments(
            request=number,
            first=first,
            last=last,
            tensors=tuple(one for one, _ in tensors),
            coding=coding,
            ticket=way.ticket,
            receiver=way.receiver,
            within_ms=way.within_ms,
        )
        return await self._answered(number, asked, message, content)

    async def give(self, ticket: str, activations: tuple[SentActivation, ...], content: Buffer) -> PeerAnswer:
        """Send coded tensors to a run that waits for them with a ticket. PeerLostError."""
        number = next(self._numbers)
        asked = _Asked(kind=TookValues, up_bytes=len(content), alone=not self._asked)
        message = GivenValues(request=number, ticket=ticket, tensors=activations)
        return await self._answered(number, asked, message, [content])

    async def probe(self, up_bytes: int, back_bytes: int, *, counts: bool = True) -> PeerAnswer:
        """Send and receive dummy bytes to time the link. PeerLostError."""
        number, alone = next(self._numbers), not self._asked
        asked = _Asked(kind=ReturnedProbe, up_bytes=up_bytes, alone=alone, back_bytes=back_bytes, counts=counts)
        message = SentProbe(request=number, bytes=up_bytes, back=back_bytes)
        return await self._answered(number, asked, message, [bytes(up_bytes)])

    def end(self, reason: str) -> None:
        """Close now; pending requests fail with the reason."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._link.closed()
        if self._reading is not None:
            self._reading.cancel()
        abandon(self._stream)
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(PeerLostError(reason))
        self._asked.clear()

    async def _answer_to(self, message: Message, kind: type[Answer], payload: Sequence[Buffer] = ()) -> Answer:
        """Exchange one message and its answer, before requests start."""
        try:
            await self._requests.send(message, payload)
            async with asyncio.timeout(ANSWER_LIMIT_S):
                head = await self._frames.head()
                await self._frames.payload(head, 0)
                self._link.heard()
        except TimeoutError as error:
            raise PeerLostError(f"has not answered within {ANSWER_LIMIT_S:g} s") from error
        except (OSError, StreamError, StreamEndError) as error:
            raise PeerLostError(str(error) or "has closed the connection") from error
        answer = head.message
        if isinstance(answer, RefusedStream):
            raise (PeerRefusedError if answer.final else PeerLostError)(f"refuses: {shown(answer.line)}")
        if not isinstance(answer, kind):
            raise PeerLostError(f"answers with '{answer.kind}'")
        return answer

    async def _answered(self, number: int, asked: _Asked, message: Message, payload: Sequence[Buffer]) -> PeerAnswer:
        if self.lost.done():
            raise PeerLostError(self.lost.result())
        self._asked[number] = asked
        try:
            await self._requests.send(message, payload)
        except (OSError, StreamError) as error:
            self.end(str(error))
        try:
            return await asked.answer
        finally:
            if asked.answer.cancelled():
                self.end("a request was given up")

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._frames.head())
        except (OSError, StreamError) as error:
            self.end(str(error))
        except StreamEndError:
            self.end("has closed the connection")

    async def _take(self, head: FrameHead[DeviceMessage]) -> None:
        start_s, answer = time.perf_counter(), head.message
        if isinstance(answer, RefusedStream):
            raise StreamError(f"refuses: {shown(answer.line)}")
        if not isinstance(answer, RanSegments | MissedValues | TookValues | ReturnedProbe):
            raise StreamError(f"frame: '{answer.kind}' where answers of requests are allowed")
        asked = self._asked.get(answer.request)
        if asked is None or not (
            isinstance(answer, asked.kind) or (isinstance(answer, MissedValues) and asked.way.ticket)
        ):
            raise StreamError(f"frame: an answer to request {answer.request}, for which the coordinator does not wait")
        if isinstance(answer, MissedValues):
            await self._frames.payload(head, 0)
            del self._asked[answer.request]
            if not asked.answer.done():
                asked.answer.set_exception(ValuesMissedError("values for it have not come"))
            return
        expected, waited_ms, computed_ms = self._expected(asked, answer), 0.0, 0.0
        if isinstance(answer, RanSegments):
            waited_ms, computed_ms = answer.waited_ms, answer.computed_ms
        content = await self._frames.payload(head, expected)
        end_s = time.perf_counter()
        self._link.heard()
        total_ms, down_ms = (end_s - asked.start_s) * 1e3, (end_s - start_s) * 1e3
        round_trip_ms = total_ms - down_ms - answer.received_ms - (waited_ms + computed_ms)
        if asked.counts:
            if asked.way.ticket is None:
                self._link.up(asked.up_bytes, answer.received_ms)
            self._link.down(expected, down_ms)
            if asked.alone:
                self._link.round_trip(round_trip_ms)
        del self._asked[answer.request]
        if asked.answer.done():
            return
        times = PeerTimes(total_ms, answer.received_ms, waited_ms, computed_ms, down_ms, round_trip_ms)
        result = PeerAnswer(activations=(), content=content, times=times)
        if isinstance(answer, RanSegments):
            result = result._replace(activations=answer.tensors, given=answer.given, not_given=answer.not_given)
        asked.answer.set_result(result)

    def _expected(self, asked: _Asked, answer: RanSegments | TookValues | ReturnedProbe) -> int:
        """Size of the answer [bytes]. StreamError: other tensors than requested."""
        if isinstance(answer, ReturnedProbe):
            if answer.bytes != asked.back_bytes:
                raise StreamError(f"frame: a probe of {answer.bytes} bytes; allowed here: {asked.back_bytes}")
            return asked.back_bytes
        if isinstance(answer, TookValues) or (
            asked.way.receiver is not None and answer.given is not None and not answer.tensors
        ):
            return 0
        codings = {one.coding for one in answer.tensors} - {asked.coding, "fp32"}
        if len(answer.tensors) != len(asked.names) or codings:
            got = f"{len(answer.tensors)} tensors {' '.join(sorted(codings))}".strip()
            raise StreamError(f"frame: {got}; allowed here: {len(asked.names)} in {asked.coding} or fp32")
        return coded_bytes([self._shapes[name] for name in asked.names], answer.tensors)


def shown(line: str) -> str:
    """A device's text, shortened to one line and without characters that would change a terminal."""
    plain = "".join(char if char.isprintable() else " " for char in line)
    return " ".join(plain.split())[:300]
