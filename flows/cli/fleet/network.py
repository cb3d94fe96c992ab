"""Settings that the services of a fleet and their clients take from the config."""

from collections.abc import Mapping
from typing import Any

from flows.cli.fleet.config import FleetConfig
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.network.tokens import read_token

FleetAnswer = Mapping[str, Any]
TOKEN_VARIABLE = "AUTOTAILOR_RELAY_TOKEN"


def token_of(config: FleetConfig) -> str | None:
    """The token of clients that measure devices through a relay. AgentError if its file is unsafe to use."""
    return read_token(config.token_file, TOKEN_VARIABLE, "token_file")


def endpoint(config: FleetConfig, port: int, token: str | None = None) -> Endpoint:
    """The endpoint on which a service of the fleet listens."""
    return Endpoint(
        host=config.host,
        port=port,
        token=token,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        insecure_bind=config.insecure_bind,
        allowed_hosts=config.allowed_hosts,
        stop_with_stdin=False,
        silence_limit_s=0,
    )
