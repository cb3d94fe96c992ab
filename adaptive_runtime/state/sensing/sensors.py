"""Sensors of the device: clock, temperature, power, GPU, CPU, memory, pressure stalls, and control group limits.

Clock, temperature and power supply are read as by the agents' sensing. NVIDIA GPUs are read if the library `pynvml` is
installed and finds one. CPU use is taken between two snapshots, of the machine and of the control group. The control
group, of version 2 or 1, limits CPU quota, CPU time and memory; limits of all levels above the process apply, too: the
tightest level decides. Memory is the device's, or the control group's if it has less left. Pressure stall information
says how long tasks of the system waited for CPU, memory or disks.
"""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_runtime.base.numbers import clipped_share
from adaptive_runtime.base.process import KIB_PER_MIB
from adaptive_runtime.state.sensing.state import Pressure
from profiling_agents.messages import MIB
from profiling_agents.sensing.machine import available_cores
from profiling_agents.sensing.sensors import (
    SYSTEM,
    frequency_mhz,
    power_source,
    read_number,
    read_text,
    temperatures,
    throttled,
)


class FrequencySensor:
    """Mean frequency of the CPUs that this process may use [MHz]."""

    name = "frequency"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's field of the state."""
        found = [frequency_mhz(core, root=self._root) for core in available_cores()]
        known = [mhz for mhz in found if mhz is not None]
        return {"frequency_mhz": sum(known) / len(known) if known else None}


class TemperatureSensor:
    """The hottest sensor [°C], and whether heat or a low supply slows the processor down."""

    name = "temperature"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's fields of the state."""
        hottest = max((each.celsius for each in temperatures(self._root)), default=None)
        return {"temperature_c": hottest, "throttled": throttled(self._root)}


class BatterySensor:
    """Charge of the device's battery, and whether the device has a power supply."""

    name = "battery"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's fields of the state; with several batteries, their mean charge."""
        charges: list[int] = []
        for folder in sorted((self._root / "sys/class/power_supply").glob("*")):
            if read_text(folder / "type") == "Battery" and read_text(folder / "scope") != "Device":
                charge = read_number(folder / "capacity")
                charges += [] if charge is None else [min(100, max(0, charge))]
        source = power_source(self._root)
        return {
            "battery": sum(charges) / len(charges) / 100 if charges else None,
            "plugged": None if source is None else source == "ac",
        }


class GpuSensor:
    """Use of the busiest GPU and of its memory. `GpuSensor.find()` makes a sensor only if a GPU exists."""

    name = "gpu"

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    @classmethod
    def find(cls) -> "GpuSensor | None":
        """The sensor; None without library, driver or GPU."""
        if importlib.util.find_spec("pynvml") is None:
            return None
        nvml: Any = importlib.import_module("pynvml")
        try:
            nvml.nvmlInit()
            sensor = cls(nvml)
        except nvml.NVMLError:
            return None
        return sensor if sensor._handles else None

    def read(self) -> dict[str, Any]:
        """GPU fields of the state."""
        uses = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
        memories = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        return {"gpu_use": max(uses), "gpu_memory_use": max(memory.used / memory.total for memory in memories)}


