"""A running registry: serves devices, and decides on roll-outs when a window is over."""

import asyncio
import time

from prometheus_client.core import Metric
from sqlalchemy.exc import SQLAlchemyError

from adaptive_runtime.base.telemetry import metrics_export
from profiling_agents.network.endpoint import Endpoint, address, bound, check_bind
from profiling_agents.network.folder import ended_by_signal
from profiling_agents.network.guard import GuardRules
from profiling_agents.network.places import Places
from profiling_agents.network.server import allow_open_files, http_server, serve_with
from tasks.operations.fleet.registry import BundleStore, Registry, advance
from tasks.operations.fleet.service.metrics import registry_metrics
from tasks.operations.fleet.service.routes import RegistryRoutes, create_app

READY = "registry ready: "
CONNECTIONS = 4096
REQUESTS = 512
"""Requests of devices at once; further ones are asked to retry."""
OTHER_FILES = 256
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
        asyncio.run(serve_with(server, listener, network, ready, _decide(registry), *told))


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
