"""The cores available to a process, the machine's memory, and an identifier of the running system."""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from profiling_agents.messages import MIB


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(cores: Sequence[int]) -> bool:
    """Bind this process to `cores`; False if the system has no such call."""
    if sys.platform != "linux" or not cores:
        return False
    os.sched_setaffinity(0, cores)
    return True


def running_system() -> str | None:
    """An identifier of the running system, equal in all containers on it; None if the system has none."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else None


def memory_mib() -> int:
    """Physical memory [MiB]."""
    return psutil.virtual_memory().total // MIB
