"""The clients of a service's local socket: access, their number, and their end."""

import asyncio
import os
import socket
import struct

from adaptive_runtime.server.answering import ModelService
from adaptive_runtime.server.local.connection import LocalConnection
from adaptive_runtime.server.refusals import RequestRefused

MOST_CLIENTS = 64
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other side, from the kernel."""


async def serve_local(listener: socket.socket, service: ModelService, most_bytes: int) -> None:
    """Serve until cancelled; then answer the accepted requests. most_bytes: size limit of a request."""
    clients = _LocalClients(service, most_bytes)
    server = await asyncio.start_unix_server(clients.connected, sock=listener, backlog=MOST_CLIENTS)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        await clients.end()


class _LocalClients:
    """All connections; those beyond `MOST_CLIENTS` and those of other users are refused."""

    def __init__(self, service: ModelService, most_bytes: int) -> None:
        self._service, self._most_bytes = service, most_bytes
        self._open: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        connection = LocalConnection(reader, writer, self._service, self._most_bytes)
        user = _user(writer)
        if user not in (os.geteuid(), 0):
            await connection.refuse(RequestRefused(403, f"user {user}: the socket is of user {os.geteuid()}"))
        elif len(self._open) >= MOST_CLIENTS:
            await connection.refuse(RequestRefused(429, f"more than {MOST_CLIENTS} connections; close one"))
        else:
            task = asyncio.create_task(connection.serve())
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        """End all connections, side by side."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)


def _user(writer: asyncio.StreamWriter) -> int:
    """The user of the other side."""
    other = writer.get_extra_info("socket")
    return int(CREDENTIALS.unpack(other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[1])
