"""The files that a runtime reads and opens on a Linux system, besides the models."""

import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/OpenCL")
FACTS = (
    *("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/filesystems", "/proc/version"),
    *("/proc/sys/vm", "/proc/sys/kernel", "/proc/driver", "/proc/device-tree", "/proc/devices", "/proc/modules"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ACCELERATORS = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/mali*")
INSTALLED = ("site-packages", "dist-packages")


def readable() -> list[Path]:
    """Python, its packages, the system's libraries, and the system's facts about its processor."""
    own = Path("/proc") / str(os.getpid())
    return [*map(Path, (*LIBRARIES, *SETTINGS, *FACTS)), own, PACKAGE, *_python()]


def accelerators() -> list[Path]:
    """The files of accelerators' drivers."""
    return [Path(path) for pattern in ACCELERATORS for path in glob.glob(pattern)]


def own_threads() -> Path:
    """The folder in which a process may write about its own threads, for example names; CUDA does not start without it."""
    return Path("/proc") / str(os.getpid()) / "task"


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
