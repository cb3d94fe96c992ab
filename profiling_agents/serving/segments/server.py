"""A device that serves segments: binds, starts a child, serves coordinators until a signal or its parent's end."""

import asyncio
import socket
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path

from profiling_agents.execution.child import MODELS
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.messages import MIB, STREAM_PROTOCOL, AgentError, Welcome
from profiling_agents.network.endpoint import Endpoint, host_and_port
from profiling_agents.network.guard import MAX_CONNECTIONS
from profiling_agents.network.places import Places
from profiling_agents.network.server import wait_for_stdin
from profiling_agents.serving.capabilities import fingerprint
from profiling_agents.serving.options import ServerOptions
from profiling_agents.serving.planned_sandbox import told
from profiling_agents.serving.segments.awaited import AwaitedValues
from profiling_agents.serving.segments.connection import HELLO_LIMIT_S, HomeConnection, ServingParts
from profiling_agents.serving.segments.giving import GivingValues
from profiling_agents.serving.segments.subnets import ServedSubNets
from profiling_agents.serving.store import ModelFiles
from profiling_agents.startup import READY
from profiling_agents.streams.sockets import kept

STORE_FACTOR = 4


async def serve_segments(
    options: ServerOptions, settings: WorkerSettings, folder: Path, listener: socket.socket, token: str
) -> None:
    """Serve until stopped; AgentError when it cannot start. The parent makes the folder of the models."""
    user = None if settings.sandbox is None else settings.sandbox.user
    models = ModelFiles(folder / MODELS, STORE_FACTOR * options.max_model_mib * MIB, user)
    subnets = ServedSubNets(settings, folder, models, options.max_subnets)
    giving = GivingValues(options.allowed_peers, options.ca_file)
    try:
        runtime, sandbox = await subnets.start()
        told(options, sandbox)
        welcome = Welcome(
            protocol=STREAM_PROTOCOL,
            backend=runtime.backend,
            precision=runtime.precision,
            threads=options.threads,
            fingerprint=fingerprint(
                runtime, settings.cores, options.threads, sys.platform == "linux", options.cores_root
            ),
            formats=runtime.formats,
            hands=bool(options.allowed_peers),
        )
        most_bytes = options.max_model_mib * MIB
        homes = _Homes(ServingParts(subnets, AwaitedValues(), giving, welcome, token, most_bytes))
        context = _tls(options.network)
        limit_s = None if context is None else HELLO_LIMIT_S
        server = await asyncio.start_server(
            homes.connected, sock=listener, ssl=context, backlog=MAX_CONNECTIONS, ssl_handshake_timeout=limit_s
        )
        stopped = _stopped(options.network)
        host, port = listener.getsockname()[:2]
        print(f"{READY}{'tcp' if context is None else 'tls'}://{host_and_port(host, port)}", flush=True)
        try:
            await stopped.wait()
        finally:
            server.close()
    finally:
        giving.close()
        await subnets.close()


def _stopped(network: Endpoint) -> asyncio.Event:
    """An event that is set when standard input shows that the parent has gone."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def watch() -> None:
        wait_for_stdin(network.silence_limit_s)
        loop.call_soon_threadsafe(stopped.set)

    if network.stop_with_stdin:
        threading.Thread(target=watch, daemon=True).start()
    return stopped


def _tls(network: Endpoint) -> ssl.SSLContext | None:
    if network.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(network.tls_cert, network.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"--tls-cert '{network.tls_cert}': cannot be used with its key ({error})") from error
    return context


class _Homes:
    """All connections; beyond `MAX_CONNECTIONS`, new ones with a token are refused, others make room for each other."""

    def __init__(self, parts: ServingParts) -> None:
        self._parts = parts
        self._places = Places(MAX_CONNECTIONS)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        kept(writer)
        connection = HomeConnection(reader, writer, self._parts, self._places)
        self._places.enter(connection)
        try:
            await connection.serve()
        finally:
            self._places.leave(connection)
            with suppress(OSError, ssl.SSLError):
                writer.close()
