"""Segments of SubNets served to coordinators: `autotailor agent --serve-segments`.

A coordinator's connection brings the token first, then the SubNet and its missing files, then requests. The connection of
another device shows a proof and gives values. Any breach of the rules ends a connection with one line. Only payloads of the
sizes that the SubNet states are read. The device serves until a signal or its parent's end.
"""

import asyncio
import hmac
import socket
import ssl
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profiling_agents import messages
from profiling_agents.execution.child import MODELS
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.network.endpoint import Endpoint, host_and_port
from profiling_agents.network.guard import HEAD_LIMIT_S, MAX_CONNECTIONS, Places, RequestRefused
from profiling_agents.network.server import wait_for_stdin
from profiling_agents.serving.capabilities import ServerOptions, described, fingerprint
from profiling_agents.serving.giving import AwaitedValues, GivingValues, NotGivenError
from profiling_agents.serving.store import ModelFiles
from profiling_agents.serving.subnets import SegmentsFailedError, SegmentsRun, ServedSubNets
from profiling_agents.startup import READY
from profiling_agents.streams import FrameHead, FrameReader, FrameWriter, StreamEndError, kept, proof_of

HELLO_LIMIT_S = HEAD_LIMIT_S
HELLO_BYTES = 1024
IDLE_LIMIT_S = 300.0
"""A coordinator that sends nothing for this long, not even a probe, has gone."""
MOST_WAITING = 16
"""Limit of waiting or running requests of one coordinator; further ones are read when one is answered."""


class StreamRefusedError(messages.AgentError):
    """A request is refused, and would be refused again. One line."""


@dataclass(frozen=True, slots=True)
class ServingParts:
    """The parts that all connections of a device share."""

    subnets: ServedSubNets
    awaited: AwaitedValues
    giving: GivingValues
    welcome: messages.Welcome
    token: str
    most_file_bytes: int


