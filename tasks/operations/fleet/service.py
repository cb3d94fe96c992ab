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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import ValidationError
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

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


Handler = Callable[[Request, Any], Awaitable[Response]]


def _refused(answer: Callable[[Any], Response]) -> Handler:
    """A handler of errors. answer: the response to an error."""

    async def handler(_request: Request, error: Any) -> Response:
        return answer(error)

    return handler


def _away(error: UncheckedTokenError) -> Response:
    return refusal(503, str(error), retry_after_s=error.retry_after_s)


CALLER_REFUSALS: dict[Any, Handler] = {
    UnknownTokenError: _refused(lambda _: refusal(401, "missing or wrong token; send 'Authorization: Bearer TOKEN'")),
    UncheckedTokenError: _refused(_away),
    SQLAlchemyError: _refused(lambda error: _away(unchecked(error))),
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
    known, lately = {kind: known for kind, known, _ in by_kind}, {kind: lately for kind, _, lately in by_kind}
    states = {
        state: sum(row.state == state for row in rollouts) for state in ("running", "asking", "halted", "complete")
    }
    reached = {"reached": rollouts[-1].reached, "all": rollouts[-1].devices} if rollouts else {}
    yield _gauge("devices", "Devices that have enrolled, by kind.", "kind", known)
    yield _gauge("pulled_devices", "Devices that have pulled in the last window.", "kind", lately)
    yield GaugeMetricFamily(f"{PREFIX}bundles", "Bundles that the registry has.", value=count)
    yield _gauge("rollouts", "Roll-outs by state.", "state", states)
    yield _gauge("rollout_devices", "Devices that the latest roll-out has reached.", "of", reached)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    """A metric with one value for each value of its label."""
    found = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=[label])
    for key, value in values.items():
        found.add_metric([key], value)
    return found


READERS = 4

T = TypeVar("T")


class RegistryThreads:
    """Threads of one service: some that read, and as many writers as the database takes at once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._readers = ThreadPoolExecutor(READERS, "registry-reader")
        self._writers = ThreadPoolExecutor(registry.writers, "registry-writer")

    async def read(self, asked: Callable[[Connection], T]) -> T:
        """The result of a function that reads, in a transaction of its own."""
        return await self._result(self._readers, self._registry.reading, asked)

    async def write(self, asked: Callable[[Connection], T]) -> T:
        """The result of a function that writes, in a transaction of its own."""
        return await self._result(self._writers, self._registry.writing, asked)

    async def _result(
        self,
        threads: ThreadPoolExecutor,
        transaction: Callable[[], AbstractContextManager[Connection]],
        asked: Callable[[Connection], T],
    ) -> T:
        def work() -> T:
            with transaction() as connection:
                return asked(connection)

        return await asyncio.get_running_loop().run_in_executor(threads, work)


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
        self._folder, self._token, self._threads = folder, token, RegistryThreads(registry)
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
            found = await self._threads.read(lambda connection: find_device(connection, token))
        except SQLAlchemyError as error:
            raise unchecked(error) from error
        if found is None:
            self._known.pop(name, None)
        else:
            self._known[name] = found, now_s + KNOWN_S
        return found

    def _is_client(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


def serve_fleet_relay(registry: Registry, network: Endpoint, max_model_mib: int) -> None:
    """Run until stopped. network.token: of clients; None: a new one is made. AgentError: it cannot start."""
    check_bind(network)
    connections = 2 * MOST_DEVICES
    allow_open_files(connections + Places(connections).strangers + OTHER_FILES)
    with private_folder() as folder, bound(network.host, network.port) as listener:
        relay = FleetRelay(registry, folder, network.token or new_token(folder, "relay"))
        rules = GuardRules(connections=connections, requests=connections, body_bytes=body_caps(max_model_mib))
        own = [Route("/v1/pull", relay.pull, methods=["GET"]), Route("/v1/answers", relay.answer, methods=["POST"])]
        app = relay_app([*client_routes(relay.forward, "/devices/{device}"), *own], CALLER_REFUSALS)
        server = http_server(network, app, relay.admits, rules)
        listener.listen(connections)
        asyncio.run(serve_with(server, [listener], network, f"{RELAY_READY}{address(network, listener)}"))


class RegistryRoutes:
    """The requests that devices may make."""

    def __init__(self, registry: Registry, store: BundleStore) -> None:
        self._window_s, self._store, self._threads = registry.window_s, store, RegistryThreads(registry)

    async def admits(self, token: str) -> bool:
        """Whether it is the token of a device, or one to enrol with: all other callers are rejected. UncheckedTokenError."""
        try:
            return await self._threads.read(
                lambda connection: find_device(connection, token) is not None or can_enrol(connection, token)
            )
        except SQLAlchemyError as error:
            raise unchecked(error) from error

    async def enrol(self, request: Request) -> Response:
        """POST v1/enrolments, with a token that can be used once: the device's number and its own token."""
        asked, token = EnrolAsked.model_validate_json(await request.body()), token_of(request)
        return await self._threads.write(lambda connection: _answer(enrol(connection, token, asked)))

    async def telemetry(self, request: Request) -> Response:
        """POST v1/telemetry, with a device's token: takes sums; answers with the bundle that the device should run."""
        described, token = Telemetry.model_validate_json(await request.body()), token_of(request)
        return await self._threads.write(lambda connection: self._record(connection, token, described))

    async def file(self, request: Request) -> Response:
        """GET v1/files/DIGEST, with a device's token: a file of a bundle."""
        await self._threads.read(lambda connection: _known_device(connection, token_of(request)))
        path = self._store.path(request.path_params["digest"])
        if path is None:
            return refusal(404, "there is no such file")
        return FileResponse(path, media_type="application/octet-stream")

    def _record(self, connection: Connection, token: str, described: Telemetry) -> Response:
        device = _known_device(connection, token)
        ahead = record(connection, device, described, time.time(), self._window_s)
        bundle = assigned_to(connection, device)
        signature = None if bundle is None else signature_of(connection, bundle)
        assigned = AssignedBundle(bundle=bundle, signature=signature, tell_every_s=self._window_s)
        return _answer(assigned if ahead is None else assigned.model_copy(update={"ahead": ahead}))


def _known_device(connection: Connection, token: str) -> str:
    """The device with this token. UnknownTokenError."""
    device = find_device(connection, token)
    if device is None:
        raise UnknownTokenError
    return device


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


REFUSALS: dict[Any, Handler] = {
    **CALLER_REFUSALS,
    EnrolmentRefused: CALLER_REFUSALS[UnknownTokenError],
    ValidationError: _refused(lambda error: refusal(422, one_line(error))),
    HTTPException: _refused(lambda error: refusal(error.status_code, error.detail)),
    Exception: _refused(lambda error: refusal(500, f"the service failed: {type(error).__name__}")),
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
        described = metrics_export("autotailor-registry", lambda: _metrics(registry), in_thread=True)
        asyncio.run(serve_with(server, [listener], network, ready, _decide(registry), *described))


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
