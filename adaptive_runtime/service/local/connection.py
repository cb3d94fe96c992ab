"""One client of the local socket, from its first byte to its last. Several of its requests may be on their way."""

import asyncio
import logging
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

from adaptive_runtime.service.answering import BODY_S, AskedAnswer, ModelService
from adaptive_runtime.service.local.frames import (
    PREFIX,
    REQUEST_FIELDS,
    FramePrefix,
    RequestHead,
    answer_frame,
    refusal_frame,
)
from adaptive_runtime.service.refusals import RequestRefused

LOG = logging.getLogger("adaptive_runtime.service")
MOST_IN_FLIGHT = 64
"""Requests of one client whose answers it has not taken; no more are read until it takes one."""
TAKEN_S = 10.0
"""A client that takes nothing of its answers for so long is left."""
ENDED_S = 30.0
"""When the service ends, what was accepted has so long to be answered."""
CLOSED_S = 1.0
CHUNK_BYTES = 1 << 16


class _AcceptedRequest(NamedTuple):
    """A request that was read, with the place in the queue that it holds."""

    number: int
    asked: AskedAnswer
    place: ExitStack


class LocalConnection:
    """A connection that is open. most_bytes: of a request. What is no frame ends it, with one line."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: ModelService, most_bytes: int
    ) -> None:
        self._reader, self._writer, self._service, self._most_bytes = reader, writer, service, most_bytes
        self._room = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._answering: set[asyncio.Task[None]] = set()
        self._left_bytes, self._until_s = 0, 0.0

    async def serve(self) -> None:
        """Answer until one side ends it. Cancelled: what was accepted is answered first."""
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
        """Say why the client is not served, and close."""
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
            await asyncio.sleep(0)  # the turn of others, however many wrong frames have come already
            return prefix is not None and await self._skipped()
        task = asyncio.create_task(self._answer(accepted))
        self._answering.add(task)
        task.add_done_callback(lambda _: self._done(task, accepted))
        return True

    async def _accept(self, prefix: FramePrefix, arrived_s: float) -> _AcceptedRequest:
        """The request behind a prefix, in the queue's order. RequestRefused."""
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
        """Answer a request, or say why not."""
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
        accepted.place.close()  # cancelled before its first step, it still holds it
        self._answering.discard(task)
        self._room.release()

    async def _exactly(self, count: int) -> bytes:
        """Bytes of a frame, which is there in time. RequestRefused."""
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
        """Throw away the rest of a frame. False: it is too long, or does not come."""
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
        """Send a frame; a client that has gone, or takes nothing, is left."""
        try:
            self._writer.writelines(frame)
            async with asyncio.timeout(TAKEN_S):
                await self._writer.drain()
        except OSError:  # a timeout, too
            self._writer.transport.abort()

    async def _end(self) -> None:
        """Close; what the client has not taken has a moment."""
        self._writer.close()
        with suppress(OSError):
            async with asyncio.timeout(CLOSED_S):
                await self._writer.wait_closed()
