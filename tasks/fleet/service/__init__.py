"""The registry as a service that devices talk to: they enrol, tell, and fetch files of bundles."""

from tasks.fleet.service.running import serve_registry

__all__ = ["serve_registry"]
