"""Limits of this process's control group, of version 2 or 1: CPU quota, CPU time, memory.

Limits of all levels above the process apply, too: the tightest level decides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.sensing.sensors import SYSTEM, read_number, read_text

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
