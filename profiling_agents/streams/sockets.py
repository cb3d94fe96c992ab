"""Settings of the sockets of kept connections."""

import asyncio
import socket
import struct

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
