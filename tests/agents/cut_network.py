"""A network between client and agent that can be cut: a TCP proxy on loopback."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Network:
    """Forwards to one agent. `cut()` breaks all connections and refuses new ones until `mend()`."""

    def __init__(self, url: str) -> None:
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
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    """One direction; whoever ends first ends both."""
    with source, target, suppress(OSError):
        while content := source.recv(1 << 16):
            target.sendall(content)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def network(url: str) -> Iterator[Network]:
    one = Network(url)
    try:
        yield one
    finally:
        one.cut()
