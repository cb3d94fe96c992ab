"""Ports of loopback at which nobody listens."""

import errno
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"
ASKED_FOR = range(20_000, 32_768)
"""Linux gives ports from 32,768 on to those who ask for any: these are taken by nobody who does not name them."""


def free_port() -> int:
    """A port that is free now; a server that is started next can have it, though it needs a while."""
    while True:
        port = ASKED_FOR.start + secrets.randbelow(len(ASKED_FOR))
        with socket.socket() as free:
            try:
                free.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections as long as the block runs: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield int(taken.getsockname()[1])
