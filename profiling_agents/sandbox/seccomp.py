"""seccomp for the sandbox, and calls of the Linux kernel that Python has no function for.

seccomp refuses system calls that no runtime needs for computing a model, such as making sockets or running programs. A
refused call fails with EPERM. Numbers are for x86-64 and 64-bit ARM; other processors go without.
"""

import ctypes
import os
import platform
from collections.abc import Sequence
from errno import ENOSYS, EPERM

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


SET_MODE_FILTER = 1
LEAVE_SPECULATION = 1 << 2
"""Without this flag, older kernels slow down every process behind a filter, and thus the models that are measured."""

COLUMNS = {"x86_64": 0, "aarch64": 1}
ARCHITECTURES = (0xC000003E, 0xC00000B7)
SECCOMP = (317, 277)
REFUSED = {
    "io_uring_setup": (425, 425),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "open_by_handle_at": (304, 265),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "quotactl": (179, 60),
}
SOCKET = (41, 198)
LOCAL = 1
"""AF_UNIX."""
TO_OTHERS = {"connect": (42, 203), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269)}
"""Refused if local sockets can be made, so that these reach nobody."""
REFUSED_ON_X86 = {"chown": 92, "lchown": 94}
TO_OWN_PROCESS = {"kill": (62, 129), "tgkill": (234, 131)}
"""Signals to the process itself, such as abort's."""
CLONE, CLONE3 = (56, 220), (435, 435)
NEW_NAMESPACES = 0x7E020000
"""clone's flags for namespaces of its own. clone3 hides its flags in memory; without it, libraries use clone."""
X32_CALLS = 0x40000000

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ALLOW, FAIL = 0x7FFF0000, 0x00050000

FilterInstruction = tuple[int, int, int, int]
"""Code, instructions to skip when true, and when false, operand."""


class _FilterStruct(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("true", ctypes.c_uint8), ("false", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _FilterList(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_FilterStruct)))


def restrict(*, accelerator: bool = False) -> None:
    """Make the listed calls fail from now on, for good. OSError if the kernel or the processor has no filter.

    accelerator: allow local sockets, since CUDA does not start without one; nothing can be connected to them.
    The process must not be able to gain privileges (no_new_privs).
    """
    column = COLUMNS.get(platform.machine())
    if column is None:
        raise OSError(ENOSYS, f"no filter of system calls is known for {platform.machine()}")
    instructions = [_FilterStruct(*one) for one in _program(column, os.getpid(), accelerator=accelerator)]
    array = (_FilterStruct * len(instructions))(*instructions)
    program = _FilterList(len(instructions), array)
    flags = ctypes.c_uint(LEAVE_SPECULATION)
    system_call(SECCOMP[column], ctypes.c_uint(SET_MODE_FILTER), flags, ctypes.byref(program))


def _program(column: int, own_pid: int, *, accelerator: bool) -> list[FilterInstruction]:
    refused = [numbers[column] for numbers in (REFUSED | TO_OTHERS if accelerator else REFUSED).values()]
    if column == COLUMNS["x86_64"]:
        refused += REFUSED_ON_X86.values()
    program: list[FilterInstruction] = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[column]),
        (RETURN, 0, 0, FAIL | EPERM),
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_AT_LEAST, 0, 1, X32_CALLS),
        (RETURN, 0, 0, FAIL | EPERM),
    ]
    for number in refused:
        program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | EPERM)]
    local = [(JUMP_EQUAL, 1, 0, LOCAL)] if accelerator else []
    program += _when(SOCKET[column], [*local, (RETURN, 0, 0, FAIL | EPERM)])
    program += [(JUMP_EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, FAIL | ENOSYS)]
    for numbers in TO_OWN_PROCESS.values():
        program += _when(numbers[column], [(JUMP_EQUAL, 1, 0, own_pid), (RETURN, 0, 0, FAIL | EPERM)])
    program += _when(CLONE[column], [(JUMP_ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, FAIL | EPERM)])
    return [*program, (RETURN, 0, 0, ALLOW)]


def _when(number: int, judged: Sequence[FilterInstruction]) -> list[FilterInstruction]:
    """Judge the first argument of one call; all other calls continue with the next instruction."""
    block = [(LOAD, 0, 0, FIRST_ARGUMENT_AT), *judged, (RETURN, 0, 0, ALLOW)]
    return [(JUMP_EQUAL, 0, len(block), number), *block]
