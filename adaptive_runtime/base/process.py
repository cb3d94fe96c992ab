"""The share of the processor that this process has beside others: its niceness, from −20 (first) to 19 (last).

Memory of this process, as the system counts it. The start of child processes.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError

FIRST, LAST = -20, 19
THREADS = Path("/proc/self/task")


def run_at(niceness: int) -> None:
    """Set the niceness of all threads of this process and of those they start. AdaptiveError: invalid or not permitted."""
    if not FIRST <= niceness <= LAST:
        raise AdaptiveError("niceness", f"{niceness}", allowed=f"{FIRST} (first) to {LAST} (last)")
    threads = [int(thread.name) for thread in THREADS.iterdir()] if THREADS.exists() else [0]
    try:
        for thread in threads:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
    except PermissionError:
        now, next_step = os.getpriority(os.PRIO_PROCESS, 0), "let systemd (Nice=) or an administrator start it"
        got = f"{niceness}: this user may not go before other programs"
        raise AdaptiveError("niceness", got, allowed=f"{now} to {LAST}", next_step=next_step) from None


def step_back(niceness: int) -> None:
    """Give this thread, and those that it starts, at least this niceness, whatever priority they have now."""
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))


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


PACKAGES = str(Path(__file__).resolve().parents[2])
"""The folder from which a child imports this package."""


def child_process(module: str, order: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a Python process that runs a module of this package. order: its argument."""
    path = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-P", "-m", module, order], {**os.environ, "PYTHONPATH": path}
