"""Asking devices through a fleet's relay. Whatever a device does, it costs its own time limit and nothing else."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypeVar

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import AgentError, Capabilities, Measurement
from tasks import profile
from tasks.fleet.profiling.settings import FleetProfileSettings

ALONE = profile.Settings(method="alone")
"""By which operators are measured: as `autotailor profile profile.method=alone` does, whose tables these are."""

T = TypeVar("T")


class RelayAccess(NamedTuple):
    """Of a fleet's relay: its address, the clients' token, and the certificate (PEM) that https is checked against."""

    url: str
    token: str
    ca_file: Path | None = None

    def client(self, device: str) -> AgentClient:
        """Of one device."""
        url = f"{self.url.rstrip('/')}/devices/{device}"
        return AgentClient(url, self.token, ca_file=self.ca_file, patience_s=0.0)


class DeviceAnswer(NamedTuple):
    """What a device told. reason: why there is no more; None: it is complete."""

    measurements: tuple[Measurement, ...]
    reason: str | None


def describe(access: RelayAccess, device: str, limit_s: float) -> Capabilities | str:
    """What the device says of itself, or the reason why it does not."""
    try:
        with access.client(device) as client, client.within(limit_s):
            return client.capabilities()
    except AgentError as error:
        return str(error)


def measure(
    access: RelayAccess, device: str, jobs: Sequence[ModelJob], fingerprint: str, settings: FleetProfileSettings
) -> DeviceAnswer:
    """The device's times of some operators, alone."""
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
    """The answer of each device. done: is called after each."""
    found: dict[str, T] = {}
    with ThreadPoolExecutor(at_once, "device") as threads:
        waiting = {threads.submit(asked, device): device for device in devices}
        for future in as_completed(waiting):
            found[waiting[future]] = future.result()
            done()
    return found
