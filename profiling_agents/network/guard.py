"""The gate in front of every route of a service, deny by default, and the places of connections.

In order: protocol, header count, Host, Origin, token, places, queue, body size. A request that passes has shown the
token, or reads one of the few files that everybody may read, or came by a Unix socket, whose permissions admit its
clients. No web page reaches a Unix socket, so any `Host` is accepted there.

Most places are for clients that have shown a token, and a few, for a short time, for strangers. Anybody can open any
number of connections without a token. They take no place of a client with a token: beyond their own few places, the
oldest silent connection makes room for the newest.
"""

import asyncio
import hmac
import ipaddress
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from profiling_agents.frames import CHECKSUM_HEADER, checksum
from profiling_agents.messages import ErrorBody

HEAD_LIMIT_S = 5.0
"""A connection that brings no whole head of a request, no hello or no end of a TLS handshake for this long is closed."""
FEWEST_STRANGERS = 32
SHARE_OF_STRANGERS = 4


class Visitor(Protocol):
    """A connection, as `Places` sees it."""

    @property
    def is_silent(self) -> bool:
        """Whether none of its requests is being answered."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


@dataclass(slots=True)
class Places:
    """known: limit of connections that have shown a token; those without one may be a fourth of that, but at least 32."""

    known: int
    _known: set[Visitor] = field(default_factory=set)
    _strangers: dict[Visitor, None] = field(default_factory=dict)

    @property
    def strangers(self) -> int:
        """The most connections without a token."""
        return max(FEWEST_STRANGERS, self.known // SHARE_OF_STRANGERS)

    def enter(self, one: Visitor) -> None:
        """Add a new connection. If too many have no token, close the oldest silent one, else this one."""
        self._strangers[one] = None
        if len(self._strangers) > self.strangers:
            oldest = next(other for other in self._strangers if other.is_silent or other is one)
            del self._strangers[oldest]
            oldest.drop()

    def admit(self, one: Visitor) -> bool:
        """Record that a connection has shown a token; False if all places are taken."""
        if one in self._known:
            return True
        if len(self._known) >= self.known:
            return False
        self._strangers.pop(one, None)
        self._known.add(one)
        return True

    def leave(self, one: Visitor) -> None:
        """Remove a connection that has ended."""
        self._strangers.pop(one, None)
        self._known.discard(one)


MAX_CONNECTIONS = 64
MAX_HEADERS = 64
MAX_REQUESTS = 16
MAX_BODY_BYTES = 1 << 20
BODY_STALL_S = 30.0

CONNECTION = "connection"
"""Key of a request's connection in its scope's state, if the server counts connections with and without a token.

Its `is_local` says whether it came by a Unix socket.
"""

R = TypeVar("R", bound=Response)
AGAIN = (429, 503)
"""Refusals that may state when to try again."""
TokenCheck = Callable[[str], Awaitable[bool]]
"""Whether a token is accepted, for services with a token per client. `UncheckedTokenError`: it cannot be checked now."""


class UncheckedTokenError(Exception):
    """The place where tokens are looked up is unavailable. One line."""

    def __init__(self, line: str, retry_after_s: float) -> None:
        super().__init__(line)
        self.retry_after_s = retry_after_s


class RequestRefused(Exception):
    """A request is refused with an HTTP status; its line is the reason. retry_after_s: when another attempt may succeed."""

    def __init__(self, line: str, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(line)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """The limits of a service.

    connections: at once, with a token; requests: at once; further ones are refused with 503 and 429. body_bytes: caps by the
    ends of paths. open_paths: readable without the token. shutdown_s: time for requests to end when the service is stopped.
    """

    connections: int = MAX_CONNECTIONS
    requests: int = MAX_REQUESTS
    body_bytes: Mapping[str, int] = field(default_factory=dict)
    open_paths: frozenset[str] = frozenset()
    shutdown_s: int = 2

    def cap_bytes(self, path: str) -> int:
        """The largest body that this path accepts."""
        return next((cap for end, cap in self.body_bytes.items() if path.endswith(end)), MAX_BODY_BYTES)


def refusal(status: int, line: str, *, retry_after_s: float | None = None) -> JSONResponse:
    """A refusal of one line. retry_after_s: when to try again; 429 always states it."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 429 and retry_after_s is None:
        retry_after_s = 1.0
    if status in AGAIN and retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    return checked(
        JSONResponse(ErrorBody(error=" ".join(line.split())).model_dump(exclude_defaults=True), status, headers)
    )


