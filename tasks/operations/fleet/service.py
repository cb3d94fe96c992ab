"""Services of a fleet: the registry, where devices enrol, report and fetch bundles, and the relay that they pull from.

A request's token names its caller. Threads query the registry's database, so that the event loop that serves devices
never waits for it. A running registry decides on roll-outs when a window is over; its metrics are devices, recent pulls
and roll-outs. Everything beyond the registry's routes is done on its own machine, by `autotailor fleet`.

`autotailor fleet relay` is the meeting point of all devices of a registry and their clients. Each device pulls with its
own token, as from a relay of its own. Clients have another token, and name the device in their address:
http://HOST:PORT/devices/DEVICE is the address of an agent.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from adaptive_runtime.base.telemetry import metrics_export
from adaptive_runtime.fleet import AssignedBundle, EnrolAsked, Telemetry
from profiling_agents.messages import Message, one_line
from profiling_agents.network.endpoint import Endpoint, address, bound, check_bind, new_token
from profiling_agents.network.guard import (
    GuardRules,
    Places,
    RequestRefused,
    UncheckedTokenError,
    bearer,
    checked,
    refusal,
)
from profiling_agents.network.server import allow_open_files, ended_by_signal, http_server, private_folder, serve_with
from profiling_agents.serving.relay import Relay, body_caps, client_routes, relay_app
from tasks.operations.fleet.devices import (
    BundleStore,
    EnrolmentRefused,
    assigned_to,
    can_enrol,
    enrol,
    find_device,
    hashed,
    signature_of,
)
from tasks.operations.fleet.registry import Registry, bundles, devices
from tasks.operations.fleet.rollouts import advance, list_rollouts, record

AWAY_RETRY_S = 5.0
"""When to ask again if the database is away."""


class UnknownTokenError(Exception):
    """The token is not valid for this route."""


def token_of(request: Request) -> str:
    """The token that the request shows; empty: none."""
    return bearer(request.headers.get("authorization", "")) or ""


def unchecked(error: SQLAlchemyError) -> UncheckedTokenError:
    """The error for a registry whose database is away, without the database's text, which may contain a statement."""
    line = f"the registry's database is away ({type(error).__name__}); try again in {AWAY_RETRY_S:g} s"
    return UncheckedTokenError(line, AWAY_RETRY_S)


async def _unknown(request: Request, error: Exception) -> Response:
    return refusal(401, "missing or wrong token; send 'Authorization: Bearer TOKEN'")


async def _unchecked(request: Request, error: UncheckedTokenError) -> Response:
    return refusal(503, str(error), retry_after_s=error.retry_after_s)


async def _database(request: Request, error: SQLAlchemyError) -> Response:
    return await _unchecked(request, unchecked(error))


CALLER_REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    UnknownTokenError: _unknown,
    UncheckedTokenError: _unchecked,
    SQLAlchemyError: _database,
}


PREFIX = "autotailor_fleet_"


def registry_metrics(registry: Registry) -> Iterator[Metric]:
    """Counts of the database. They contain no name of a device or owner."""
    with registry.reading() as connection:
        heard = devices.c.seen_s > time.time() - registry.window_s
        rows = connection.execute(
            select(devices.c.kind, func.count(), func.count().filter(heard)).group_by(devices.c.kind)
        )
        by_kind = [(str(kind), known, lately) for kind, known, lately in rows]
        count = connection.execute(select(func.count()).select_from(bundles)).scalar_one()
        rollouts = list_rollouts(connection)
    known = GaugeMetricFamily(f"{PREFIX}devices", "Devices that have enrolled, by kind.", labels=["kind"])
    lately = GaugeMetricFamily(
        f"{PREFIX}pulled_devices", "Devices that have pulled in the last window.", labels=["kind"]
    )
    for kind, all_of_kind, pulled in by_kind:
        known.add_metric([kind], all_of_kind)
        lately.add_metric([kind], pulled)
    yield known
    yield lately
    yield GaugeMetricFamily(f"{PREFIX}bundles", "Bundles that the registry has.", value=count)
    states = GaugeMetricFamily(f"{PREFIX}rollouts", "Roll-outs by state.", labels=["state"])
    for state in ("running", "asking", "halted", "complete"):
        states.add_metric([state], sum(row.state == state for row in rollouts))
    yield states
    reached = GaugeMetricFamily(
        f"{PREFIX}rollout_devices", "Devices that the latest roll-out has reached.", labels=["of"]
    )
    for row in rollouts[-1:]:
        reached.add_metric(["reached"], row.reached)
        reached.add_metric(["all"], row.devices)
    yield reached


READERS = 4

P = ParamSpec("P")
T = TypeVar("T")