class CoordinatorConnection:
    """A connection from its first byte to its last."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: ServingParts, places: Places
    ) -> None:
        self._stream, self._frames, self._answers = (
            writer,
            FrameReader(reader, messages.COORDINATOR_MESSAGES),
            FrameWriter(writer),
        )
        self._parts, self._subnets, self._places = parts, parts.subnets, places
        self._of_device = False
        self._wanted: messages.ServedSubNet | None = None
        self._entered: str | None = None
        self._open = True
        self._waiting = asyncio.Semaphore(MOST_WAITING)
        self._runs: set[asyncio.Task[None]] = set()

    @property
    def is_silent(self) -> bool:
        """Always true: `Places` asks only about connections that have not shown the token yet."""
        return True

    def drop(self) -> None:
        """Close the connection at once."""
        self._stream.transport.abort()

    async def serve(self) -> None:
        """Serve until one side ends the connection."""
        refusal: messages.RefusedStream | None = None
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await self._greet()
            while True:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    head = await self._frames.head()
                await self._take(head)
        except TimeoutError:
            refusal = messages.RefusedStream(line="nothing came for too long", final=False)
        except StreamRefusedError as error:
            refusal = messages.RefusedStream(line=str(error)[:1024])
        except (messages.AgentError, RequestRefused) as error:
            refusal = messages.RefusedStream(line=str(error)[:1024], final=False)
        except (StreamEndError, OSError):
            pass  # the coordinator has gone
        finally:
            self._open = False
            self._leave()
        await self.refuse(refusal)

    async def _greet(self) -> None:
        head = await self._frames.head(HELLO_BYTES)
        hello = head.message
        if not isinstance(hello, messages.Hello | messages.HelloDevice) or head.payload_bytes:
            raise StreamRefusedError("a stream begins with the token")
        token = self._parts.token
        if isinstance(hello, messages.HelloDevice):
            self._of_device = True
            shown, expected, what = hello.proof, proof_of(token, hello.digest), "proof of the token"
        else:
            shown, expected, what = hello.token, token, "token"
        if not hmac.compare_digest(shown.encode(), expected.encode()):
            raise StreamRefusedError(f"missing or wrong {what}")
        if not self._places.admit(self):
            raise messages.AgentError(f"more than {self._places.known} connections")
        if hello.protocol != messages.STREAM_PROTOCOL:
            raise StreamRefusedError(
                f"streams of protocol {hello.protocol}; allowed: {messages.STREAM_PROTOCOL}; update both"
            )
        await self._answers.send(self._parts.welcome)

    async def _take(self, head: FrameHead[messages.CoordinatorMessage]) -> None:
        if self._of_device and not isinstance(head.message, messages.GivenValues):
            raise StreamRefusedError("another device gives values, and nothing else")
        match head.message:
            case messages.GivenValues() as given:
                received_ms = await self._parts.awaited.take(self._frames, head, given)
                await self._answers.send(messages.TookValues(request=given.request, received_ms=received_ms))
            case messages.LoadSubNet(subnet=subnet):
                await self._frames.payload(head, 0)
                await self._load(subnet)
            case messages.SentFile(sha256=digest):
                await self._keep(head, digest)
            case messages.RunSegments() as request:
                await self._run(head, request)
            case messages.SentProbe() as probe:
                start_s = time.perf_counter()
                await self._frames.payload(head, probe.bytes)
                received_ms = (time.perf_counter() - start_s) * 1e3
                answer = messages.ReturnedProbe(request=probe.request, bytes=probe.back, received_ms=received_ms)
                await self._later(self._answers.send(answer, [bytes(probe.back)]))
            case _:
                raise StreamRefusedError("the token was shown already")

    async def _load(self, subnet: messages.ServedSubNet) -> None:
        most = self._parts.most_file_bytes
        if (largest := max(subnet.file_bytes.values())) > most:
            raise StreamRefusedError(f"a file of {largest} bytes; allowed: {most} (--max-model-mib)")
        self._leave()
        self._wanted = subnet
        missing = await self._subnets.enter(subnet)
        if not missing:
            self._entered = subnet.digest
        await self._answers.send(messages.LoadedSubNet(digest=subnet.digest, missing=missing))

    async def _keep(self, head: FrameHead[messages.CoordinatorMessage], digest: str) -> None:
        if self._wanted is None or digest not in self._wanted.file_bytes:
            raise StreamRefusedError("a file that no SubNet of this coordinator has")
        stored = await self._subnets.models.receive(self._frames.chunks(head, self._wanted.file_bytes[digest]))
        if stored.sha256 != digest:
            raise StreamRefusedError(f"file {digest[:16]}…: the bytes that came have digest {stored.sha256[:16]}…")
        await self._answers.send(messages.KeptFile(sha256=digest))

    async def _run(self, head: FrameHead[messages.CoordinatorMessage], request: messages.RunSegments) -> None:
        subnet = self._wanted
        if subnet is None or self._entered is None:
            raise StreamRefusedError("no SubNet is loaded; load one first")
        if not subnet.has(request.first, request.last):
            got = f"segments {request.first} to {request.last}"
            raise StreamRefusedError(f"{got}; allowed: 0 to {len(subnet.segments) - 1}")
        shapes = [subnet.shapes[name] for name in subnet.entering(request.first, request.last)]
        expected = 0 if request.ticket is not None else len(shapes)
        if len(request.tensors) != expected:
            read = "come with its ticket" if request.ticket is not None else f"read {len(shapes)}"
            raise StreamRefusedError(
                f"{len(request.tensors)} tensors; segments {request.first} to {request.last} {read}"
            )
        if request.ticket is not None:
            await self._frames.payload(head, 0)
            await self._later(self._await(self._entered, request, request.ticket, shapes))
            return
        start_s = time.perf_counter()
        content = await self._frames.payload(head, messages.coded_bytes(shapes, request.tensors))
        received_ms = (time.perf_counter() - start_s) * 1e3
        await self._later(self._answer(self._entered, request, content, received_ms))

    async def _await(
        self, digest: str, request: messages.RunSegments, ticket: str, shapes: Sequence[messages.Shape]
    ) -> None:
        """Run segments whose values arrive over another connection."""
        came = await self._parts.awaited.wait(ticket, shapes, request.within_ms * 1e-3)
        if came is None:
            await self._answers.send(messages.MissedValues(request=request.request))
            return
        request = request.model_copy(update={"tensors": came.tensors})
        await self._answer(digest, request, came.content, came.received_ms)

    async def _answer(self, digest: str, request: messages.RunSegments, content: bytearray, received_ms: float) -> None:
        found = await self._subnets.run(digest, request, content, lambda: self._open)
        given, not_given = await self._given(request, found)
        answer = messages.RanSegments(
            request=request.request,
            tensors=found.activations if given is None else (),
            received_ms=received_ms,
            waited_ms=found.waited_ms,
            computed_ms=found.computed_ms,
            given=given,
            not_given=not_given,
        )
        if self._open:
            await self._answers.send(answer, [found.content] if given is None else [])

    async def _given(self, request: messages.RunSegments, found: SegmentsRun) -> tuple[messages.GivenTimes | None, str]:
        """Give the outputs of a run to its receiver, if it has one; else return the line with the reason of the failure."""
        if request.receiver is None:
            return None, ""
        within_s = request.within_ms * 1e-3
        try:
            given = await self._parts.giving.give(request.receiver, found.activations, found.content, within_s)
        except NotGivenError as error:
            return None, str(error)[:300]
        return given, ""

    async def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work while reading continues, when there is room for it. A failure ends the connection."""
        await self._waiting.acquire()
        task = asyncio.create_task(work)
        self._runs.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._waiting.release()
        self._runs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._open:
            self._open = False
            final = not isinstance(error, SegmentsFailedError)
            line = (
                str(error) if isinstance(error, messages.AgentError) else f"the device failed: {type(error).__name__}"
            )
            ending = asyncio.create_task(self.refuse(messages.RefusedStream(line=line[:1024], final=final)))
            self._runs.add(ending)
            ending.add_done_callback(self._runs.discard)

    def _leave(self) -> None:
        if self._entered is not None:
            self._subnets.leave(self._entered)
            self._entered = None

    async def refuse(self, refusal: messages.RefusedStream | None) -> None:
        """Send the reason, if the other side still listens, and close."""
        with suppress(OSError, messages.AgentError, TimeoutError):
            if refusal is not None and not self._stream.is_closing():
                async with asyncio.timeout(HELLO_LIMIT_S):
                    await self._answers.send(refusal)
        self._stream.close()


