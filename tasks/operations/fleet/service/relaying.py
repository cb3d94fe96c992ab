"""The meeting point of all devices of a registry and their clients: `autotailor fleet relay`.

Each device pulls with its own token, as from a relay of its own. Clients have another token, and name the device in their
address: http://HOST:PORT/devices/DEVICE is the address of an agent.
"""

import asyncio
import hmac
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from profiling_agents.network.endpoint import Endpoint, address, bound, check_bind
from profiling_agents.network.folder import private_folder
from profiling_agents.network.guard import GuardRules
from profiling_agents.network.places import Places
from profiling_agents.network.server import allow_open_files, http_server, serve_with
from profiling_agents.network.tokens import new_token
from profiling_agents.serving.relay import AwayError, Relay, body_caps, client_routes, relay_app
from tasks.operations.fleet.registry import Registry, find_device
from tasks.operations.fleet.registry.devices import hashed
from tasks.operations.fleet.service.callers import CALLER_REFUSALS, UnknownTokenError, token_of, unchecked
from tasks.operations.fleet.service.threads import RegistryThreads

READY = "fleet relay ready: "
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
            raise AwayError("this device has not pulled from this relay")
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


def create_app(relay: FleetRelay) -> ASGIApp:
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
        server = http_server(network, create_app(relay), relay.admits, rules)
        listener.listen(connections)
        asyncio.run(serve_with(server, listener, network, f"{READY}{address(network, listener)}"))