def checked(response: R) -> R:
    """The response with the checksum of its body."""
    response.headers[CHECKSUM_HEADER] = checksum(bytes(response.body))
    return response


class Guard:
    """ASGI middleware. `hosts`: its accepted host names; `any_address`: also any IP address (wildcard bind)."""

    def __init__(
        self, app: ASGIApp, *, token: str | TokenCheck, hosts: frozenset[str], any_address: bool, rules: GuardRules
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._any_address = any_address
        self._rules = rules
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with a body that cannot grow past its cap."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = await self._refuse(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        self._requests += 1
        try:
            cap_bytes = self._rules.cap_bytes(scope["path"])
            await self._app(scope, _capped(receive, cap_bytes), send)
        except ClientDisconnect:
            return  # the client left in the middle of its body: nobody waits for an answer, and nothing is wrong here
        finally:
            self._requests -= 1

    async def _refuse(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        connection = scope.get("state", {}).get(CONNECTION)
        is_local = connection is not None and connection.is_local
        if (refused := self._refuse_page(scope, headers, is_local)) is not None:
            return refused
        if not (scope["method"] == "GET" and scope["path"] in self._rules.open_paths):
            try:
                if not (is_local or await self._admits(headers)):
                    return refusal(401, "missing or wrong token; send 'Authorization: Bearer TOKEN'")
            except UncheckedTokenError as error:
                return refusal(503, str(error), retry_after_s=error.retry_after_s)
            if connection is not None and not connection.admit():
                return refusal(503, f"more than {self._rules.connections} connections; try again", retry_after_s=1.0)
        if self._requests >= self._rules.requests:
            return refusal(429, f"more than {self._rules.requests} requests at once; try again")
        cap_bytes = self._rules.cap_bytes(scope["path"])
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > cap_bytes:
            return refusal(413, _too_large(cap_bytes))
        return None

    def _refuse_page(self, scope: Scope, headers: Headers, is_local: bool) -> JSONResponse | None:
        if len(headers) > MAX_HEADERS:
            return refusal(431, f"more than {MAX_HEADERS} headers")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not (is_local or self._known(hosts[0])):
            return refusal(403, "Host header: not a name of this service; allow it with --allowed-host")
        own_origin = f"{scope['scheme']}://{hosts[0]}"
        if any(origin != own_origin for origin in headers.getlist("origin")):
            return refusal(403, "Origin header: requests from web pages are refused")
        return None

    async def _admits(self, headers: Headers) -> bool:
        given = headers.getlist("authorization")
        if len(given) != 1:
            return False
        if isinstance(self._token, str):
            return hmac.compare_digest(given[0].encode(), f"Bearer {self._token}".encode())
        token = bearer(given[0])
        return token is not None and await self._token(token)

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        # A page that rebinds DNS sends its own name, never an address.
        return self._any_address and _is_address(name)


def bearer(authorization: str) -> str | None:
    """The token of an `Authorization` header; None if it has none."""
    scheme, _, token = authorization.partition(" ")
    return token if scheme == "Bearer" and token else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _too_large(cap_bytes: int) -> str:
    return f"body too large; at most {cap_bytes} bytes are taken here"


def _capped(receive: Receive, cap_bytes: int) -> Receive:
    """`receive` that refuses bodies past the cap (413) and bodies that stall (408)."""
    seen = 0
    complete = False

    async def capped() -> Message:
        nonlocal seen, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(BODY_STALL_S):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(408, f"body stalled for {BODY_STALL_S:g} s") from error
        seen += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if seen > cap_bytes:
            raise HTTPException(413, _too_large(cap_bytes))
        return message

    return capped
