"""CPU use between two snapshots, of the machine and of the control group."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.state.sensing.groups import ControlGroup, GroupCpu
from profiling_agents.sensing.machine import available_cores
from profiling_agents.sensing.sensors import SYSTEM, read_text

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
