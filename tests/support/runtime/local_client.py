"""A client of the local socket that sends whatever a test wants, and reads frames by their documented layout alone."""

import math
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

PREFIX = struct.Struct("<4sHHQQ")
REQUEST = struct.Struct("<d4I64s")
ANSWER = struct.Struct("<dddIII")
REFUSAL = struct.Struct("<II")


class LocalAnswer(NamedTuple):
    """What came for a request. status: 200, else that of a refusal, with its line."""

    number: int
    status: int
    line: str = ""
    logits: np.ndarray = np.zeros(0)
    subnets: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()
    latency_ms: float = math.nan
    waited_ms: float = math.nan
    late_ms: float = math.nan


def request(x: np.ndarray, number: int = 1, deadline_ms: float = 0.0, subnet: str = "") -> bytes:
    """The frame of a request: images, or texts as whole numbers (N, T)."""
    is_text = np.issubdtype(x.dtype, np.integer)
    shape = (*x.shape, 1, 1) if is_text else x.shape
    fields = REQUEST.pack(deadline_ms, *shape, subnet.encode())
    values = x.astype("<i8" if is_text else "<f4").tobytes()
    return PREFIX.pack(b"ATLS", 1, 1, number, len(fields) + len(values)) + fields + values


class LocalClient:
    """A connection."""

    def __init__(self, path: Path, timeout_s: float = 120.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise

    def send(self, content: bytes) -> None:
        """All of some bytes."""
        self.socket.sendall(content)

    def answer(self) -> LocalAnswer:
        """The next frame. ConnectionError: there is none."""
        magic, version, kind, number, size = PREFIX.unpack(self._exactly(PREFIX.size))
        assert (magic, version) == (b"ATLS", 1)
        content = self._exactly(size)
        if kind == 3:
            status, again_ms = REFUSAL.unpack_from(content)
            assert (again_ms > 0) == (status == 429)
            return LocalAnswer(number, status, content[REFUSAL.size :].decode())
        assert kind == 2
        *times, samples, classes, text_bytes = ANSWER.unpack_from(content)
        end = len(content) - text_bytes
        logits = np.frombuffer(content[ANSWER.size : end], "<f4").reshape(samples, classes)
        names = content[end:].decode().split("\0")
        assert len(names) == 2 * samples + 1
        return LocalAnswer(number, 200, "", logits, tuple(names[:-1:2]), tuple(names[1:-1:2]), *times)

    def ask(self, x: np.ndarray, deadline_ms: float = 0.0, subnet: str = "") -> LocalAnswer:
        """One request, and its answer."""
        self.send(request(x, 1, deadline_ms, subnet))
        return self.answer()

    def closed(self) -> bool:
        """Whether the service ends the connection, in time, and says nothing more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            chunk = self.socket.recv(count - len(found))
            if not chunk:
                raise ConnectionError("the service closed the connection")
            found += chunk
        return bytes(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
