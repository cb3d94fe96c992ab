"""Frames of the local socket: fixed fields, little-endian, and behind them values or text.

Every frame begins with a prefix: magic, version, kind, the number of the request, and the bytes that follow. Only numbers and
text are read, of sizes that are compared with the model's first.
"""

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.service.answering import GivenAnswer
from adaptive_runtime.service.inference import INPUT, InferenceFormat
from adaptive_runtime.service.protocol import MOST_DEADLINE_MS
from adaptive_runtime.service.refusals import RequestRefused
from adaptive_runtime.service.tensors import require_finite, shown

MAGIC = b"ATLS"
VERSION = 1
PREFIX = struct.Struct("<4sHHQQ")
"""Magic, version, kind, number of the request, bytes that follow."""
REQUEST, ANSWER, REFUSAL = 1, 2, 3
"""Kinds of frames."""
REQUEST_FIELDS = struct.Struct("<d4I64s")
"""Deadline [ms] (0: the service's), shape (N, C, H, W), of texts (N, T, 1, 1), digest of a SubNet (zeros: the one that serves).

Values follow: float32 of images, int64 of texts, which are numbers of words."""
ANSWER_FIELDS = struct.Struct("<dddIII")
"""Latency, waited, late [ms] (0: in time), samples N, classes K, bytes of names. Logits (N, K) follow, then the names:
of each sample its SubNet and its exit, each with a zero byte behind it."""
REFUSAL_FIELDS = struct.Struct("<II")
"""Status, and after how many ms to come again (0: not said). One line follows."""


class FramePrefix(NamedTuple):
    """The beginning of a frame."""

    magic: bytes
    version: int
    kind: int
    number: int
    content_bytes: int

    @classmethod
    def read(cls, content: bytes) -> "FramePrefix":
        """RequestRefused: no frame of a client."""
        found = cls(*PREFIX.unpack(content))
        if found.magic != MAGIC:
            raise RequestRefused(400, "the bytes are no frame of a local client")
        if found.version != VERSION:
            raise RequestRefused(400, f"frame: version {found.version}; allowed: {VERSION}; update client or service")
        if found.kind != REQUEST:
            raise RequestRefused(400, f"frame: kind {found.kind}; allowed: {REQUEST}")
        return found


class RequestHead(NamedTuple):
    """A request whose values have not been read. deadline_ms, subnet: None: the service's. shape: of the values."""

    deadline_ms: float | None
    shape: tuple[int, ...]
    subnet: str | None
    wanted: InferenceFormat

    @classmethod
    def read(cls, content: bytes, content_bytes: int, wanted: InferenceFormat) -> "RequestHead":
        """The fields of a request, checked. content_bytes: of the whole frame. RequestRefused."""
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
        """The values behind the fields, checked. RequestRefused."""
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
    """The frame of a request that gets no answer; number 0: the connection's."""
    line = str(refused).encode()
    again_ms = round(1e3 * refused.retry_after_s) if refused.status == 429 else 0
    fields = REFUSAL_FIELDS.pack(refused.status, again_ms)
    return (PREFIX.pack(MAGIC, VERSION, REFUSAL, number, len(fields) + len(line)) + fields + line,)
