"""The cores that a process may have, the machine's memory, and the fingerprint of a device."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from profiling_agents.measure import RULES_VERSION
from profiling_agents.messages import MIB, RuntimeInfo
from profiling_agents.sensors import SYSTEM, core_kind, cpu_model, frequency_mhz, frequency_state, governor


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(cores: Sequence[int]) -> bool:
    """Bind this process to `cores`; False where the system has no such call."""
    if sys.platform != "linux" or not cores:
        return False
    os.sched_setaffinity(0, cores)
    return True


def running_system() -> str | None:
    """What tells the running system apart from every other, containers on it included; None where nothing does."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else None


def memory_mib() -> int:
    """Physical memory [MiB]."""
    return psutil.virtual_memory().total // MIB


def fingerprint(runtime: RuntimeInfo, cores: Sequence[int], threads: int, pinned: bool, root: Path = SYSTEM) -> str:
    """sha256 (hex) over what makes measurements comparable.

    Runtime build, precision, threads, processor, kind (not number) of the cores, governor, frequency if it is pinned,
    measuring rules.
    """
    facts = {
        "runtime": runtime.model_dump(),
        "threads": threads,
        "pinned": pinned,
        "cpu_model": cpu_model(),
        "machine": platform.machine(),
        "system": platform.system(),
        "core_kinds": sorted({str(core_kind(core, root)) for core in cores}),
        "governors": sorted({str(governor(core, root)) for core in cores}),
        "frequency": sorted({_frequency(core, root) for core in cores}),
        "rules": RULES_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _frequency(core: int, root: Path) -> str:
    """'pinned' and to what [MHz], or that it is not."""
    state = frequency_state(core, root)
    return f"{state} {frequency_mhz(core, 'max', root):g}" if state == "pinned" else state
