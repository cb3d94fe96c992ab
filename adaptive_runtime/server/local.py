"""The local socket of a service for programs on the same device: its file, clients, connections and frames.

[The service](docs/runtime_service.md#from-other-languages) has the frames; `adaptive_runtime/clients/c/` has a client.

Clients are in any language. Frames are binary: fixed fields, little-endian, followed by values or text, and are served
like HTTP requests. Every frame begins with a prefix: magic, version, kind, the number of the request, and the number of
bytes that follow. Only numbers and text are read, after their sizes were compared with the model's. Several requests of
a client may be in flight. The socket's file is for its owner alone; it replaces a file whose socket is dead.
"""

import asyncio
import errno
import fcntl
import logging
import math
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.server.answering import BODY_S, AskedAnswer, GivenAnswer, ModelService
from adaptive_runtime.server.inference import INPUT, InferenceFormat
from adaptive_runtime.server.protocol import MOST_DEADLINE_MS, RequestRefused, require_finite, shown

MAGIC = b"ATLS"
VERSION = 1
PREFIX = struct.Struct("<4sHHQQ")
"""Magic, version, kind, number of the request, number of bytes that follow."""
REQUEST, ANSWER, REFUSAL = 1, 2, 3
"""Kinds of frames."""
REQUEST_FIELDS = struct.Struct("<d4I64s")
"""Deadline [ms] (0: the service's), shape (N, C, H, W) or for texts (N, T, 1, 1), digest of a SubNet (zeros: the serving one).

Values follow: float32 for images, int64 numbers of words for texts.
"""
ANSWER_FIELDS = struct.Struct("<dddIII")
"""Latency, waited, late [ms] (0: in time), samples N, classes K, bytes of names.

Logits (N, K) follow, then the names: SubNet and exit of each sample, each followed by a zero byte.
"""
REFUSAL_FIELDS = struct.Struct("<II")
"""Status, and the delay before a retry [ms] (0: not specified). One line follows."""


class FramePrefix(NamedTuple):
    """The beginning of a frame."""

    magic: bytes
    version: int
    kind: int
    number: int
    content_bytes: int

    @classmethod
    def read(cls, content: bytes) -> "FramePrefix":
        """Parse the beginning of a frame. RequestRefused: it is no frame of a client."""
        found = cls._make(PREFIX.unpack(content))
        if found.magic != MAGIC:
            raise RequestRefused(400, "the bytes are no frame of a local client")
        if found.version != VERSION:
            raise RequestRefused(400, f"frame: version {found.version}; allowed: {VERSION}; update client or service")
        if found.kind != REQUEST:
            raise RequestRefused(400, f"frame: kind {found.kind}; allowed: {REQUEST}")
        return found


class RequestHead(NamedTuple):
    """A request before its values are read. deadline_ms, subnet: None: the service's. shape: of the values."""

    deadline_ms: float | None
    shape: tuple[int, ...]
    subnet: str | None
    wanted: InferenceFormat

    @classmethod
    def read(cls, content: bytes, content_bytes: int, wanted: InferenceFormat) -> "RequestHead":
        """Parse and check the fields of a request. content_bytes: of the whole frame. RequestRefused."""
        deadline_ms, *sizes, digest = REQUEST_FIELDS.unpack(content)
        if deadline_ms and not 0 < deadline_ms <= MOST_DEADLINE_MS:
            got = f"deadline_ms: {deadline_ms:g}"
            raise RequestRefused(400, f"{got}; allowed: above 0, at most {MOST_DEADLINE_MS:g}; or 0: the service's")
        if wanted.taken.inputs is not None:
            told = ", ".join(wanted.taken.inputs)
            raise RequestRefused(400, f"the model takes {told}, and the local socket one input; ask over HTTP")
        shape = tuple(sizes) if wanted.taken.words is None or sizes[2:] != [1, 1] else tuple(sizes[:2])
        wanted.require(shape)
        allowed = wanted.taken.dtype.itemsize * math.prod(shape)
        if content_bytes - REQUEST_FIELDS.size != allowed:
            got = f"input '{INPUT}': {content_bytes - REQUEST_FIELDS.size} bytes of values"
            raise RequestRefused(400, f"{got}; allowed for its shape: {allowed}")
        name = digest.rstrip(b"\0")
        if not name.isalnum() and name:
            raise RequestRefused(400, f"subnet: {shown(name)}; allowed: a digest, or zeros: the one that serves")
        return cls(deadline_ms or None, shape, name.decode("ascii") or None, wanted)

    def values(self, content: bytes) -> NDArray[Any]:
        """Parse and check the values behind the fields. RequestRefused."""
        found = np.frombuffer(content, self.wanted.taken.dtype.newbyteorder("<"))
        self.wanted.require_words(found)
        return require_finite(f"input '{INPUT}'", found).reshape(self.shape)