MOUNT = "sys/fs/cgroup"
NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes an unset limit as the largest number of pages."""


@dataclass(frozen=True, slots=True)
class GroupCpu:
    """CPU counters of one group since it was made. quota: CPUs that it may use."""

    quota: float
    used_s: float | None
    periods: int | None
    throttled: int | None


class ControlGroup:
    """The group of this process, below `root`. The folders are found once, their files are read each time."""

    def __init__(self, root: Path = SYSTEM) -> None:
        paths = dict(_paths(read_text(root / "proc/self/cgroup") or ""))
        self._cpu_levels = _levels(root, paths, "cpu", ("cpu.max", "cpu.cfs_quota_us"))
        self._time_levels = _levels(root, paths, "cpuacct", ("cpuacct.usage",))
        self._memory_levels = _levels(root, paths, "memory", ("memory.max", "memory.limit_in_bytes"))

    def cpu(self) -> GroupCpu | None:
        """The level with the smallest quota; None if no level has a quota."""
        quotas = [(quota, level) for level in self._cpu_levels if (quota := _quota(level)) is not None]
        if not quotas:
            return None
        quota, level = min(quotas)
        counts = _counts(level / "cpu.stat")
        return GroupCpu(quota, self._used_s(level, counts), counts.get("nr_periods"), counts.get("nr_throttled"))

    def memory_bytes(self) -> tuple[int, int] | None:
        """(limit, remaining memory) at the level with the least left; None if no level has a limit.

        Files in the page cache that were not used lately can be dropped, so they count as free.
        """
        found = [pair for level in self._memory_levels if (pair := _memory(level)) is not None]
        return min(found, key=lambda pair: pair[1]) if found else None

    def _used_s(self, level: Path, counts: dict[str, int]) -> float | None:
        if "usage_usec" in counts:
            return counts["usage_usec"] / 1e6
        for other in self._time_levels:  # version 1 may have it in another folder, below the same names
            if _below_mount(other) == _below_mount(level):
                used_ns = read_number(other / "cpuacct.usage")
                return None if used_ns is None else used_ns / 1e9
        return None


def _paths(text: str) -> Iterator[tuple[str, str]]:
    """(controller, path) of each line of /proc/self/cgroup; the controller of version 2 is ''."""
    for line in text.splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        for controller in controllers.split(","):
            yield controller, path


def _levels(root: Path, paths: dict[str, str], controller: str, files: Sequence[str]) -> list[Path]:
    """Folders from the process's group up to the mount that have one of `files`.

    In a container the mount often is the group itself, below another name, so the mount counts as well.
    """
    mounts = [(root / MOUNT / name, paths.get(controller)) for name in (controller, "cpu,cpuacct")]
    mounts += [(root / MOUNT / name, paths.get("")) for name in ("", "unified")]
    levels: list[Path] = []
    for mount, path in mounts:
        if path is None:
            continue
        here = mount / path.lstrip("/")
        levels += [level for level in (here, *here.parents) if level == mount or mount in level.parents]
    return [level for level in dict.fromkeys(levels) if any((level / file).exists() for file in files)]


def _below_mount(level: Path) -> tuple[str, ...]:
    """Names below the mount of a controller."""
    parts = level.parts
    return parts[parts.index("cgroup") + 2 :] if "cgroup" in parts else parts


def _quota(level: Path) -> float | None:
    """CPUs that one level allows."""
    words = (read_text(level / "cpu.max") or "").split()
    if not words:
        words = [read_text(level / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # "max", and -1 in version 1
    return int(words[0]) / int(words[1])


def _memory(level: Path) -> tuple[int, int] | None:
    """(limit, left) of one level [bytes]."""
    for limit_file, used_file, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = read_number(level / limit_file), read_number(level / used_file)
        if limit is None or used is None or limit >= NO_LIMIT_BYTES:
            continue
        held = max(0, used - _counts(level / "memory.stat").get(inactive, 0))
        return limit, max(0, limit - held)
    return None


def _counts(file: Path) -> dict[str, int]:
    """A file of lines 'name number'."""
    pairs = (line.split() for line in (read_text(file) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


IDLE, IO_WAIT, STEAL = 3, 4, 7
COLUMNS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; later columns are parts of user and nice."""


