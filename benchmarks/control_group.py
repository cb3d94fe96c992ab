"""Control groups of version 1, whose processes may use a part of the CPUs."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct")
REMOVE_S = 10.0
PERIOD_US = 100_000
SHORT_PERIOD_US, LEAST_QUOTA_US = 5_000, 1_000
"""A period for latencies, since what waits for its next share of a CPU waits for up to one; and the least quota there is."""


@contextmanager
def in_group(cpus: float | None) -> Iterator[None]:
    """This process in a new group with a quota of `cpus`, until the block ends; None: as it is. AdaptiveError: not here."""
    if cpus is None:
        yield
        return
    with group(f"autotailor-{os.getpid()}", cpus) as take:
        take(os.getpid())
        yield


@contextmanager
def group(name: str, cpus: float, period_us: int = PERIOD_US) -> Iterator[Callable[[int], None]]:
    """A new group with a quota of `cpus` in each period; takes processes by their numbers, with those that they start.

    At the end the processes that are left go back. A group that a killed benchmark has left empty is taken. AdaptiveError: no
    group can be made here, or a process has ended.
    """
    groups = [MOUNT / controller / name for controller in CONTROLLERS]

    def take(process: int) -> None:
        for one in groups:
            _written(one / "cgroup.procs", str(process))

    for one in groups:
        try:
            one.mkdir(exist_ok=not _processes(one))
        except OSError as error:
            raise _refused(error) from error
    _written(groups[0] / "cpu.cfs_period_us", str(period_us))
    _written(groups[0] / "cpu.cfs_quota_us", str(round(cpus * period_us)))
    try:
        yield take
    finally:
        for one in groups:
            for process in _processes(one):  # multiprocessing's own process outlives the block
                (one.parent / "cgroup.procs").write_text(process)
            _remove(one)


def short_period_us(cpus: float) -> int:
    """The shortest period in which such a quota can be."""
    return max(SHORT_PERIOD_US, round(LEAST_QUOTA_US / cpus))


def _processes(group: Path) -> list[str]:
    """Numbers of the processes in a group; none where there is no such group."""
    members = group / "cgroup.procs"
    return members.read_text().split() if members.exists() else []


def _remove(group: Path) -> None:
    """Processes that have just ended stay in a group for a moment."""
    until = time.monotonic() + REMOVE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _written(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> AdaptiveError:
    return AdaptiveError("--cpus", f"no control group can be made here ({error})", next_step="leave it out")
