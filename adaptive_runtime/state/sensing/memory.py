"""Memory of the device, or of the control group if it has less left."""

from pathlib import Path
from typing import Any

from adaptive_runtime.state.sensing.groups import ControlGroup
from profiling_agents.messages import MIB
from profiling_agents.sensing.sensors import SYSTEM, read_text

KIB_PER_MIB = 1024


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