class RegistryThreads:
    """Threads of one service: some that read, and as many writers as the database takes at once."""

    def __init__(self, registry: Registry) -> None:
        self._readers = ThreadPoolExecutor(READERS, "registry-reader")
        self._writers = ThreadPoolExecutor(registry.writers, "registry-writer")

    async def read(self, asked: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that reads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(asked, *args, **kwargs))

    async def write(self, asked: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that writes."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, partial(asked, *args, **kwargs))


RELAY_READY = "fleet relay ready: "
MOST_DEVICES = 12_000
"""Devices that pull at once: each has one connection, and one more while it answers."""
KNOWN_S = 10.0
"""How long a device's token is cached [s]: a removed device may pull until then."""
OTHER_FILES = 256


class FleetRelay:
    """A relay for each device that has pulled."""

    def __init__(self, registry: Registry, folder: Path, token: str) -> None:
        """folder: for bodies of requests that wait. token: of clients."""
        self._registry, self._folder, self._token = registry, folder, token
        self._threads = RegistryThreads(registry)
        self._relays: dict[str, Relay] = {}
        self._known: dict[str, tuple[str, float]] = {}

    async def admits(self, token: str) -> bool:
        """Whether it is the clients' token, or a device's. UncheckedTokenError."""
        return self._is_client(token) or await self._device(token) is not None

    async def forward(self, route: str, method: str, request: Request) -> Response:
        """A client's request to one device."""
        if not self._is_client(token_of(request)):
            raise UnknownTokenError
        relay = self._relays.get(request.path_params["device"])
        if relay is None:
            raise RequestRefused("this device has not pulled from this relay", 503)
        return await relay.forward(route, method, request)

    async def pull(self, request: Request) -> Response:
        """GET v1/pull, with a device's token."""
        return await (await self._own(request)).pull(request)

    async def answer(self, request: Request) -> Response:
        """POST v1/answers, with a device's token: answers only requests to this device."""
        return await (await self._own(request)).answer(request)

    async def _own(self, request: Request) -> Relay:
        device = await self._device(token_of(request))
        if device is None:
            raise UnknownTokenError
        return self._relays.setdefault(device, Relay(self._folder))

    async def _device(self, token: str) -> str | None:
        """The device with this token; None if there is none."""
        name, now_s = hashed(token), time.monotonic()
        device, until_s = self._known.get(name, (None, 0.0))
        if now_s < until_s:
            return device
        try:
            found = await self._threads.read(self._look_up, token)
        except SQLAlchemyError as error:
            raise unchecked(error) from error
        if found is None:
            self._known.pop(name, None)
        else:
            self._known[name] = found, now_s + KNOWN_S
        return found

    def _look_up(self, token: str) -> str | None:
        with self._registry.reading() as connection:
            return find_device(connection, token)

    def _is_client(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


def create_relay_app(relay: FleetRelay) -> ASGIApp:
    """The ASGI application that goes behind the guard."""
    own = [Route("/v1/pull", relay.pull, methods=["GET"]), Route("/v1/answers", relay.answer, methods=["POST"])]
    return relay_app([*client_routes(relay.forward, "/devices/{device}"), *own], CALLER_REFUSALS)


def serve_fleet_relay(registry: Registry, network: Endpoint, max_model_mib: int) -> None:
    """Run until stopped. network.token: of clients; None: a new one is made. AgentError: it cannot start."""
    check_bind(network)
    connections = 2 * MOST_DEVICES
    allow_open_files(connections + Places(connections).strangers + OTHER_FILES)
    with private_folder() as folder, bound(network.host, network.port) as listener:
        relay = FleetRelay(registry, folder, network.token or new_token(folder, "relay"))
        rules = GuardRules(connections=connections, requests=connections, body_bytes=body_caps(max_model_mib))
        server = http_server(network, create_relay_app(relay), relay.admits, rules)
        listener.listen(connections)
        asyncio.run(serve_with(server, [listener], network, f"{RELAY_READY}{address(network, listener)}"))


class RegistryRoutes:
    """The requests that devices may make."""

    def __init__(self, registry: Registry, store: BundleStore) -> None:
        self._registry, self._store = registry, store
        self._threads = RegistryThreads(registry)

    async def admits(self, token: str) -> bool:
        """Whether it is the token of a device, or one to enrol with: all other callers are rejected. UncheckedTokenError."""
        try:
            return await self._threads.read(self._admits, token)
        except SQLAlchemyError as error:
            raise unchecked(error) from error

    async def enrol(self, request: Request) -> Response:
        """POST v1/enrolments, with a token that can be used once: the device's number and its own token."""
        asked = EnrolAsked.model_validate_json(await request.body())
        return await self._threads.write(self._enrol, token_of(request), asked)

    async def telemetry(self, request: Request) -> Response:
        """POST v1/telemetry, with a device's token: takes sums; answers with the bundle that the device should run."""
        told = Telemetry.model_validate_json(await request.body())
        return await self._threads.write(self._record, token_of(request), told)

    async def file(self, request: Request) -> Response:
        """GET v1/files/DIGEST, with a device's token: a file of a bundle."""
        await self._threads.read(self._known, token_of(request))
        path = self._store.path(request.path_params["digest"])
        if path is None:
            return refusal(404, "there is no such file")
        return FileResponse(path, media_type="application/octet-stream")

    def _admits(self, token: str) -> bool:
        with self._registry.reading() as connection:
            return find_device(connection, token) is not None or can_enrol(connection, token)

    def _enrol(self, token: str, asked: EnrolAsked) -> Response:
        with self._registry.writing() as connection:
            return _answer(enrol(connection, token, asked))

    def _record(self, token: str, told: Telemetry) -> Response:
        with self._registry.writing() as connection:
            device = find_device(connection, token)
            if device is None:
                raise UnknownTokenError
            ahead = record(connection, device, told, time.time(), self._registry.window_s)
            bundle = assigned_to(connection, device)
            signature = None if bundle is None else signature_of(connection, bundle)
        every_s = self._registry.window_s
        assigned = AssignedBundle(bundle=bundle, signature=signature, tell_every_s=every_s)
        return _answer(assigned if ahead is None else assigned.model_copy(update={"ahead": ahead}))

    def _known(self, token: str) -> None:
        with self._registry.reading() as connection:
            if find_device(connection, token) is None:
                raise UnknownTokenError


def create_app(routes: RegistryRoutes) -> Starlette:
    """The ASGI application that goes behind the guard, without generated documentation."""
    found = [
        Route("/v1/enrolments", routes.enrol, methods=["POST"]),
        Route("/v1/telemetry", routes.telemetry, methods=["POST"]),
        Route("/v1/files/{digest}", routes.file, methods=["GET"]),
    ]
    app = Starlette(routes=found, exception_handlers=REFUSALS)
    app.router.redirect_slashes = False
    return app


def _answer(message: Message) -> Response:
    """The message without unset fields: devices of earlier versions do not know `ahead`."""
    return checked(JSONResponse(message.model_dump(mode="json", exclude_unset=True)))


async def _invalid(request: Request, error: ValidationError) -> Response:
    return refusal(422, one_line(error))


async def _http(request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, error.detail)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, f"the service failed: {type(error).__name__}")


REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    **CALLER_REFUSALS,
    EnrolmentRefused: CALLER_REFUSALS[UnknownTokenError],
    ValidationError: _invalid,
    HTTPException: _http,
    Exception: _failed,
}
"""Every error that a route may raise, as one line; no line contains a token, or a statement of the database."""


