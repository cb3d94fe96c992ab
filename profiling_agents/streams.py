"""Streams of tensors over one kept connection: frames with lengths and checksums, and the coding of tensors in them.

One frame = magic, lengths of header and payload, checksums of both; JSON header; raw payload. All little-endian.

A reader states its size limit before it reads. Nothing is allocated for lengths that only the other side states.

Tensors between segments as bytes: fp32, fp16, or int8 with one scale for each tensor.

Proof to a device that another device was sent by a coordinator with its token; the other device never sees the token.

Settings of the sockets of kept connections.
"""

import asyncio
import hashlib
import hmac
import math
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from profiling_agents import messages

MAGIC = b"ATS1"
PREFIX = struct.Struct("<4sIQII")
LENGTHS = struct.Struct("<4sIQ")
"""The part of the prefix that the checksum of the header covers."""
MOST_HEAD_BYTES = 1 << 18
CHUNK_BYTES = 1 << 16
STALL_S = 30.0
"""A frame that makes no progress for this long is given up."""

Kind = TypeVar("Kind")
Buffer = bytes | bytearray | memoryview


class StreamError(messages.AgentError):
    """The other side broke the rules of a stream, or was cut off inside a frame; the connection ends. One line."""


class StreamEndError(Exception):
    """The other side closed the connection between two frames."""


@dataclass(frozen=True, slots=True)
class FrameHead(Generic[Kind]):
    """The head of a frame whose payload has not been read yet."""

    message: Kind
    payload_bytes: int
    checksum: int


class FrameReader(Generic[Kind]):
    """Frames of one connection. kinds: the messages that are accepted."""

    def __init__(self, stream: asyncio.StreamReader, kinds: TypeAdapter[Kind]) -> None:
        self._stream, self._kinds = stream, kinds

    async def head(self, most_bytes: int = MOST_HEAD_BYTES) -> FrameHead[Kind]:
        """The next frame's head, however long it takes to begin. StreamError, StreamEndError."""
        first = await self._stream.read(1)
        if not first:
            raise StreamEndError
        prefix = first + await self._exactly(PREFIX.size - 1)
        magic, head_bytes, payload_bytes, head_sum, payload_sum = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise StreamError("the bytes are no frame of a stream of segments")
        if head_bytes > most_bytes:
            raise StreamError(f"frame: header of {head_bytes} bytes; allowed here: {most_bytes}")
        header = await self._exactly(head_bytes)
        if zlib.crc32(header, zlib.crc32(prefix[: LENGTHS.size])) != head_sum:
            raise StreamError("frame: its header does not fit its checksum")
        try:
            message = self._kinds.validate_json(header)
        except ValidationError as error:
            raise StreamError(f"frame: {messages.one_line(error)}") from error
        return FrameHead(message, payload_bytes, payload_sum)

    async def payload(self, head: FrameHead[Kind], expected_bytes: int) -> bytearray:
        """The payload of `expected_bytes`. StreamError: another number of bytes, or content that differs from what was sent."""
        _require_bytes(head.payload_bytes, expected_bytes)
        content = bytearray(expected_bytes)
        start = 0
        async for chunk in self.chunks(head, expected_bytes):
            content[start : start + len(chunk)] = chunk
            start += len(chunk)
        return content

    async def chunks(self, head: FrameHead[Kind], expected_bytes: int) -> AsyncIterator[bytes]:
        """The payload in parts; the error of a wrong checksum is raised after the last part."""
        _require_bytes(head.payload_bytes, expected_bytes)
        left, found = expected_bytes, 0
        while left:
            chunk = await self._some(min(left, CHUNK_BYTES))
            found = zlib.crc32(chunk, found)
            left -= len(chunk)
            yield chunk
        if found != head.checksum:
            raise StreamError("frame: its payload does not fit its checksum")

    async def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            parts += await self._some(count - len(parts))
        return parts

    async def _some(self, most: int) -> bytes:
        try:
            async with asyncio.timeout(STALL_S):
                chunk = await self._stream.read(most)
        except TimeoutError as error:
            raise StreamError(f"frame: nothing came of it for {STALL_S:g} s") from error
        if not chunk:
            raise StreamError("frame: the connection ended inside of it")
        return chunk


def _require_bytes(got: int, expected: int) -> None:
    if got != expected:
        raise StreamError(f"frame: payload of {got} bytes; allowed here: {expected}")


