"""One client of the local socket, for its whole connection. Several of its requests may be in flight."""

import asyncio
import logging
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

from adaptive_runtime.server.answering import BODY_S, AskedAnswer, ModelService
from adaptive_runtime.server.local.frames import (
    PREFIX,
    REQUEST_FIELDS,
    FramePrefix,
    RequestHead,
    answer_frame,
    refusal_frame,
)
from adaptive_runtime.server.refusals import RequestRefused

LOG = logging.getLogger("adaptive_runtime.server")
MOST_IN_FLIGHT = 64
"""Limit of unanswered requests of one client; no more are read until it takes an answer."""
TAKEN_S = 10.0
"""A client that takes no part of its answers for so long is disconnected."""
ENDED_S = 30.0
"""Time for answering accepted requests when the service ends."""
CLOSED_S = 1.0
CHUNK_BYTES = 1 << 16


class _AcceptedRequest(NamedTuple):
    """A parsed request, with its place in the queue."""

    number: int
    asked: AskedAnswer
    place: ExitStack


class LocalConnection:
    """An open connection. most_bytes: size limit of a request. An invalid frame ends it, with one line."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: ModelService, most_bytes: int
    ) -> None:
        self._reader, self._writer, self._service, self._most_bytes = reader, writer, service, most_bytes
        self._room = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._answering: set[asyncio.Task[None]] = set()
        self._left_bytes, self._until_s = 0, 0.0

    async def serve(self) -> None:
        """Answer until one side ends the connection. Cancelled: accepted requests are answered first."""
        try:
            while await self._next():
                pass
        except OSError:
            self._writer.transport.abort()  # the client has gone
        except asyncio.CancelledError:
            if self._answering:
                await asyncio.wait(self._answering, timeout=ENDED_S)
            raise
        finally:
            for task in self._answering:
                task.cancel()
            await self._end()

    async def refuse(self, refused: RequestRefused) -> None:
        """Send the reason why the client is not served, and close."""
        await self._send(refusal_frame(0, refused))
        await self._end()

    async def _next(self) -> bool:
        """Read a request and begin to answer it. False: the connection is over."""
        await self._room.acquire()
        first = b"" if self._writer.is_closing() else await self._reader.read(1)
        if not first:
            return False
        arrived_s, self._until_s = time.monotonic(), asyncio.get_running_loop().time() + BODY_S
        prefix: FramePrefix | None = None
        try:
            with self._service.counted():
                prefix = FramePrefix.read(first + await self._exactly(PREFIX.size - 1))
                self._left_bytes = prefix.content_bytes
                accepted = await self._accept(prefix, arrived_s)
        except RequestRefused as refused:
            self._room.release()
            await self._send(refusal_frame(0 if prefix is None else prefix.number, refused))
            await asyncio.sleep(0)  # let other tasks run, however many wrong frames have come already
            return prefix is not None and await self._skipped()
        task = asyncio.create_task(self._answer(accepted))
        self._answering.add(task)
        task.add_done_callback(lambda _: self._done(task, accepted))
        return True

    async def _accept(self, prefix: FramePrefix, arrived_s: float) -> _AcceptedRequest:
        """Read the request behind a prefix, and take its place in the queue. RequestRefused."""
        if not REQUEST_FIELDS.size <= prefix.content_bytes <= self._most_bytes:
            status, least = 413 if prefix.content_bytes > self._most_bytes else 400, REQUEST_FIELDS.size
            allowed = f"at least {least}, at most {self._most_bytes} bytes"
            raise RequestRefused(status, f"frame: {prefix.content_bytes} bytes; allowed: {allowed}")
        with ExitStack() as place:
            place.enter_context(self._service.place())
            fields = await self._exactly(REQUEST_FIELDS.size)
            head = RequestHead.read(fields, prefix.content_bytes, self._service.model.format)
            values = head.values(await self._exactly(self._left_bytes))
            asked = AskedAnswer(values, arrived_s, head.deadline_ms, head.subnet)
            return _AcceptedRequest(prefix.number, asked, place.pop_all())

    async def _answer(self, accepted: _AcceptedRequest) -> None:
        """Answer a request, or send the refusal."""
        service, number = self._service, accepted.number
        try:
            with service.counted():
                with accepted.place:
                    given = await service.answer(accepted.asked)
                frame = answer_frame(number, given)
                service.answered(given)
        except RequestRefused as refused:
            frame = refusal_frame(number, refused)
        except Exception as error:
            LOG.exception("a request of the local socket failed")
            frame = refusal_frame(number, RequestRefused(500, f"the service failed: {type(error).__name__}"))
        await self._send(frame)

    def _done(self, task: asyncio.Task[None], accepted: _AcceptedRequest) -> None:
        accepted.place.close()  # a task cancelled before its first step still holds the place
        self._answering.discard(task)
        self._room.release()

    async def _exactly(self, count: int) -> bytes:
        """Read bytes of a frame before the time limit. RequestRefused."""
        try:
            async with asyncio.timeout_at(self._until_s):
                content = await self._reader.readexactly(count)
        except TimeoutError as error:
            raise RequestRefused(408, f"the frame was not there after {BODY_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise RequestRefused(400, "the frame broke off") from error
        self._left_bytes -= count
        return content

    async def _skipped(self) -> bool:
        """Discard the rest of a frame. False: it is too long, or does not come."""
        if self._left_bytes > self._most_bytes:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._until_s):
                while self._left_bytes:
                    chunk = await self._reader.read(min(self._left_bytes, CHUNK_BYTES))
                    if not chunk:
                        return False
                    self._left_bytes -= len(chunk)
        return not self._left_bytes

    async def _send(self, frame: tuple[bytes, ...]) -> None:
        """Send a frame; disconnect a client that has gone or takes nothing."""
        try:
            self._writer.writelines(frame)
            async with asyncio.timeout(TAKEN_S):
                await self._writer.drain()
        except OSError:  # a timeout, too
            self._writer.transport.abort()

    async def _end(self) -> None:
        """Close; the client has a moment to take the rest."""
        self._writer.close()
        with suppress(OSError):
            async with asyncio.timeout(CLOSED_S):
                await self._writer.wait_closed()
