"""A control group of version 1 in which this process and its children may use a part of the CPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptive_runtime.errors import AdaptiveError

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct")
PERIOD_US = 100_000


@contextmanager
def in_group(cpus: float | None) -> Iterator[None]:
    """This process in a new group with a quota of `cpus`, until the block ends; None: as it is. AdaptiveError: not here."""
    if cpus is None:
        yield
        return
    groups = [MOUNT / controller / f"autotailor-{os.getpid()}" for controller in CONTROLLERS]
    try:
        for group in groups:
            group.mkdir()
        (groups[0] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (groups[0] / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD_US)))
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise AdaptiveError(
            "--cpus", f"no control group can be made here ({error})", next_step="leave it out"
        ) from error
    try:
        yield
    finally:
        for group in groups:
            left = (group / "cgroup.procs").read_text().split()  # multiprocessing's own process outlives the block
            for process in left:
                (group.parent / "cgroup.procs").write_text(process)
            group.rmdir()
