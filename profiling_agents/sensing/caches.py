"""The processor's caches: the size of the last level, and emptying them of a model's weights and inputs."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from profiling_agents.messages import AgentError

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SYSTEM = Path("/")
TIMES_LARGER = 2
"""The buffer is larger than the last cache by this factor: replacement is not strictly by age."""


def last_level_cache_bytes(core: int, root: Path = SYSTEM) -> int | None:
    """Size of the highest-level cache that `core` uses; None if the system does not report it."""
    found: list[tuple[int, int]] = []
    for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
        try:
            level, size = (folder / "level").read_text().strip(), (folder / "size").read_text().strip()
        except OSError:
            continue
        digits, unit = size.rstrip("KMG"), UNITS.get(size[-1:], 1)
        if level.isdigit() and digits.isdigit():
            found.append((int(level), int(digits) * unit))
    return max(found)[1] if found else None


class CacheFlush:
    """Fills the caches of `cores` with its own buffer, so that nothing else is left in them."""

    def __init__(self, cores: Sequence[int], root: Path = SYSTEM) -> None:
        sizes = [last_level_cache_bytes(core, root) for core in cores]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes) or not known:
            raise AgentError("cache 'cold': this system does not say how large its caches are; allowed: warm")
        self._cores = tuple(cores)
        self._buffer = np.zeros(TIMES_LARGER * max(known) // 8, np.int64)

    def __call__(self) -> None:
        """Write the whole buffer from each core in turn, since each core has its own first-level caches."""
        if len(self._cores) == 1:
            self._buffer += 1
            return
        allowed = os.sched_getaffinity(0)
        try:
            for core in self._cores:
                os.sched_setaffinity(0, {core})
                self._buffer += 1
        finally:
            os.sched_setaffinity(0, allowed)
