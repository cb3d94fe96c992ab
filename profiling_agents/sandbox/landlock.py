"""Landlock: limits the files that this process may open and the processes it may signal. Linux 5.13 and newer, if switched on.

Numbers are those of linux/landlock.h and equal on all processors.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from profiling_agents.sandbox import kernel

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
    return kernel.system_call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Limit this process, from now on and for good, to files below these paths. OSError without Landlock.

    Missing paths are left out. The process must not be able to gain privileges (no_new_privs).
    """
    known = version()
    handled = FILE_RIGHTS_OF_VERSION[min(known, max(FILE_RIGHTS_OF_VERSION))]
    rules = _Ruleset(
        handled,
        BIND_AND_CONNECT if known >= WITH_NETWORK else 0,
        SOCKETS_AND_SIGNALS if known >= WITH_SCOPES else 0,
    )
    fields = 3 if known >= WITH_SCOPES else 2 if known >= WITH_NETWORK else 1
    size = ctypes.c_size_t(fields * ctypes.sizeof(ctypes.c_uint64))
    ruleset = kernel.system_call(CREATE_RULESET, ctypes.byref(rules), size, ctypes.c_uint32(0))
    try:
        for rights, paths in ((READ, readable), (WRITE, writable)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        kernel.system_call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
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
        kernel.system_call(
            ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(opened)