class FrameWriter:
    """Frames to one connection, one after the other."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream, self._lock = stream, asyncio.Lock()

    async def send(self, message: messages.Message, payload: Sequence[Buffer] = ()) -> None:
        """Send a frame. StreamError: the other side takes nothing; OSError: it is gone."""
        header = message.model_dump_json().encode()
        payload_sum, payload_bytes = 0, 0
        for part in payload:
            payload_sum, payload_bytes = zlib.crc32(part, payload_sum), payload_bytes + len(part)
        lengths = LENGTHS.pack(MAGIC, len(header), payload_bytes)
        head_sum = zlib.crc32(header, zlib.crc32(lengths))
        prefix = PREFIX.pack(MAGIC, len(header), payload_bytes, head_sum, payload_sum)
        async with self._lock:
            await self._write(prefix + header)
            for part in payload:
                whole = memoryview(part)
                for start in range(0, len(whole), CHUNK_BYTES):
                    await self._write(whole[start : start + CHUNK_BYTES])

    async def _write(self, chunk: Buffer) -> None:
        self._stream.write(chunk)
        try:
            async with asyncio.timeout(STALL_S):
                await self._stream.drain()
        except TimeoutError as error:
            raise StreamError(f"the other side took nothing for {STALL_S:g} s") from error


FloatArray = NDArray[np.float32]
TYPES: dict[messages.ActivationCoding, str] = {"fp32": "<f4", "fp16": "<f2", "int8": "|i1"}
MOST_INT8 = 127
MOST_FP16 = float(np.finfo(np.float16).max)
STEPS: dict[messages.ActivationCoding, float] = {"fp32": 0.0, "fp16": 2.0**-11, "int8": 0.5 / MOST_INT8}
"""The largest change of a value by coding, relative to the largest value of its tensor."""


def encoded(tensor: FloatArray, coding: messages.ActivationCoding) -> tuple[messages.SentActivation, bytes]:
    """A tensor in a coding. A tensor with NaN or infinite values, or beyond fp16, stays in fp32."""
    if coding == "int8":
        most = float(np.abs(tensor).max(initial=0.0))
        scale = most / MOST_INT8 or 1.0
        # smaller scales would lose their own precision
        if math.isfinite(most) and scale >= np.finfo(np.float32).tiny:
            return messages.SentActivation(coding="int8", scale=scale), np.rint(tensor / scale).astype(
                TYPES["int8"]
            ).tobytes()
    if coding == "fp16" and np.abs(tensor).max(initial=0.0) <= MOST_FP16:
        return messages.SentActivation(coding="fp16"), tensor.astype(TYPES["fp16"]).tobytes()
    return messages.SentActivation(coding="fp32"), np.ascontiguousarray(tensor, TYPES["fp32"]).tobytes()


def decoded(
    sent: messages.SentActivation, shape: messages.Shape, content: bytes | bytearray | memoryview
) -> FloatArray:
    """The decoded tensor; the content has exactly its bytes."""
    values = np.frombuffer(content, TYPES[sent.coding]).reshape(shape)
    if sent.coding == "int8":
        return values * np.float32(sent.scale)
    return values.astype(np.float32, copy=False)


def decoded_all(
    sent: Sequence[messages.SentActivation], shapes: Sequence[messages.Shape], content: bytes | bytearray | memoryview
) -> list[FloatArray]:
    """Decoded tensors that lie one behind the other; `coded_bytes` gives their total size."""
    whole, found, start = memoryview(content), [], 0
    for one, shape in zip(sent, shapes, strict=True):
        end = start + math.prod(shape) * messages.CODED_BYTES[one.coding]
        found.append(decoded(one, shape, whole[start:end]))
        start = end
    return found


PURPOSE = b"values for the SubNet "


def proof_of(token: str, digest: str) -> str:
    """HMAC-SHA256 (RFC 2104) of a SubNet's digest by a device's token: its holder may give values of that SubNet to the device.

    It allows nothing else, and the token cannot be derived from it.
    """
    return hmac.new(token.encode(), PURPOSE + digest.encode(), hashlib.sha256).hexdigest()


KEEPALIVE_S = 15


def kept(stream: asyncio.StreamWriter) -> None:
    """Send small frames at once, and detect a lost peer even while nothing is sent."""
    connection = stream.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), KEEPALIVE_S)


def abandon(stream: asyncio.StreamWriter) -> None:
    """Close at once; pending output is dropped instead of filling a slow link."""
    connection = stream.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.transport.abort()
