"""The options of an agent, from the command line."""

from dataclasses import dataclass
from pathlib import Path

from profiling_agents.execution.limits import ModelLimits
from profiling_agents.messages import Precision
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.sensing import sensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of an agent. segments: serve segments of at most `max_subnets` SubNets, and measure nothing.

    allowed_peers: `HOST:PORT` of other devices to which it may give the outputs of its segments.
    """

    backend: str
    threads: int
    precision: Precision
    provider: str | None
    cores: tuple[int, ...] | None
    network: Endpoint
    pull: str | None
    ca_file: Path | None
    limits: ModelLimits
    max_model_mib: int
    max_subnets: int
    pin_mhz: int | None = None
    sensors_root: Path = sensors.SYSTEM
    sandbox: bool = True
    segments: bool = False
    allowed_peers: tuple[str, ...] = ()

    @property
    def cores_root(self) -> Path:
        """The folder of the cores' files."""
        return sensors.cores_root(self.sensors_root)
