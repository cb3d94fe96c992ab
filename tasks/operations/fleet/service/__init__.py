"""Services of a fleet: the registry, where devices enrol, report, and fetch bundles; and the relay that they pull from."""

from tasks.operations.fleet.service.relaying import serve_fleet_relay
from tasks.operations.fleet.service.running import serve_registry

__all__ = ["serve_fleet_relay", "serve_registry"]
