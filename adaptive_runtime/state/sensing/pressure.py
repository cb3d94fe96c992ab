"""Pressure stall information: how long tasks of the system waited for CPU, memory or disks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.state.sensing.state import Pressure
from profiling_agents.sensing.sensors import SYSTEM, read_text

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
