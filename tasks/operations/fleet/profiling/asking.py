"""Requests to devices through a fleet's relay. A misbehaving device costs its own time limit and nothing else."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypeVar

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import AgentError, Capabilities, Measurement
from tasks.measuring import profile
from tasks.operations.fleet.profiling.settings import FleetProfileSettings

ALONE = profile.Settings(method="alone")
"""How operators are measured: like `autotailor profile profile.method=alone`, whose tables these are."""

T = TypeVar("T")


class RelayAccess(NamedTuple):
    """Access to a fleet's relay: its address, the clients' token, and the certificate (PEM) that https is checked against."""

    url: str
    token: str
    ca_file: Path | None = None

    def client(self, device: str) -> AgentClient:
        """A client for one device."""
        url = f"{self.url.rstrip('/')}/devices/{device}"
        return AgentClient(url, self.token, ca_file=self.ca_file, patience_s=0.0)


class DeviceAnswer(NamedTuple):
    """Measurements of a device. reason: why they are incomplete; None: they are complete."""

    measurements: tuple[Measurement, ...]
    reason: str | None


def describe(access: RelayAccess, device: str, limit_s: float) -> Capabilities | str:
    """The device's description of itself, or the reason why there is none."""
    try:
        with access.client(device) as client, client.within(limit_s):
            return client.capabilities()
    except AgentError as error:
        return str(error)


def measure(
    access: RelayAccess, device: str, jobs: Sequence[ModelJob], fingerprint: str, settings: FleetProfileSettings
) -> DeviceAnswer:
    """Times of some operators on the device, each measured alone."""
    found: list[Measurement] = []
    limit_s = settings.limit_s + settings.operator_s * len(jobs)
    try:
        with access.client(device) as client, client.within(limit_s), client.lease():
            if client.capabilities().fingerprint != fingerprint:
                return DeviceAnswer((), "its fingerprint has changed")
            found.extend(client.measure(jobs, ALONE.measure))
    except AgentError as error:
        return DeviceAnswer(tuple(found), str(error))
    return DeviceAnswer(tuple(found), None)


def side_by_side(
    asked: Callable[[str], T], devices: Iterable[str], at_once: int, done: Callable[[], None]
) -> Mapping[str, T]:
    """The answer of each device. `done` is called after each."""
    found: dict[str, T] = {}
    with ThreadPoolExecutor(at_once, "device") as threads:
        waiting = {threads.submit(asked, device): device for device in devices}
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            done()
    return found
