"""Limits that the child process puts on itself before it touches a foreign model."""

import ctypes
import math
import resource
import signal
import sys
from pathlib import Path

import psutil
from pydantic import Field

from profiling_agents.messages import MIB, Message

LOG_BYTES = 4 * MIB
PR_SET_PDEATHSIG = 1


class Limits(Message):
    """What one model may use. Memory is address space of the child, beyond what the runtime takes when it starts.

    Runtimes differ in that: ncnn maps about 0.2 GiB, torch 3.4.
    """

    memory_mib: int = Field(default=4096, ge=256)
    cpu_s: int = Field(default=120, ge=1)
    wall_s: float = Field(default=60.0, gt=0.0)


def confine() -> None:
    """Cap file size, no core dumps, first to go when memory runs short, die with the parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, LOG_BYTES))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000")


def allow_memory(memory_mib: int) -> None:
    """Allocations of this process fail (ENOMEM) beyond what it has mapped now and `memory_mib`."""
    limit = psutil.Process().memory_info().vms + memory_mib * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def allow_cpu(seconds: int) -> None:
    """The system kills this process (SIGXCPU) after so many more seconds of CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
