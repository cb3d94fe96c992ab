"""Calls of the Linux kernel that Python has no function for."""

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def system_call(number: int, *arguments: object) -> int:
    """The result of a system call by its number; OSError when it fails."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def process_control(option: int, value: int) -> None:
    """prctl(option, value); OSError when it fails."""
    _checked(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def unshare(flags: int) -> None:
    """Leave the namespaces of these flags for new ones; OSError when it fails."""
    _checked(_libc.unshare(flags))


def keep_capabilities(kept: int) -> None:
    """Give up all capabilities but these (a mask of the first 32); OSError when it fails."""
    header = _CapabilityHeader(CAPABILITY_VERSION_3, 0)
    sets = (_CapabilitySets * 2)(_CapabilitySets(kept, kept, 0), _CapabilitySets(0, 0, 0))
    _checked(_libc.capset(ctypes.byref(header), sets))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
