"""The options of a service, from the command line."""

from dataclasses import dataclass
from pathlib import Path

from adaptive_runtime.chains import ChainFormat
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.sensing.sensors import SYSTEM

TOKEN_VARIABLE = "AUTOTAILOR_SERVICE_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What is served, and how.

    budget_ms, memory_mib, format, key_file, cache, also: as `adaptive_runtime.load` takes them. queue: requests that may wait;
    workers: requests that run at once. deadline_ms: of requests that name none. state: folder in which the choice is kept;
    None: it is forgotten. adapts: what serves changes with the load; decisions: the file of what was decided, which can be
    replayed. sensors_root: where the device's /sys and /proc are.
    """

    bundle: Path
    network: Endpoint
    model_name: str = "model"
    budget_ms: float | None = None
    memory_mib: float | None = None
    format: ChainFormat | None = None
    key_file: Path | None = None
    cache: Path | None = None
    also: Path | None = None
    queue: int = 64
    workers: int = 1
    deadline_ms: float = 1000.0
    max_body_mib: int = 8
    state: Path | None = None
    adapts: bool = False
    decisions: Path | None = None
    sensors_root: Path = SYSTEM
