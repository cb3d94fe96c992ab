"""Agents of a config's devices: running agents are asked, at the addresses in the config."""

from collections.abc import Iterator, Mapping

from flows.config import DeviceProfile
from flows.operations.health.state import ServiceHealth
from flows.pipeline.devices import Devices
from profiling_agents.messages import AgentError
from tasks.base.errors import UserError


def agents_health(profiles: Mapping[str, DeviceProfile]) -> Iterator[ServiceHealth]:
    """A line for each agent; agents that are only started for a run are reported as such and not asked."""
    for name, profile in profiles.items():
        if not profile.urls:
            where = "this machine" if profile.ssh is None else profile.ssh.host
            yield ServiceHealth(
                service=f"agent {name}",
                where=where,
                well=True,
                said="is started for the time of a run, and was not asked",
            )
        for url in profile.urls:
            yield _asked(name, url, profile.model_copy(update={"agent": url, "agents": ()}))


def _asked(name: str, url: str, profile: DeviceProfile) -> ServiceHealth:
    try:
        with Devices({name: profile}) as devices:
            found = devices.capabilities(name)
    except (AgentError, UserError) as error:
        said = str(error).removeprefix(f"agent {url}: ")
        next_step = "start it: autotailor agent; see docs/agents.md"
        return ServiceHealth(service=f"agent {name}", where=url, well=False, said=said, next_step=next_step)
    said = f"{found.backend}, {found.threads} threads, {found.precision}"
    return ServiceHealth(service=f"agent {name}", where=url, well=True, said=said)