STORE_FACTOR = 4
"""The model store has room for this many models of the largest size."""


def model_files(options: ServerOptions, settings: WorkerSettings, folder: Path) -> ModelFiles:
    """The store of models in the service's folder, which belong to the sandbox's user."""
    user = None if settings.sandbox is None else settings.sandbox.user
    return ModelFiles(folder / MODELS, STORE_FACTOR * options.max_model_mib * messages.MIB, user)


async def serve_segments(
    options: ServerOptions, settings: WorkerSettings, folder: Path, listener: socket.socket, token: str
) -> None:
    """Serve until stopped; AgentError when it cannot start. The parent makes the folder of the models."""
    subnets = ServedSubNets(settings, folder, model_files(options, settings, folder), options.max_subnets)
    giving = GivingValues(options.allowed_peers, options.ca_file)
    try:
        runtime, sandbox = await subnets.start()
        described(options, sandbox)
        welcome = messages.Welcome(
            protocol=messages.STREAM_PROTOCOL,
            backend=runtime.backend,
            precision=runtime.precision,
            threads=options.threads,
            fingerprint=fingerprint(
                runtime, settings.cores, options.threads, sys.platform == "linux", options.cores_root
            ),
            formats=runtime.formats,
            hands=bool(options.allowed_peers),
        )
        most_bytes = options.max_model_mib * messages.MIB
        parts = ServingParts(subnets, AwaitedValues(), giving, welcome, token, most_bytes)
        connected = partial(_connected, parts, Places(MAX_CONNECTIONS))
        context = _tls(options.network)
        limit_s = None if context is None else HELLO_LIMIT_S
        server = await asyncio.start_server(
            connected, sock=listener, ssl=context, backlog=MAX_CONNECTIONS, ssl_handshake_timeout=limit_s
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
        raise messages.AgentError(f"--tls-cert '{network.tls_cert}': cannot be used with its key ({error})") from error
    return context


async def _connected(
    parts: ServingParts, places: Places, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection. Beyond the places, new ones with a token are refused, others make room for each other."""
    kept(writer)
    connection = CoordinatorConnection(reader, writer, parts, places)
    places.enter(connection)
    try:
        await connection.serve()
    finally:
        places.leave(connection)
        with suppress(OSError, ssl.SSLError):
            writer.close()