class CpuSensor:
    """Use of the machine's CPUs since the previous reading, the number of usable CPUs, and the number of runnable tasks.

    The first reading compares with the time when the sensor was made; if no tick has passed, use is None, not 0.
    own_s: CPU time of this process [s].
    """

    name = "cpu"

    def __init__(
        self,
        root: Path = SYSTEM,
        *,
        cores: Callable[[], Sequence[int]] = available_cores,
        own_s: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._cores, self._own_s, self._clock = root, cores, own_s, clock
        self._group = ControlGroup(root)
        self._ticks_s = os.sysconf("SC_CLK_TCK")
        self._before = self._snapshot()

    def read(self) -> dict[str, Any]:
        """CPU fields of the state."""
        before, now = self._before, self._snapshot()
        self._before = now
        group = now.group
        cores = float(len(self._cores()))
        found: dict[str, Any] = {"usable_cpus": cores if group is None else min(cores, group.quota)}
        found["runnable"] = now.runnable
        return found | self._machine(before, now) | _group_use(before, now)

    def _snapshot(self) -> "_Snapshot":
        ticks: tuple[int, ...] = ()
        runnable = None
        for line in (read_text(self._root / "proc/stat") or "").splitlines():
            name, *values = line.split()
            if name == "cpu":
                ticks = tuple(map(int, values[:COLUMNS]))
            elif name == "procs_running":
                runnable = int(values[0])
        return _Snapshot(self._clock(), ticks, runnable, self._own_s(), self._group.cpu())

    def _machine(self, before: "_Snapshot", now: "_Snapshot") -> dict[str, float]:
        if len(now.ticks) < COLUMNS or len(before.ticks) < COLUMNS:
            return {}
        passed = [after - earlier for earlier, after in zip(before.ticks, now.ticks, strict=True)]
        total = sum(passed)
        if total <= 0:
            return {}
        busy = clipped_share((total - passed[IDLE] - passed[IO_WAIT]) / total)
        own = (now.own_s - before.own_s) * self._ticks_s / total
        others, stolen = clipped_share(busy - own), clipped_share(passed[STEAL] / total)
        return {"cpu_use": busy, "cpu_use_others": others, "cpu_stolen": stolen}


class _Snapshot:
    __slots__ = ("at_s", "group", "own_s", "runnable", "ticks")

    def __init__(
        self, at_s: float, ticks: tuple[int, ...], runnable: int | None, own_s: float, group: GroupCpu | None
    ) -> None:
        self.at_s, self.ticks, self.runnable, self.own_s, self.group = at_s, ticks, runnable, own_s, group


def _group_use(before: _Snapshot, now: _Snapshot) -> dict[str, float]:
    """Used share of the quota, and the share of periods in which it was used up."""
    earlier, after = before.group, now.group
    if earlier is None or after is None or now.at_s <= before.at_s:
        return {}
    found: dict[str, float] = {}
    if after.used_s is not None and earlier.used_s is not None and after.quota > 0:
        found["group_cpu_use"] = max(0.0, (after.used_s - earlier.used_s) / (now.at_s - before.at_s) / after.quota)
    counts = (after.periods, earlier.periods, after.throttled, earlier.throttled)
    if None not in counts:
        periods, throttled = (
            (after.periods or 0) - (earlier.periods or 0),
            (after.throttled or 0) - (earlier.throttled or 0),
        )
        found["group_throttled"] = clipped_share(throttled / periods) if periods > 0 else 0.0
    return found


class MemorySensor:
    """Total and available memory [MiB]: each the smaller of the machine's and the control group's."""

    name = "memory"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root
        self._group = ControlGroup(root)

    def read(self) -> dict[str, Any]:
        """Memory fields of the state."""
        found: dict[str, float] = {}
        for line in (read_text(self._root / "proc/meminfo") or "").splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0]) / KIB_PER_MIB
        group = self._group.memory_bytes()
        if group is not None:
            limit_mib, left_mib = (value / MIB for value in group)
            found["MemTotal"] = min(limit_mib, found.get("MemTotal", limit_mib))
            found["MemAvailable"] = min(left_mib, found.get("MemAvailable", left_mib))
        return {"memory_total_mib": found.get("MemTotal"), "memory_available_mib": found.get("MemAvailable")}


RESOURCES = ("cpu", "memory", "io")


class PressureSensor:
    """The line 'some' of /proc/pressure: at least one task waited."""

    name = "pressure"

    def __init__(self, root: Path = SYSTEM, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._before: dict[str, tuple[float, float]] = {}

    def read(self) -> dict[str, Any]:
        """Pressure fields of the state."""
        return {f"pressure_{resource}": self._of(resource) for resource in RESOURCES}

    def _of(self, resource: str) -> Pressure | None:
        now_s = self._clock()
        for line in (read_text(self._root / "proc/pressure" / resource) or "").splitlines():
            kind, *words = line.split()
            if kind != "some":
                continue
            values = dict(word.split("=", 1) for word in words)
            total_s = int(values["total"]) / 1e6
            since_last = self._since(resource, now_s, total_s)
            return Pressure(avg10=min(1.0, float(values["avg10"]) / 100), total_s=total_s, since_last=since_last)
        return None

    def _since(self, resource: str, now_s: float, total_s: float) -> float | None:
        before, self._before[resource] = self._before.get(resource), (now_s, total_s)
        if before is None or now_s <= before[0]:
            return None
        return clipped_share((total_s - before[1]) / (now_s - before[0]))
