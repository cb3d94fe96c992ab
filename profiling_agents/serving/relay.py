"""The meeting point of a device behind NAT and its clients: `autotailor relay`, run where both can dial to.

Clients see the routes of an agent. The agent pulls their requests by long polling and sends the answers, which the relay
passes on as they arrive; bodies of requests wait in files, so memory stays flat. One relay serves one device;
`autotailor fleet relay` serves the devices of a registry, with a `Relay` for each.
"""

import asyncio
import math
import secrets
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from profiling_agents import frames
from profiling_agents.frames import CHECKSUM_HEADER, GarbledError
from profiling_agents.lines import NO_SPACE
from profiling_agents.messages import MAX_TENSORS_MIB, MIB, AgentError, Answered, Pulled, one_line
from profiling_agents.network.endpoint import Endpoint, address, bound, check_bind, new_token
from profiling_agents.network.guard import MAX_CONNECTIONS, GuardRules, RequestRefused, refusal
from profiling_agents.network.server import http_server, private_folder, serve_with
from profiling_agents.serving.service import LEASE_HEADER, REFUSALS, ROUTES, Refuse, number_of
from profiling_agents.serving.store import DISK_FULL

PULL_S = 20.0
"""A pull waits this long for a request."""
AWAY_S = 10.0
"""A device without an open pull for this long is away."""
CHECK_S = 1.0
CHUNK_BYTES = 1 << 16
CHUNKS_AHEAD = 8
WAIT_HEADER = "wait-s"
WORKING_HEADER = "working"
REQUEST_HEADER = "request"


class BrokenAnswerError(Exception):
    """The device's answer broke off after its start; the client's connection must break too."""


@dataclass(slots=True)
class _Waiting:
    """A client's request until it is answered."""

    pulled: Pulled
    body: IO[bytes]
    size: int
    answer: asyncio.Future[Answered] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    chunks: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(CHUNKS_AHEAD))
    broken: bool = False
    left: bool = False
    """The client has gone."""


