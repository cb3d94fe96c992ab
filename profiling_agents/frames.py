"""Frames between processes and over the network, and checksums of all bytes between client and agent.

One frame = uint32 header length, uint64 payload length (both little-endian), JSON header, raw payload. The same frames
go over the child's pipes and in the bodies of `run`. No pickle, no object arrays. A garbled answer is treated as a lost
connection, never as a result.
"""

import math
import struct
import zlib
from collections.abc import AsyncIterator, Sequence

import numpy as np

from profiling_agents.messages import TENSOR_TYPES, AgentError, TensorHeader

CHECKSUM_HEADER = "checksum"
SEPARATOR = b" "


class GarbledError(Exception):
    """The content does not match its checksum, or has none. One line."""


def checksum(content: bytes) -> str:
    """CRC-32, 8 hex digits."""
    return f"{zlib.crc32(content):08x}"


def check(content: bytes, stated: str | None) -> None:
    """Raise GarbledError unless the content matches the checksum that its sender stated."""
    if stated is None:
        raise GarbledError("it has no checksum")
    if stated != checksum(content):
        raise GarbledError("it does not fit its checksum")


def to_line(content: bytes) -> bytes:
    """The content (without line breaks) and its checksum as one line."""
    return content + SEPARATOR + checksum(content).encode() + b"\n"


def from_line(line: bytes) -> bytes:
    """The content of a line without its end; GarbledError when it does not match its checksum."""
    content, separator, stated = line.rpartition(SEPARATOR)
    check(content, stated.decode(errors="replace") if separator else None)
    return content


LENGTHS = struct.Struct("<IQ")
MAX_HEADER_BYTES = 1 << 20


def pack(header: bytes, payload: bytes = b"") -> bytes:
    """A frame of a JSON header and raw bytes."""
    return LENGTHS.pack(len(header), len(payload)) + header + payload


def read_lengths(prefix: bytes, max_payload_bytes: int) -> tuple[int, int]:
    """Header and payload length of a frame; AgentError above the caps."""
    header_bytes, payload_bytes = LENGTHS.unpack(prefix)
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > max_payload_bytes:
        raise AgentError(
            f"frame: header of {header_bytes} and payload of {payload_bytes} bytes; "
            f"allowed: {MAX_HEADER_BYTES} and {max_payload_bytes}"
        )
    return header_bytes, payload_bytes


def unpack(frame: bytes, max_payload_bytes: int) -> tuple[bytes, memoryview]:
    """Header and payload of one whole frame; AgentError when its lengths do not add up."""
    if len(frame) < LENGTHS.size:
        raise AgentError(f"frame: {len(frame)} bytes, shorter than its {LENGTHS.size}-byte prefix")
    header_bytes, payload_bytes = read_lengths(frame[: LENGTHS.size], max_payload_bytes)
    if len(frame) != LENGTHS.size + header_bytes + payload_bytes:
        raise AgentError(f"frame: {len(frame)} bytes, its prefix says {LENGTHS.size + header_bytes + payload_bytes}")
    start = LENGTHS.size + header_bytes
    return frame[LENGTHS.size : start], memoryview(frame)[start:]


async def first(chunks: AsyncIterator[bytes]) -> tuple[bytes, bytes]:
    """The header of a frame that arrives in chunks, and the part of its payload that arrived with it.

    AgentError when the header is too long, or ends early.
    """
    buffer = b""
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) < LENGTHS.size:
            continue
        header_bytes, _ = LENGTHS.unpack(buffer[: LENGTHS.size])
        end = LENGTHS.size + header_bytes
        if header_bytes > MAX_HEADER_BYTES:
            raise AgentError(f"frame: header of {header_bytes} bytes; allowed: {MAX_HEADER_BYTES}")
        if len(buffer) >= end:
            return buffer[LENGTHS.size : end], buffer[end:]
    raise AgentError("frame: it ended inside of its header")


def describe(arrays: Sequence[np.ndarray]) -> tuple[TensorHeader, ...]:
    """Headers of arrays; AgentError for types that the protocol cannot send."""
    for array in arrays:
        if array.dtype.name not in TENSOR_TYPES:
            raise AgentError(f"tensor of type {array.dtype.name}; allowed: {', '.join(TENSOR_TYPES)}")
    return tuple(TensorHeader.model_validate({"dtype": a.dtype.name, "shape": a.shape}) for a in arrays)


def to_bytes(arrays: Sequence[np.ndarray]) -> bytes:
    """Little-endian bytes of arrays, in C order, one after the other."""
    return b"".join(np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays)


def from_bytes(headers: Sequence[TensorHeader], payload: bytes | memoryview) -> list[np.ndarray]:
    """Read-only arrays over the payload; AgentError when headers and payload disagree in size."""
    types = [np.dtype(header.dtype).newbyteorder("<") for header in headers]
    sizes = [math.prod(header.shape) * dtype.itemsize for header, dtype in zip(headers, types, strict=True)]
    if sum(sizes) != len(payload):
        raise AgentError(f"tensors: headers name {sum(sizes)} bytes, payload has {len(payload)}")
    arrays, start = [], 0
    for header, dtype, size in zip(headers, types, sizes, strict=True):
        arrays.append(np.frombuffer(payload[start : start + size], dtype).reshape(header.shape))
        start += size
    return arrays
