"""A network between client and agent that can be cut, and that can garble answers: a TCP proxy on loopback."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

Garble = Callable[[bytes], bytes]
"""What becomes of a part of an answer."""


class Flips:
    """Flips one bit in the JSON of a share of the parts of answers, and counts the flips."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._share = share
        self.count = 0

    def __call__(self, part: bytes) -> bytes:
        start, end = part.find(b"{"), part.rfind(b"}")
        if start < 0 or end <= start or self._rng.random() >= self._share:
            return part
        self.count += 1
        return flipped(part, self._rng.randrange(start, end + 1), self._rng.randrange(8))


def flipped(part: bytes, position: int, bit: int) -> bytes:
    """The part with one bit flipped."""
    garbled = bytearray(part)
    garbled[position] ^= 1 << bit
    return bytes(garbled)


class Network:
    """Forwards to one agent. `cut()` breaks all connections and refuses new ones until `mend()`.

    `garble`: done to each part of an answer.
    """

    def __init__(self, url: str) -> None:
        self.garble: Garble = bytes
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._port = 0
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self.mend()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        assert self._listener is not None
        with suppress(OSError):  # it is cut already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(self._target)
                self._connections += [here, there]
                for way in ((here, there, bytes), (there, here, self._garbled)):
                    threading.Thread(target=_forward, args=way, daemon=True).start()

    def _garbled(self, content: bytes) -> bytes:
        return self.garble(content)


def _forward(source: socket.socket, target: socket.socket, garble: Garble) -> None:
    """One direction; whoever ends first ends both."""
    with source, target, suppress(OSError):
        while content := source.recv(1 << 16):
            target.sendall(garble(content))
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def network(url: str) -> Iterator[Network]:
    one = Network(url)
    try:
        yield one
    finally:
        one.cut()
