"""What this machine is: cores, processor, frequency, memory; and the fingerprint of a device.

Reads Linux' /proc and /sys where they exist; what cannot be read is None, never guessed.
"""

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

CPU_FOLDER = Path("/sys/devices/system/cpu")


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


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _read_number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.isdigit() else None


def cpu_model() -> str:
    """Processor as the system names it."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "Model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def governor(core: int) -> str | None:
    """Frequency governor of one core."""
    return _read(CPU_FOLDER / f"cpu{core}/cpufreq/scaling_governor")


def frequency_mhz(core: int) -> float | None:
    """Current frequency of one core [MHz]."""
    value_khz = _read_number(CPU_FOLDER / f"cpu{core}/cpufreq/scaling_cur_freq")
    return None if value_khz is None else value_khz / 1e3


def frequency_state(core: int) -> str:
    """'pinned' when the allowed range is one value, else 'as shipped'; 'unknown' if unreadable."""
    limits = [_read_number(CPU_FOLDER / f"cpu{core}/cpufreq/scaling_{end}_freq") for end in ("min", "max")]
    if None in limits:
        return "unknown"
    return "pinned" if limits[0] == limits[1] else "as shipped"


def core_kind(core: int) -> tuple[int | None, int | None]:
    """(capacity, highest frequency [kHz]): tells big from little cores."""
    folder = CPU_FOLDER / f"cpu{core}"
    return _read_number(folder / "cpu_capacity"), _read_number(folder / "cpufreq/cpuinfo_max_freq")


def memory_mib() -> int:
    """Physical memory [MiB]."""
    return psutil.virtual_memory().total // MIB


def fingerprint(runtime: RuntimeInfo, cores: Sequence[int], threads: int, pinned: bool) -> str:
    """sha256 (hex) over what makes measurements comparable.

    Runtime build, precision, threads, processor, kind (not number) of the cores, governor, measuring rules.
    """
    facts = {
        "runtime": runtime.model_dump(),
        "threads": threads,
        "pinned": pinned,
        "cpu_model": cpu_model(),
        "machine": platform.machine(),
        "system": platform.system(),
        "core_kinds": sorted({str(core_kind(core)) for core in cores}),
        "governors": sorted({str(governor(core)) for core in cores}),
        "frequency": sorted({frequency_state(core) for core in cores}),
        "rules": RULES_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