class Relay:
    """State: requests that no pull took yet, and requests that the device works on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: deque[_Waiting] = deque()
        self._taken: dict[str, _Waiting] = {}
        self._news = asyncio.Event()
        self._pull = self._open = 0
        self._last_pull_s = -math.inf

    async def forward(self, route: str, method: str, request: Request) -> Response:
        """Forward a client's request: wait for the device's answer and pass it on."""
        if self._away():
            raise RequestRefused("no device is connected to this relay", 503)
        path = route.format(number=number_of(request)) if "{number}" in route else route
        lease = request.headers.get(LEASE_HEADER, "")
        stated = request.headers.get(CHECKSUM_HEADER, "")
        fields = {"request": secrets.token_hex(16), "method": method, "path": path, "lease": lease, "checksum": stated}
        try:
            pulled = Pulled.model_validate(fields)
        except ValidationError as error:
            raise GarbledError(one_line(error)) from error
        with tempfile.TemporaryFile(dir=self._folder) as body:
            waiting = _Waiting(pulled, body, await _receive(request, body))
            self._queue.append(waiting)
            self._tell()
            gone = asyncio.create_task(_gone(request))
            try:
                header = await self._answer(waiting, gone)
            except BaseException:
                self._forget(waiting)
                raise
            finally:
                gone.cancel()
        headers = {"Retry-After": header.retry_after, CHECKSUM_HEADER: header.checksum}
        headers = {name: value for name, value in headers.items() if value}
        content = self._content(waiting)
        return StreamingResponse(content, header.status, headers, header.content_type or None)

    async def pull(self, request: Request) -> Response:
        """GET pull, for the device: the next request as a frame, or 204 after a while. A later pull ends this one."""
        await request.body()
        wait = request.headers.get(WAIT_HEADER, "")
        until_s = time.monotonic() + min(PULL_S, float(wait) if wait.isascii() and wait.isdigit() else 0.0)
        self._lose_all_but(request.headers.get(WORKING_HEADER, "").split(","))
        self._pull += 1
        self._tell()
        self._open += 1
        gone = asyncio.create_task(_gone(request))
        try:
            waiting = await self._next(self._pull, until_s, gone)
        finally:
            gone.cancel()
            self._open -= 1
            self._last_pull_s = time.monotonic()
        if waiting is None:
            return Response(status_code=204)
        return StreamingResponse(_frame(waiting), media_type="application/octet-stream")

    async def _next(self, own: int, until_s: float, gone: asyncio.Task[None]) -> _Waiting | None:
        """The next request for a pull; None when the pull is over. Waits without polling, since thousands may wait at once."""
        while own == self._pull and not gone.done():
            if self._queue:
                waiting = self._queue.popleft()
                self._taken[waiting.pulled.request] = waiting
                return waiting
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            news = asyncio.create_task(self._news.wait())
            await asyncio.wait({gone, news}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        return None

    async def answer(self, request: Request) -> Response:
        """POST answers, for the device: a frame whose payload is passed on as it arrives."""
        waiting = self._taken.get(request.headers.get(REQUEST_HEADER, ""))
        if waiting is None or waiting.answer.done():
            return refusal(410, "nobody waits for this answer")
        waiting.broken = True
        try:
            await self._pass_on(waiting, request)
            waiting.broken = False
        except ClientDisconnect:
            return refusal(400, "the answer broke off")
        finally:
            self._taken.pop(waiting.pulled.request, None)
            if not waiting.answer.done():
                waiting.answer.set_exception(RequestRefused("the device's answer broke off", 503))
            await _put(waiting, None)
        return Response(status_code=204)

    async def _pass_on(self, waiting: _Waiting, request: Request) -> None:
        """Pass on an answer: the frame's header becomes its head, and its body, of unknown length, follows."""
        chunks = request.stream()
        header, chunk = await frames.first(chunks)
        waiting.answer.set_result(Answered.model_validate_json(header))
        await _put(waiting, chunk)
        async for chunk in chunks:
            if waiting.left:
                raise AgentError("the client has left")
            await _put(waiting, chunk)

    async def _answer(self, waiting: _Waiting, gone: asyncio.Task[None]) -> Answered:
        """The head of the answer; RequestRefused when the device or the client, whose place becomes free, goes away first."""
        either: tuple[asyncio.Future[Any], ...] = (waiting.answer, gone)
        while True:
            await asyncio.wait(either, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            if waiting.answer.done():
                return waiting.answer.result()
            if gone.done():
                raise RequestRefused("the client has left", 503)
            if self._away():
                raise RequestRefused("the device of this relay went away", 503)

    async def _content(self, waiting: _Waiting) -> AsyncIterator[bytes]:
        try:
            while (chunk := await waiting.chunks.get()) is not None:
                if chunk:
                    yield chunk
            if waiting.broken:
                raise BrokenAnswerError
        finally:
            self._forget(waiting)

    def _forget(self, waiting: _Waiting) -> None:
        waiting.left = True
        while not waiting.chunks.empty():
            waiting.chunks.get_nowait()
        with suppress(ValueError):
            self._queue.remove(waiting)
        self._taken.pop(waiting.pulled.request, None)

    def _lose_all_but(self, working: list[str]) -> None:
        """Drop the requests that were sent to the device but never arrived there: their clients ask again."""
        for name in set(self._taken) - set(working):
            lost = self._taken.pop(name)
            if not lost.answer.done():
                lost.answer.set_exception(RequestRefused("the request was lost on its way to the device", 503))

    def _away(self) -> bool:
        return not self._open and time.monotonic() - self._last_pull_s > AWAY_S

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def _gone(request: Request) -> None:
    """Return when the connection of a request has ended; the request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _receive(request: Request, body: IO[bytes]) -> int:
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            body.write(chunk)
        body.flush()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise RequestRefused(f"the disk of the relay is full ({error.strerror})", DISK_FULL) from error
    body.seek(0)
    return size


async def _frame(waiting: _Waiting) -> AsyncIterator[bytes]:
    header = waiting.pulled.model_dump_json().encode()
    yield frames.LENGTHS.pack(len(header), waiting.size) + header
    while not waiting.body.closed and (chunk := waiting.body.read(CHUNK_BYTES)):
        yield chunk


async def _put(waiting: _Waiting, chunk: bytes | None) -> None:
    """Give a chunk to the client's stream when it is ready; drop it if the client has left."""
    while not waiting.left:
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await waiting.chunks.put(chunk)
                return


Forward = Callable[[str, str, Request], Awaitable[Response]]


def client_routes(forward: Forward, prefix: str = "") -> list[Route]:
    """An agent's routes below a prefix. forward: called with the agent's own path, the method, and the request."""
    return [
        Route(f"{prefix}{path}", partial(forward, path, method), methods=[method])
        for path, handlers in ROUTES.items()
        for method in handlers
    ]


def relay_app(routes: Sequence[Route], refusals: Mapping[Any, Refuse]) -> ASGIApp:
    """The ASGI application behind the guard. refusals: of further errors, besides those of agents."""
    app = Starlette(routes=routes, exception_handlers={**REFUSALS, **refusals})
    app.router.redirect_slashes = False

    async def broken_off(scope: Scope, receive: Receive, send: Send) -> None:
        """End a broken answer without its last part, which breaks the client's connection."""
        with suppress(BrokenAnswerError):
            await app(scope, receive, send)

    return broken_off


def create_app(relay: Relay) -> ASGIApp:
    """The application of one device: an agent's routes, and two for the device."""
    own = [Route("/v1/pull", relay.pull, methods=["GET"]), Route("/v1/answers", relay.answer, methods=["POST"])]
    return relay_app([*client_routes(relay.forward), *own], {})


def body_caps(max_model_mib: int) -> dict[str, int]:
    """The largest bodies of a relay [bytes], by the ends of paths."""
    return {
        "/v1/models": max_model_mib * MIB,
        "/v1/run": MAX_TENSORS_MIB * MIB + frames.MAX_HEADER_BYTES,
        "/v1/answers": 2 * MAX_TENSORS_MIB * MIB,
    }


def serve_relay(network: Endpoint, max_model_mib: int) -> None:
    """Run until stopped; AgentError when it cannot start."""
    check_bind(network)
    with private_folder() as folder, bound(network.host, network.port) as listener:
        token = network.token or new_token(folder, "agent")
        server = http_server(network, create_app(Relay(folder)), token, GuardRules(body_bytes=body_caps(max_model_mib)))
        listener.listen(MAX_CONNECTIONS)
        asyncio.run(serve_with(server, [listener], network, f"relay ready: {address(network, listener)}"))
