"""Memory of this process, as the system counts it."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROLLUP, STATM = Path("/proc/self/smaps_rollup"), Path("/proc/self/statm")
PAGE_BYTES = mmap.PAGESIZE
KIB_PER_MIB = 1024


def own_mib() -> float | None:
    """The memory that this process takes [MiB]: PSS, its share of pages that others have, too; None: unknown here."""
    try:
        text = ROLLUP.read_text()
    except OSError:
        return None
    found = (line.split() for line in text.splitlines())
    return next((int(words[1]) / KIB_PER_MIB for words in found if words[0] == "Pss:"), None)


def resident_mib() -> float | None:
    """What of this process is in memory [MiB], with shared pages; None: unknown here. Much faster to read than PSS."""
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES / KIB_PER_MIB**2
    except OSError:
        return None


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    except (AttributeError, OSError, TypeError):  # of another C library than glibc, or none
        return None


def give_back() -> None:
    """Give freed memory back to the system, where the C library keeps it: after loading a network as much as its weights."""
    if (trim := _trim()) is not None:
        trim(0)