READY = "registry ready: "
CONNECTIONS = 4096
REQUESTS = 512
"""Requests of devices at once; further ones are asked to retry."""
LONGEST_PAUSE_S = 60.0
LOOKS_PER_WINDOW = 20


def serve_registry(registry: Registry, store: BundleStore, network: Endpoint) -> None:
    """Run until stopped. AgentError: it cannot start."""
    check_bind(network, own_tokens=True)
    allow_open_files(CONNECTIONS + Places(CONNECTIONS).strangers + OTHER_FILES)
    with ended_by_signal(), bound(network.host, network.port) as listener:
        routes = RegistryRoutes(registry, store)
        rules = GuardRules(connections=CONNECTIONS, requests=REQUESTS)
        server = http_server(network, create_app(routes), routes.admits, rules)
        listener.listen(CONNECTIONS)
        ready = f"{READY}{address(network, listener)}"
        told = metrics_export("autotailor-registry", lambda: _metrics(registry), in_thread=True)
        asyncio.run(serve_with(server, [listener], network, ready, _decide(registry), *told))


async def _decide(registry: Registry) -> None:
    """Check again and again whether a window is over, and print the decisions."""
    while True:
        await asyncio.to_thread(look, registry)
        await asyncio.sleep(min(LONGEST_PAUSE_S, registry.window_s / LOOKS_PER_WINDOW))


def _metrics(registry: Registry) -> list[Metric]:
    """The registry's metrics; empty while the database is away, since devices are answered all the same."""
    try:
        return list(registry_metrics(registry))
    except SQLAlchemyError:
        return []


def look(registry: Registry) -> None:
    """Decide on windows that are over. If the database is away, the next look tries again."""
    try:
        with registry.writing() as connection:
            decided = advance(connection, time.time(), registry.window_s)
    except SQLAlchemyError as error:
        print(f"roll-outs wait: the database failed ({type(error).__name__})", flush=True)
        return
    for rollout, decision in decided.items():
        print(f"roll-out {rollout}: {decision.action}: {decision.reason}", flush=True)
