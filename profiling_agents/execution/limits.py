"""Limits of memory and time that the child process puts on itself before it touches a foreign model."""

import math
import resource

import psutil
from pydantic import Field

from profiling_agents.messages import MIB, Message


class ModelLimits(Message):
    """The limits of one model. Memory is address space of the child, beyond the address space of the runtime alone.

    Runtimes differ in the latter: ncnn maps about 0.2 GiB, torch 3.4.
    """

    memory_mib: int = Field(default=4096, ge=256)
    cpu_s: int = Field(default=120, ge=1)
    wall_s: float = Field(default=60.0, gt=0.0)


def allow_memory(memory_mib: int) -> None:
    """From now on this process may map `memory_mib` more; further allocations fail (ENOMEM)."""
    limit = psutil.Process().memory_info().vms + memory_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def allow_cpu(seconds: int) -> None:
    """The system kills this process (SIGXCPU) after so many more seconds of CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
