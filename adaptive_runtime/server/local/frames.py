"""Frames of the local socket: fixed fields, little-endian, followed by values or text.

Every frame begins with a prefix: magic, version, kind, the number of the request, and the number of bytes that follow. Only
numbers and text are read, after their sizes were compared with the model's.
"""

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.server.answering import GivenAnswer
from adaptive_runtime.server.inference import INPUT, InferenceFormat
from adaptive_runtime.server.protocol import MOST_DEADLINE_MS
from adaptive_runtime.server.refusals import RequestRefused
from adaptive_runtime.server.tensors import require_finite, shown

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
        found = cls(*PREFIX.unpack(content))
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
