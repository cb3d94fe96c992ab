"""Cores claimed by agents on one machine, so that two agents of one user never time on the same core.

A claim is an flock on one file per core, in a private folder; the system drops it however the agent ends.
"""

import fcntl
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from profiling_agents.messages import AgentError
from profiling_agents.sensing.machine import available_cores

SEATS = 32
"""This many agents may share a core when there are more agents than cores; they spread evenly."""


class Claim:
    """Cores held by this process. `shared`: another agent holds some of them too."""

    def __init__(self, cores: tuple[int, ...], locks: Sequence[int], shared: bool) -> None:
        self.cores = cores
        self.shared = shared
        self._locks = locks

    def release(self) -> None:
        """Give the cores back."""
        for lock in self._locks:
            os.close(lock)
        self._locks = ()


def claim(threads: int, wanted: Sequence[int] | None = None) -> Claim:
    """One core for each thread: the `wanted` cores, or free ones from the last (core 0 serves interrupts)."""
    available = available_cores()
    if wanted is not None:
        return _claim_wanted(tuple(wanted), threads, available)
    if threads > len(available):
        raise AgentError(f"--threads: got {threads}; allowed: 1 to {len(available)} (the cores of this device)")
    locks: dict[int, int] = {}
    for seat, core in itertools.product(range(SEATS), reversed(available)):
        lock = None if core in locks else _lock(core, seat)
        if lock is not None:
            locks[core] = lock
        if len(locks) == threads:
            return Claim(tuple(sorted(locks)), list(locks.values()), shared=seat > 0)
    raise AgentError(f"cores: {SEATS} agents of this user run on every core already; stop some of them")


def _claim_wanted(wanted: tuple[int, ...], threads: int, available: tuple[int, ...]) -> Claim:
    foreign = sorted(set(wanted) - set(available))
    if foreign or len(set(wanted)) != threads:
        raise AgentError(
            f"--cores: got {','.join(map(str, wanted))} for {threads} thread(s); "
            f"allowed: {threads} different of {','.join(map(str, available))}"
        )
    locks = [_lock(core, seat=0) for core in wanted]
    return Claim(wanted, [lock for lock in locks if lock is not None], shared=None in locks)


def _lock(core: int, seat: int) -> int | None:
    """Descriptor that holds one seat of one core; None when another process holds it."""
    descriptor = os.open(_folder() / f"core{core}.{seat}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"autotailor-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise AgentError(f"folder '{folder}': not a private folder of this user; remove it or set TMPDIR")
    return folder
