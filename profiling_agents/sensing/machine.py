"""The machine of an agent: its cores, their frequency and pace, memory and caches, and claims of cores between agents.

Cores are pinned to one frequency while an agent runs, and restored afterwards. Linux's cpufreq: if the lowest and the
highest allowed frequency are equal, every governor keeps to it. Setting them needs root. An agent that is killed by
force leaves its cores pinned. The last level of the caches has a known size, and is emptied of a model's weights and
inputs.

Pace is the present speed of a core relative to its usual speed. A processor shared by hardware threads or virtual
machines is slower while another one is busy: by a third or more, for seconds, and no counter of this system shows it.
The time of a short loop of arithmetic shows it. Samples from a slow core depend on other programs, and are left out
while enough other samples remain.

By claims, two agents of one user never time on the same core. A claim is an flock on one file per core, in a private
folder; the system drops it however the agent ends.
"""

import fcntl
import hashlib
import itertools
import math
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from profiling_agents.messages import MIB, AgentError
from profiling_agents.sensing.sensors import CPUS, SYSTEM, read_number

FrequencyLimits = tuple[int | None, int | None]
"""Lowest and highest frequency [kHz]."""


@contextmanager
def pinned_frequency(cores: Sequence[int], mhz: int | None, root: Path = SYSTEM) -> Iterator[None]:
    """Pin all `cores` at `mhz` (None: no change) until the block ends; the setting is read back. AgentError if impossible."""
    with ExitStack() as stack:
        if mhz is not None:
            for core in cores:
                stack.enter_context(_pinned(core, 1000 * mhz, root / CPUS / f"cpu{core}/cpufreq"))
        yield


@contextmanager
def _pinned(core: int, khz: int, folder: Path) -> Iterator[None]:
    before, (lowest, highest) = _read(folder, "scaling"), _read(folder, "cpuinfo")
    if None in before or lowest is None or highest is None:
        raise AgentError(f"--pin-mhz: this system does not say the frequencies of core {core}; leave it out")
    if not lowest <= khz <= highest:
        raise AgentError(f"--pin-mhz: got {khz // 1000}; core {core} allows {lowest // 1000} to {highest // 1000}")
    try:
        try:
            _write(folder, khz, khz)
        except OSError as error:
            hint = "run the agent as root or leave it out"
            raise AgentError(f"--pin-mhz: core {core} cannot be set here ({error.strerror}); {hint}") from error
        if (got := _read(folder, "scaling")) != (khz, khz):
            raise AgentError(f"--pin-mhz: got {khz // 1000}; core {core} took {got[0]} to {got[1]} kHz instead")
        yield
    finally:
        with suppress(OSError):  # if it could not be set, there is nothing to undo
            _write(folder, *before)


def _read(folder: Path, kind: str) -> FrequencyLimits:
    return read_number(folder / f"{kind}_min_freq"), read_number(folder / f"{kind}_max_freq")


def _write(folder: Path, low: int | None, high: int | None) -> None:
    """Set both limits. The order counts: the system always refuses a lowest frequency above the highest."""
    now_high = read_number(folder / "scaling_max_freq") or 0
    writes = [("max", high), ("min", low)] if (high or 0) >= now_high else [("min", low), ("max", high)]
    for end, value in writes:
        (folder / f"scaling_{end}_freq").write_text(f"{value}\n")


UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
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
        import numpy as np  # sensing alone needs no library of arrays

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


T = TypeVar("T")
Repeat = Callable[[int], float | None]
"""Runs the model n times; returns the duration [s] if the runtime's own clock is better than ours."""

ADDITIONS = 500
REPEATS = 3  # the fastest counts: the first may find the caches empty
SLOW = 1.15  # of the usual time
USUAL_QUANTILE = 0.05
REMEMBERED = 4096  # loops; an hour-long change of frequency becomes usual
RENEWED_EVERY = 64
WAIT_S = 0.002


class Pace:
    """The pace of the core on which the calling thread runs; `loop`: the work that is timed."""

    def __init__(self, loop: Callable[[], object] = lambda: sum(range(ADDITIONS))) -> None:
        self._loop = loop
        self._times_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._usual_ns = math.inf
        self._asked = 0
        for _ in range(RENEWED_EVERY):
            self.calm()

    def calm(self) -> bool:
        """Whether the core is now about as fast as usual."""
        time_ns = min(self._once_ns() for _ in range(REPEATS))
        self._times_ns.append(time_ns)
        self._asked += 1
        if self._asked % RENEWED_EVERY == 0 or time_ns < self._usual_ns:
            self._usual_ns = sorted(self._times_ns)[int(USUAL_QUANTILE * len(self._times_ns))]
        return time_ns <= SLOW * self._usual_ns

    def wait(self, until_s: float) -> bool:
        """Wait until the core is calm, but not beyond `until_s` (time.perf_counter); return whether it waited."""
        waited = False
        while not self.calm() and time.perf_counter() < until_s:
            time.sleep(WAIT_S)
            waited = True
        return waited

    def _once_ns(self) -> int:
        start = time.perf_counter_ns()
        self._loop()
        return time.perf_counter_ns() - start


class Runs:
    """Runs of a model that last about `duration_ms` together; runs on a slow core are kept apart. `pace` None: no core is slow.

    Waits for a calm core last at most `patience` times `duration_ms` in all.
    """

    def __init__(self, pace: Pace | None, duration_ms: float, patience: float) -> None:
        self._pace = pace
        self._duration_s = duration_ms * 1e-3
        self._patience = patience
        self._calm: list[bool] = []
        self._least = 0

    def each(self, least: int, most: float = math.inf) -> Iterator[None]:
        """Yield once for each run; at least `least` runs are calm, if time allows."""
        self._least = least
        until = time.perf_counter() + self._duration_s
        end = until + self._duration_s * self._patience
        while len(self._calm) < most:
            if self._pace is not None:
                self._pace.wait(end)
            yield
            self._calm.append(self._pace is None or self._pace.calm())
            now = time.perf_counter()
            if now >= until and (self.enough or (now >= end and len(self._calm) >= least)):
                return

    @property
    def enough(self) -> bool:
        """Whether at least `least` runs were calm."""
        return sum(self._calm) >= self._least

    def kept(self, rows: Sequence[T]) -> Sequence[T]:
        """The rows of calm runs, from one row for each run; all rows if too few runs are calm."""
        if not self.enough or len(rows) != len(self._calm):
            return rows
        return [row for row, calm in zip(rows, self._calm, strict=True) if calm]


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(cores: Sequence[int]) -> bool:
    """Bind this process to `cores`; False if the system has no such call."""
    if sys.platform != "linux" or not cores:
        return False
    os.sched_setaffinity(0, cores)
    return True


def running_system() -> str | None:
    """An identifier of the running system, equal in all containers on it; None if the system has none."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else None


def memory_mib() -> int:
    """Physical memory [MiB]."""
    return psutil.virtual_memory().total // MIB


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
