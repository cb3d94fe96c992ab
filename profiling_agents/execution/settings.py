"""Settings with which the service starts its child process, and the child's own limits of memory and time.

The child sets its limits before it touches a foreign model.
"""

import math
import resource
from pathlib import Path

import psutil
from pydantic import Field

from profiling_agents.backends.base import RuntimeOptions
from profiling_agents.messages import MIB, Message
from profiling_agents.sandbox.entering import PlannedSandbox
from profiling_agents.sensing.sensors import SYSTEM


class ModelLimits(Message):
    """The limits of one model. Memory is the child's address space beyond that of the runtime alone.

    Runtimes differ in the latter: ncnn maps about 0.2 GiB, torch 3.4.
    """

    memory_mib: int = Field(default=4096, ge=256)
    cpu_s: int = Field(default=120, ge=1)
    wall_s: float = Field(default=60.0, gt=0.0)


def allow_memory(memory_mib: int) -> None:
    """Allow this process to map `memory_mib` more from now on; further allocations fail (ENOMEM)."""
    limit = psutil.Process().memory_info().vms + memory_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def allow_cpu(seconds: int) -> None:
    """Have the system kill this process (SIGXCPU) after this many more seconds of CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


class WorkerSettings(RuntimeOptions):
    """How the service starts its child (one JSON argument). segments: serve loaded segments and time no models."""

    cores: tuple[int, ...]
    limits: ModelLimits
    sandbox: PlannedSandbox | None
    max_payload_bytes: int
    sensors_root: Path = SYSTEM
    segments: bool = False
