"""The sandbox: all its parts, in the order of setting them up; a part that the kernel lacks is reported as missing.

If the agent is root, models run as a user without an account, files or processes. The process has a network of its own,
with no device but a loopback that is down, and its own shared memory. Landlock (Linux 5.13 and newer, if switched on)
limits the files that the process may open and the processes it may signal; besides the models, a runtime may read and
open only the files that it needs on a Linux system. Landlock's numbers are from linux/landlock.h and equal on all
processors.
"""

import ctypes
import glob
import os
import pwd
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import profiling_agents
from profiling_agents.sandbox import seccomp

FIRST, LAST = 64200, 64899
"""Linux distributions leave this range free, and it is below 65536, so that most containers know it, too."""


def free_user() -> int | None:
    """The number of a user without an account or processes; None if this process cannot become another user."""
    if os.geteuid() != 0:
        return None
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for status in Path("/proc").glob("[0-9]*"):
        try:
            taken.add(status.stat().st_uid)
        except OSError:  # ended meanwhile
            continue
    known = (user for user in range(FIRST, LAST + 1) if user not in taken)
    return next((user for user in known if _exists(user)), None)


def become(user: int, groups: list[int], *, read_everything: bool) -> None:
    """Become this user without capabilities, or only with the one to read all files if wanted. OSError when it fails."""
    if read_everything:
        seccomp.process_control(seccomp.PR_SET_KEEPCAPS, 1)
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    seccomp.keep_capabilities(1 << seccomp.CAP_DAC_READ_SEARCH if read_everything else 0)


def can_read(user: int, paths: list[Path]) -> bool:
    """Whether this user could read all of these paths; tried in a separate process."""
    child = os.fork()
    if child == 0:
        try:
            become(user, [], read_everything=False)
            os._exit(0 if all(os.access(path, os.R_OK) for path in paths) else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _exists(user: int) -> bool:
    """Whether this system, perhaps a container, knows the number."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= user < first + count:
            return True
    return False


NEW_USER, NEW_NETWORK, NEW_SHARED_MEMORY = 0x10000000, 0x40000000, 0x08000000
OWN = Path("/proc/self")


def leave_network() -> None:
    """Enter namespaces without a network. OSError if the kernel refuses.

    A user other than root becomes the same user of a new user namespace, without capabilities there. The process must not have
    threads yet.
    """
    if os.geteuid() == 0:
        seccomp.unshare(NEW_NETWORK | NEW_SHARED_MEMORY)
        return
    user, group = os.geteuid(), os.getegid()
    seccomp.unshare(NEW_USER | NEW_NETWORK | NEW_SHARED_MEMORY)
    (OWN / "setgroups").write_text("deny")
    (OWN / "uid_map").write_text(f"{user} {user} 1")
    (OWN / "gid_map").write_text(f"{group} {group} 1")
    seccomp.keep_capabilities(0)


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
RULE_PATH_BENEATH = 1

WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE | IOCTL_DEVICE
"""No right to run a program is ever given."""

FILE_RIGHTS_OF_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
WITH_NETWORK, BIND_AND_CONNECT = 4, 0b11
WITH_SCOPES, SOCKETS_AND_SIGNALS = 6, 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The kernel's version of Landlock; OSError if it has none."""
    return seccomp.system_call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Limit this process, from now on and for good, to files below these paths. OSError without Landlock.

    Missing paths are left out. The process must not be able to gain privileges (no_new_privs).
    """
    known = version()
    handled = FILE_RIGHTS_OF_VERSION[min(known, max(FILE_RIGHTS_OF_VERSION))]
    rules = _Ruleset(
        handled, BIND_AND_CONNECT if known >= WITH_NETWORK else 0, SOCKETS_AND_SIGNALS if known >= WITH_SCOPES else 0
    )
    fields = 3 if known >= WITH_SCOPES else 2 if known >= WITH_NETWORK else 1
    size = ctypes.c_size_t(fields * ctypes.sizeof(ctypes.c_uint64))
    ruleset = seccomp.system_call(CREATE_RULESET, ctypes.byref(rules), size, ctypes.c_uint32(0))
    try:
        for rights, paths in ((READ, readable), (WRITE, writable)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        seccomp.system_call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # then it cannot be opened in the sandbox either
        return
    try:
        allowed = rights if path.is_dir() else rights & OF_FILES
        rule = _PathBeneath(allowed, opened)
        seccomp.system_call(
            ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(opened)


PACKAGE = Path(profiling_agents.__file__).resolve().parent
LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/OpenCL")
FACTS = (
    *("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/filesystems", "/proc/version"),
    *("/proc/sys/vm", "/proc/sys/kernel", "/proc/driver", "/proc/device-tree", "/proc/devices", "/proc/modules"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ACCELERATORS = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/mali*")
INSTALLED = ("site-packages", "dist-packages")


def accelerators() -> list[Path]:
    """The files of accelerators' drivers."""
    return [Path(path) for pattern in ACCELERATORS for path in glob.glob(pattern)]


def groups_of(devices: list[Path]) -> list[int]:
    """The groups that may open these files."""
    found = [path for device in devices for path in (device, *device.glob("*"))]
    return sorted({path.stat().st_gid for path in found if path.stat().st_mode & 0o060 == 0o060})


def _python() -> Iterator[Path]:
    """The folders on Python's path. If it includes the source tree with the user's own files, only the package is readable."""
    yield from map(Path, {sys.prefix, sys.base_prefix, sys.exec_prefix})
    for entry in (*sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        path = Path(entry)
        if entry and (path.resolve() != PACKAGE.parent or path.name in INSTALLED):
            yield path


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
        seccomp.process_control(seccomp.PR_SET_PDEATHSIG, signal.SIGKILL)  # last: a change of user clears it
    return report


def limit_files() -> None:
    """Limit the size of files, forbid core dumps, and be the first to go when memory runs short."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN_BYTES, WRITTEN_BYTES))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")


def _enter_linux(plan: PlannedSandbox, report: SandboxReport) -> None:
    with report.part("network", "models reach the network where no other part stops them"):
        leave_network()
    seccomp.process_control(seccomp.PR_SET_NO_NEW_PRIVS, 1)
    devices = accelerators() if plan.accelerator else []
    # Python, its packages, the system's libraries, and the system's facts about its processor
    process = Path("/proc") / str(os.getpid())
    readable = [*map(Path, (*LIBRARIES, *SETTINGS, *FACTS)), process, PACKAGE, *_python(), *plan.readable]
    writable = [plan.folder, *map(Path, DEVICES), *devices]
    with report.part("files", "models can read and write the files of their user"):
        # CUDA does not start unless it may write about its own threads, for example names
        restrict(readable, [*writable, process / "task"] if plan.accelerator else writable)
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
    if user is not None and (behind_files or can_read(user, needed)):
        become(user, groups_of(devices), read_everything=behind_files)
        return
    seccomp.keep_capabilities(1 << seccomp.CAP_DAC_OVERRIDE)  # the models belong to the plan's user
    raise OSError(0, "no other user is free here" if user is None else f"another user cannot read {sys.base_prefix}")