def answer_frame(number: int, given: GivenAnswer) -> tuple[bytes, ...]:
    """The frame of an answer, in parts."""
    answer = given.answer
    logits = np.ascontiguousarray(answer.logits, "<f4")
    names = "".join(f"{name}\0" for pair in zip(answer.subnets, answer.exits, strict=True) for name in pair).encode()
    times = (answer.latency_ms, given.waited_ms, given.late_ms)
    fields = ANSWER_FIELDS.pack(*times, *logits.shape, len(names))
    size = len(fields) + logits.nbytes + len(names)
    return PREFIX.pack(MAGIC, VERSION, ANSWER, number, size) + fields, logits.tobytes(), names


def refusal_frame(number: int, refused: RequestRefused) -> tuple[bytes, ...]:
    """The frame of a refused request; number 0: the connection is refused."""
    line = str(refused).encode()
    again_ms = round(1e3 * refused.retry_after_s) if refused.status == 429 else 0
    fields = REFUSAL_FIELDS.pack(refused.status, again_ms)
    return (PREFIX.pack(MAGIC, VERSION, REFUSAL, number, len(fields) + len(line)) + fields + line,)


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


MOST_CLIENTS = 64
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other side, from the kernel."""


async def serve_local(listener: socket.socket, service: ModelService, most_bytes: int) -> None:
    """Serve until cancelled; then answer the accepted requests. most_bytes: size limit of a request."""
    clients = _LocalClients(service, most_bytes)
    server = await asyncio.start_unix_server(clients.connected, sock=listener, backlog=MOST_CLIENTS)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        await clients.end()


class _LocalClients:
    """All connections; those beyond `MOST_CLIENTS` and those of other users are refused."""

    def __init__(self, service: ModelService, most_bytes: int) -> None:
        self._service, self._most_bytes = service, most_bytes
        self._open: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        connection = LocalConnection(reader, writer, self._service, self._most_bytes)
        user = _user(writer)
        if user not in (os.geteuid(), 0):
            await connection.refuse(RequestRefused(403, f"user {user}: the socket is of user {os.geteuid()}"))
        elif len(self._open) >= MOST_CLIENTS:
            await connection.refuse(RequestRefused(429, f"more than {MOST_CLIENTS} connections; close one"))
        else:
            task = asyncio.create_task(connection.serve())
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        """End all connections, side by side."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)


def _user(writer: asyncio.StreamWriter) -> int:
    """The user of the other side."""
    other = writer.get_extra_info("socket")
    return int(CREDENTIALS.unpack(other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[1])


MOST_PATH_BYTES = 107
"""Limit for the path of a socket, in Linux."""
MODE = 0o600
BACKLOG = 64
LOCKED_S = 5.0
CHECK_S = 0.05
NEXT_STEP = "choose another path with --socket"


@contextmanager
def listening(path: Path | None) -> Iterator[socket.socket | None]:
    """A listening socket at this path until the end of the block; None without a path. AdaptiveError: it cannot be created."""
    if path is None:
        yield None
        return
    where = f"--socket '{path}'"
    _require_possible(path, where)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with _locked(path.parent, where):
                _remove_stale(path, where)
                listener.bind(str(path))
                path.chmod(MODE)  # nobody can connect before it listens
                listener.listen(BACKLOG)
                own = path.lstat()
        except OSError as error:
            raise AdaptiveError(where, f"cannot be made ({error.strerror})", next_step=NEXT_STEP) from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                found = path.lstat()
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    path.unlink()


def _require_possible(path: Path, where: str) -> None:
    """AdaptiveError: no socket can have this path here."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise AdaptiveError(where, "this system does not tell who connects", next_step="leave it out")
    size = len(os.fsencode(path))
    if size > MOST_PATH_BYTES:
        got = f"the path has {size} bytes"
        raise AdaptiveError(where, got, allowed=f"at most {MOST_PATH_BYTES}", next_step="choose a shorter one")


@contextmanager
def _locked(folder: Path, where: str) -> Iterator[None]:
    """Lock the folder, so that services that start together check their files one after the other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end_s = time.monotonic() + LOCKED_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end_s:
                    raise AdaptiveError(where, "another program locks its folder", next_step=NEXT_STEP) from error
                time.sleep(CHECK_S)
        yield
    finally:
        os.close(handle)


def _remove_stale(path: Path, where: str) -> None:
    """Remove a dead socket. AdaptiveError: the path is in use. OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise AdaptiveError(where, "exists, and is no socket", next_step=NEXT_STEP)
    if found.st_uid != os.geteuid():
        raise AdaptiveError(where, f"is a socket of user {found.st_uid}", next_step=NEXT_STEP)
    with socket.socket(socket.AF_UNIX) as other:
        other.setblocking(False)  # a full connection queue counts as alive
        if other.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
            return
    raise AdaptiveError(where, "another program answers there", next_step=f"end it, or {NEXT_STEP}")
