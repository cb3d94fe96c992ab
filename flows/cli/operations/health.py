"""`autotailor health`: a line for each service, and exit code 1 if one is unhealthy."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import HEALTH, Arguments
from flows.cli.terminal import Terminal
from flows.cli.words import SERVICES
from flows.config.compose import compose_config
from flows.config.validate import nearest, validate
from flows.operations.health import (
    ServiceHealth,
    guarded_health,
    mlflow_health,
    postgres_health,
    prefect_health,
    sqlite_health,
    worker_health,
)
from tasks.base.errors import UserError

HealthAnswer = Mapping[str, Any]
AUTO = "auto"
VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
"""Environment variables in which runs look up the address of a service."""


class HealthConfig(BaseModel):
    """Addresses of services (null: none), and devices whose agents are asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: dict[str, Any] = {}
    prefect: str | None = AUTO
    worker: str | None = None
    mlflow: str | None = AUTO
    registry: str | None = None
    relay: str | None = None
    postgres: tuple[str, ...] = ()
    ca_file: Path | None = None
    timeout_s: float = Field(default=10.0, gt=0, le=600)

    def address(self, service: str) -> str | None:
        """Address of a service; None if it has none."""
        value: str | None = getattr(self, service)
        return os.environ.get(VARIABLES[service]) or None if value == AUTO else value


def config_of(arguments: Arguments) -> HealthConfig:
    """The validated config. UserError for an unknown service."""
    for word in arguments.words:
        if word not in SERVICES:
            hint = nearest(word, SERVICES) or f"see 'autotailor {HEALTH} --help'"
            raise UserError(HEALTH, f"'{word}' is no service", allowed=", ".join(SERVICES), next_step=hint)
    return validate(HealthConfig, compose_config(HEALTH, arguments.overrides, arguments.config_folder))


def execute(arguments: Arguments) -> HealthAnswer:
    """Ask the named services, or all that have an address; show and return their health."""
    config, named = config_of(arguments), arguments.words
    found: list[ServiceHealth] = []
    for service in named or SERVICES:
        told = list(ASKED[service](config))
        if not told and service in named:
            hint = f"set {VARIABLES[service]}, or write" if service in VARIABLES else "write"
            raise UserError(HEALTH, f"{service} has no address", next_step=f"{hint} {SERVICES[service]}")
        found += told
    if not found:
        hint = "write prefect=URL, mlflow=URL, registry=URL, relay=URL, postgres=[URL] or device=[NAME]"
        raise UserError(HEALTH, "no service has an address", next_step=hint)
    _show(found)
    return {"well": all(one.well for one in found), "services": [one.to_json() for one in found]}


def _prefect(config: HealthConfig) -> Iterable[ServiceHealth]:
    if url := config.address("prefect"):
        yield prefect_health(url, ca_file=config.ca_file, timeout_s=config.timeout_s)


def _worker(config: HealthConfig) -> Iterable[ServiceHealth]:
    if config.worker:
        yield worker_health(config.worker, ca_file=config.ca_file, timeout_s=config.timeout_s)


def _mlflow(config: HealthConfig) -> Iterable[ServiceHealth]:
    url = config.address("mlflow")
    if url is None:
        return
    if url.startswith(("http://", "https://")):
        yield mlflow_health(url, ca_file=config.ca_file, timeout_s=config.timeout_s)
    elif url.startswith("sqlite:///"):
        yield sqlite_health(Path(url.removeprefix("sqlite:///")), "mlflow")
    else:
        yield postgres_health(url, timeout_s=config.timeout_s, service="mlflow")


def _registry(config: HealthConfig) -> Iterable[ServiceHealth]:
    if config.registry:
        start = "start it: autotailor fleet serve"
        yield guarded_health("registry", config.registry, start, ca_file=config.ca_file, timeout_s=config.timeout_s)


def _relay(config: HealthConfig) -> Iterable[ServiceHealth]:
    if config.relay:
        start = "start it: autotailor fleet relay, or for one device: autotailor relay"
        yield guarded_health("relay", config.relay, start, ca_file=config.ca_file, timeout_s=config.timeout_s)


def _postgres(config: HealthConfig) -> Iterable[ServiceHealth]:
    for address in config.postgres:
        yield postgres_health(address, timeout_s=config.timeout_s)


def _agents(config: HealthConfig) -> Iterable[ServiceHealth]:
    if config.device:
        from flows.config import DeviceProfile
        from flows.operations.health.agents import agents_health

        yield from agents_health({name: validate(DeviceProfile, row) for name, row in config.device.items()})


ASKED: Mapping[str, Callable[[HealthConfig], Iterable[ServiceHealth]]] = {
    "prefect": _prefect,
    "worker": _worker,
    "mlflow": _mlflow,
    "registry": _registry,
    "relay": _relay,
    "postgres": _postgres,
    "agents": _agents,
}


def _show(found: Iterable[ServiceHealth]) -> None:
    table = Table("service", "", "where", "what is wrong, and what to do")
    for one in found:
        state = "[green]ok[/]" if one.well else "[red]not well[/]"
        said = one.said if not one.next_step else f"{one.said}; {one.next_step}"
        table.add_row(escape(one.service), state, escape(one.where), escape(said))
    Terminal().show(table)
