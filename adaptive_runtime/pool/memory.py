"""Memory of this process, as the system counts it."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path

STATM = Path("/proc/self/statm")
PAGE_BYTES = mmap.PAGESIZE
KIB_PER_MIB = 1024


def resident_mib() -> float | None:
    """Resident memory of this process [MiB], including pages shared with others; None if unknown here.

    The proportional share of these pages (PSS) would be less, and change whenever another process with the same libraries
    starts
    or ends.
    """
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES / KIB_PER_MIB**2
    except OSError:
        return None


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    except (AttributeError, OSError, TypeError):  # another C library than glibc, or none
        return None


def give_back() -> None:
    """Return freed memory to the system if the C library keeps it: after loading a network, as much as its weights."""
    if (trim := _trim()) is not None:
        trim(0)
