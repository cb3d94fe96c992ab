"""All parts of the sandbox, in the order in which they can be set up; one that the kernel lacks is reported as missing."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling_agents.sandbox import account, kernel, landlock, namespaces, seccomp, system_files

MIB = 1 << 20
WRITTEN_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class PlannedSandbox:
    """The service's decisions: the process's own folder, its user (None: the service's), other readable paths, accelerator."""

    folder: Path
    user: int | None
    readable: tuple[Path, ...]
    accelerator: bool

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "PlannedSandbox":
        """The sandbox that the JSON fields describe."""
        return cls(
            folder=Path(fields["folder"]),
            user=fields["user"],
            readable=tuple(map(Path, fields["readable"])),
            accelerator=fields["accelerator"],
        )


@dataclass(slots=True)
class SandboxReport:
    """The parts of the sandbox that stand, and a line for each missing one."""

    standing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @contextmanager
    def part(self, name: str, without: str) -> Iterator[None]:
        """Note whether the block has set up a part. without: the danger without that part."""
        try:
            yield
        except OSError as error:
            self.missing.append(f"{name}: {without} ({error.strerror or error})")
        else:
            self.standing.append(name)


def enter_sandbox(plan: PlannedSandbox | None) -> SandboxReport:
    """Sandbox this process, which must not have threads yet, for good; without a plan, only set limits."""
    limit_files()
    report = SandboxReport()
    if plan is not None and sys.platform == "linux":
        _enter_linux(plan, report)
    elif plan is not None:
        report.missing.append(f"all: models can do what the agent's user can (no sandbox is known for {sys.platform})")
    if sys.platform == "linux":
        kernel.process_control(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # last: a change of user clears it
    return report


def limit_files() -> None:
    """Limit the size of files, forbid core dumps, and be the first to go when memory runs short."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN_BYTES, WRITTEN_BYTES))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")


def _enter_linux(plan: PlannedSandbox, report: SandboxReport) -> None:
    with report.part("network", "models reach the network where no other part stops them"):
        namespaces.leave_network()
    kernel.process_control(kernel.PR_SET_NO_NEW_PRIVS, 1)
    devices = system_files.accelerators() if plan.accelerator else []
    readable = [*system_files.readable(), *plan.readable]
    writable = [plan.folder, *map(Path, system_files.DEVICES), *devices]
    with report.part("files", "models can read and write the files of their user"):
        landlock.restrict(readable, [*writable, system_files.own_threads()] if plan.accelerator else writable)
    if os.geteuid() == 0:
        with report.part("user", "models run as root, with no right but to open files"):
            _become(plan.user, devices, behind_files="files" in report.standing)
    with report.part("system calls", "models can use every call of the kernel"):
        seccomp.restrict(accelerator=plan.accelerator)


def _become(user: int | None, devices: list[Path], *, behind_files: bool) -> None:
    """Become the plan's user. OSError if impossible; root then keeps one capability, to open files.

    Where Landlock stands, the user reads all files that Landlock allows, for example a Python in root's home, or
    counters of energy. Without Landlock, the user's own rights must suffice to read them.
    """
    needed = [Path(sys.base_prefix), *(Path(entry) for entry in sys.path if Path(entry).is_dir())]
    if user is not None and (behind_files or account.can_read(user, needed)):
        account.become(user, system_files.groups_of(devices), read_everything=behind_files)
        return
    kernel.keep_capabilities(1 << kernel.CAP_DAC_OVERRIDE)  # the models belong to the plan's user
    raise OSError(0, "no other user is free here" if user is None else f"another user cannot read {sys.base_prefix}")
