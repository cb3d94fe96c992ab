"""Ports of loopback at which nobody listens."""

import socket


def free_port() -> int:
    """A port that is free now; a server that is started at once can have it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
